"""Calls whose data move slowly once all ranks are there: against sisters, their own past, tests, and any network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation
from ncclforensics.analyses.slow.rates import LARGE_CALL
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.data.busbw import BAD_OVER_NETWORK
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import Row

SLOWEST_NETWORK = 0.125  # GB/s: 1 Gbit/s
BELOW_SISTERS = 1.4  # times as long as the same call in sister groups
MUCH = 0.05  # share of the steps that such calls take, or lose
EXPOSED = 0.2  # share of the step in transfers that no computation hides
SMALL_CALL, MOSTLY_SMALL = 1 << 20, 0.5  # bytes; share of the time in transfers
COLLECT = (
    Request(
        "the counters of the links twice, some minutes apart: `perfquery` or `ethtool -S`, of all hosts",
        Observation.COUNTERS,
    ),
    Request(
        "the bandwidth of pairs of hosts: `ncclforensics capture`, or nccl-tests on two hosts at a time",
        Observation.BENCHMARK,
    ),
)


class _Slow(NamedTuple):
    """Calls that are slow: the claim, the world in which it is false, and the group and moment where they are known."""

    claim: str
    doubt: Doubt
    group: str | None = None
    details: tuple[str, ...] = ()
    since: tuple[int, float] | None = None  # a rank, and microseconds on its clock
    members: tuple[int, ...] = ()  # of the group


@dataclass(frozen=True, slots=True)
class Transfers:
    """The transfers of a job: rows of `call_rate`, `transfer_change`, `call_group` and `own_time`."""

    rates: pl.DataFrame
    changes: pl.DataFrame
    groups: pl.DataFrame
    own_time: pl.DataFrame
    hosts: Mapping[int, str]  # of the ranks of which it is known

    @property
    def share(self) -> float:
        """The share of all steps in transfers that no computation hides."""
        return self.share_of("transfer_us")

    def share_of(self, part: str) -> float:
        """The share of all steps that a part of them takes."""
        total = float(self.own_time["length_us"].sum())
        return float(self.own_time[part].sum()) / total if total else 0.0

    def label(self, key: str) -> str:
        """Name a group by its description, or else by its name."""
        label: str = self.groups.filter(key=key)["label"][0]
        return label

    def most(self) -> list[str]:
        """Return in which call most of the time in transfers is spent, and how fast it is."""
        small = self.rates.filter(pl.col("bytes") < SMALL_CALL)
        if sum(small["total_us"].to_list()) > MOSTLY_SMALL * sum(self.rates["total_us"].to_list()):
            calls = f"{sum(small['calls'].to_list()):,} calls below 1 MiB"
            return [f"most of it in {calls}, whose time is latency and no bandwidth: fewer and larger calls take less"]
        return [
            f"most of it in {row['operation']} of {_size(row['bytes'])}, at {_rate(row)}"
            for row in self.rates.head(1).to_dicts()
        ]

    def explanations(self, shared: SlowExplanation) -> list[SlowExplanation]:
        """Return the first of what is slow, and since when. `shared`: the doubts, the evidence, and the like.

        What other comparisons show is no second source: all are of the same times.
        """
        found = [*self._below_sisters(), *self._since(), *self._below_expected(), *self._slow_network()]
        if not found:
            return []
        first = found[0]
        since = next((other.since for other in found if other.since and other.group == first.group), None)
        details = (
            *first.details,
            f"transfers take {100 * self.share:.1f} % of a step; no rank works longer than the others",
            *shared.details,
        )
        return [
            replace(
                shared,
                claim=first.claim,
                doubts=(first.doubt, *shared.doubts),
                details=details,
                group=first.group,
                hosts=tuple(sorted({self.hosts[rank] for rank in first.members if rank in self.hosts})),
                since_step=self._step_at(*since) if since else None,
                since=_moment(since[1]) if since else None,
                collect=(*COLLECT, *shared.collect),
            )
        ]

    @property
    def _total_us(self) -> float:
        """How long all steps are together."""
        return float(self.own_time.unique("step")["length_us"].sum())

    def _below_sisters(self) -> Iterator[_Slow]:
        """Yield the group whose calls take longest, against the same ones of its sister groups."""
        slow = self.rates.filter(pl.col("ratio") >= BELOW_SISTERS, pl.col("total_us") >= MUCH * self._total_us)
        several = slow.filter((pl.col("sisters") > 1) | (pl.col("is_steady") & (pl.col("bytes") >= LARGE_CALL)))
        for row in several.head(1).to_dicts():
            label = f"{self.label(row['key'])} ({ranks_text(row['members'])})"
            sisters = "sister groups" if row["sisters"] > 1 else "sister group"
            what = f"takes {row['ratio']:.1f} times as long in {label} as in its {sisters}"
            yield _Slow(f"{_call(row)} {what}", Doubt.SLOW_BY_DESIGN, label, members=tuple(row["members"]))

    def _since(self) -> Iterator[_Slow]:
        """Yield the group whose calls take longer than before, if that costs much of a step."""
        costly = [row for row in self.changes.to_dicts() if row["lost_us"] >= MUCH * self._since_us(row)]
        for row in costly[:1]:
            members = self.groups.filter(key=row["key"])["members"][0].to_list()
            label = f"{self.label(row['key'])} ({ranks_text(members)})"
            others = self.changes.height - 1
            also = (f"so do those of {others} other group{'s' * (others != 1)}",) if others else ()
            claim = f"large calls of {label} take {row['ratio']:.1f} times as long as before, once all ranks are there"
            yield _Slow(claim, Doubt.OTHER_LOAD, label, also, (row["rank"], row["since_us"]), tuple(members))

    def _below_expected(self) -> Iterator[_Slow]:
        """Yield the call that is slowest against tests of the same hosts, or against such machines."""
        share = pl.col("best_busbw") / pl.col("expected_busbw")
        slow = self.rates.filter(share < BAD_OVER_NETWORK, pl.col("bytes") >= LARGE_CALL)
        slow = slow.filter(pl.col("total_us") >= MUCH * self._total_us).sort(share)
        for row in slow.head(1).to_dicts():
            by = {"nccl-tests": "nccl-tests on as many ranks of these hosts", "machine": "such a machine"}
            what = f"moves {row['best_busbw']:.3g} GB/s at best, {by[row['expected_from']]} {row['expected_busbw']:.3g}"
            yield _Slow(
                f"{_call(row)} {what}", Doubt.SHARED_WITH_KERNELS, details=("both are busbw, as nccl-tests counts it",)
            )

    def _slow_network(self) -> Iterator[_Slow]:
        """Yield calls that move data more slowly than the slowest network that is used for it."""
        slow = self.rates.filter("is_steady", pl.col("bytes") >= LARGE_CALL, pl.col("best_busbw") < SLOWEST_NETWORK)
        for row in slow.head(1).to_dicts() if self.share >= EXPOSED else []:
            what = f"moves {row['best_busbw'] * 1000:.0f} MB/s at best, once all ranks are there: less than 1 Gbit/s"
            yield _Slow(f"{_call(row)} {what}", Doubt.SLOW_BY_DESIGN)

    def _since_us(self, change: Row) -> float:
        """How long the steps since a change are together."""
        steps = self.own_time.filter(pl.col("rank") == change["rank"], pl.col("ended_us") >= change["since_us"])
        return float(steps["length_us"].sum())

    def _step_at(self, rank: int, moment_us: float) -> int | None:
        """The number of the step in which a call of a rank ended."""
        steps = self.own_time.filter(rank=rank).sort("ended_us").filter(pl.col("ended_us") >= moment_us)
        return next(iter(steps["number"].to_list()), None)


def _moment(microseconds: float) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="seconds")


def _call(row: Row) -> str:
    return f"{row['operation']} of {_size(row['bytes'])}"


def _size(size: object) -> str:
    if not isinstance(size, int):
        return "unknown size"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def _rate(row: Row) -> str:
    if row["is_impossible"]:
        return "more than any link carries: sizes or times of these calls are wrong"
    return "an unknown rate" if row["busbw"] is None else f"{row['busbw']:.3g} GB/s (busbw)"
