"""The calls of all ranks of a communicator, aligned by their place in its sequence: any stretch of them, on demand."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import polars as pl

from ncclforensics.analyses.job.calls import describe_calls
from ncclforensics.data.names import datatype, operation_text, printable, ranks_text, reduction
from ncclforensics.frames.run import Run
from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Cited, Citer

Row = dict[str, Any]
BLOCK = 256  # places fetched at once
KEPT = 16  # blocks
FIELDS = ("name", "count", "datatype", "op", "root")


@dataclass(frozen=True, slots=True)
class Column:
    """Ranks that made the same calls where it matters, or one rank."""

    title: str
    rank_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator, and where to look in it."""

    key: str
    nranks: int
    numbers: dict[int, str]  # actor -> the rank's number, in order
    places: int  # in its sequence, as far as they are seen
    unplaced: int  # calls whose place the unread middle of a file hides
    messages: int  # sends and receives, which have no place among the collectives
    by: str  # `nth` among the collectives; `ordinal` where there are only messages
    differs_at: int | None  # the first place where its members called different things
    stops_at: int | None  # the call of the verdict
    last: dict[int, int]  # actor -> the place of its last call


@dataclass(frozen=True, slots=True)
class Cell:
    """What the ranks of a column called at one place."""

    text: str
    differs: bool  # from what most ranks called
    at: Cited | None


class Calls:
    """All communicators, and the frame of calls that stretches are taken from."""

    def __init__(self, run: Run, communicators: list[Communicator], citer: Citer) -> None:
        self.communicators = communicators
        self._call, self._call_line, self._member = run["call"], run["call_line"], run["member"]
        self._citer = citer
        self._kept: dict[tuple[str, int], dict[int, list[Row]]] = {}

    def row(self, communicator: Communicator, place: int, columns: list[Column]) -> list[Cell]:
        """The cells of one place."""
        made = {call["rank_id"]: call for call in self._at(communicator, place)}
        signatures = Counter(call["signature"] for call in made.values())
        usual = signatures.most_common(1)[0][0] if signatures else None
        model = next((call for call in made.values() if call["signature"] == usual), None)
        return [self._cell([made.get(rank_id) for rank_id in column.rank_ids], model) for column in columns]

    def _cell(self, calls: list[Row | None], model: Row | None) -> Cell:
        there = [call for call in calls if call is not None]
        if not there or model is None:
            return Cell("", model is not None, None)
        some = next((call for call in there if call["signature"] != model["signature"]), there[0])
        at = self._citer.cite(some["source"], some["line"])
        if some["signature"] == model["signature"]:
            absent = len(calls) - len(there)
            return Cell(short(some) + (f" ({absent} not)" if absent else ""), absent > 0, at)
        differing = [name for name in FIELDS if some[name] != model[name]]
        return Cell(short(some, differing), True, at)

    def told(self, communicator: Communicator, place: int, column: Column) -> str:
        """A cell in full."""
        call = next((each for each in self._at(communicator, place) if each["rank_id"] in column.rank_ids), None)
        return printable(operation_text(call)) if call else "no call here"

    def _at(self, communicator: Communicator, place: int) -> list[Row]:
        block = place // BLOCK
        kept = self._kept.get((communicator.key, block))
        if kept is None:
            by = pl.col(communicator.by)
            rows = self._call.filter(
                (by >= block * BLOCK) & (by < (block + 1) * BLOCK) & (pl.col("key") == communicator.key)
            )
            kept = defaultdict(list)
            for row in describe_calls(rows, self._call_line, self._member).select(*_SHOWN, communicator.by).to_dicts():
                kept[row[communicator.by]].append(row)
            if len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[communicator.key, block] = kept
        return kept.get(place, [])

    def last_of(self, rank_id: int) -> Communicator | None:
        """The communicator that a rank made its last call on."""
        calls = self._call.filter(pl.col("rank_id") == rank_id).select("key", "pos")
        if calls.is_empty():
            return None
        key = calls.sort("pos")["key"][-1]
        return next((one for one in self.communicators if one.key == key), None)

    def together(self, communicator: Communicator) -> list[Column]:
        """Ranks in columns: those that called the same at the difference and stopped at the same place."""
        at = communicator.differs_at if communicator.differs_at is not None else communicator.stops_at
        made = {} if at is None else {call["rank_id"]: call["signature"] for call in self._at(communicator, at)}
        groups: dict[tuple[Any, int | None], list[int]] = defaultdict(list)
        for rank_id in communicator.numbers:
            groups[made.get(rank_id), communicator.last.get(rank_id)].append(rank_id)
        ordered = sorted(groups.values(), key=len)
        return [Column(_title([communicator.numbers[rank_id] for rank_id in group]), tuple(group)) for group in ordered]

    def apart(self, communicator: Communicator) -> list[Column]:
        """A column for every rank."""
        return [Column(f"rank {number}", (rank_id,)) for rank_id, number in communicator.numbers.items()]


_SHOWN = ("rank_id", *FIELDS, "ordinal", "signature", "source", "line")


def short(call: Row, marked: list[str] | None = None) -> str:
    """`AllReduce 1048576 bfloat16 sum`, with `≠` before what differs."""
    parts = {
        "name": call["name"],
        "count": call["count"],
        "datatype": datatype(call["datatype"]),
        "op": reduction(call["name"], call["op"]),
        "root": f"root {call['root']}" if call["name"] in ("Broadcast", "Reduce", "Send", "Recv") else None,
    }
    told = [f"{'≠' * (name in (marked or []))}{value}" for name, value in parts.items() if value is not None]
    return printable(" ".join(told))


def _title(numbers: list[str]) -> str:
    told = ranks_text(int(number) for number in numbers if number != "?")
    return told if "?" not in numbers else "ranks of unknown number"


def calls(report: Report, citer: Citer) -> Calls:
    """Communicators in which something was called: the verdict's first, then those that differ, then the largest."""
    run = report.run
    call = run["call"]
    counted = call.group_by("key").agg(
        pl.col("nth").max(), pl.col("ordinal").max(), pl.col("member", "call_line", "pos").first(),
        placed=pl.col("ordinal").count(), calls=pl.len(), collectives=pl.col("nth").count(),
    )  # fmt: skip
    counted = describe_calls(counted, run["call_line"], run["member"])
    ends_of = call.group_by("member").agg(pl.col("key", "rank_id").first(), pl.col("nth", "ordinal").max())
    last = ends_of.group_by("key", "rank_id").agg(pl.col("nth", "ordinal").max())
    number = dict(run["rank"].select("rank_id", "rank").iter_rows())
    verdict = {row["key"]: row for row in reversed(report.verdicts) if row["key"] is not None}
    differs = dict(run["divergence"].select(pl.col("key").cast(pl.String), "nth").iter_rows())
    members: dict[str, dict[int, str]] = defaultdict(dict)
    for row in run["member"].sort("rank", nulls_last=True).select("key", "rank_id").to_dicts():
        known = number.get(row["rank_id"])
        members[row["key"]][row["rank_id"]] = "?" if known is None else str(known)
    ends: dict[str, list[Row]] = defaultdict(list)
    for row in last.to_dicts():
        ends[row["key"]].append(row)
    found = []
    for row in counted.to_dicts():
        key = row["key"]
        by = "nth" if row["collectives"] else "ordinal"
        found.append(
            Communicator(
                key, row["nranks"], members[key], (row[by] if row[by] is not None else -1) + 1,
                row["calls"] - row["placed"], row["placed"] - row["collectives"] if by == "nth" else 0, by,
                differs.get(key) if by == "nth" else None, _stop(call, verdict.get(key), by),
                {each["rank_id"]: each[by] for each in ends[key] if each[by] is not None},
            )
        )  # fmt: skip
    found.sort(key=lambda one: (one.key not in verdict, one.differs_at is None, -one.nranks, one.key))
    return Calls(run, found, citer)


def _stop(call: pl.DataFrame, verdict: Row | None, by: str) -> int | None:
    """The place of the verdict's call; it is told by its number among all calls."""
    if verdict is None or verdict["ordinal"] is None:
        return None
    is_it = (pl.col("ordinal") == verdict["ordinal"]) & (pl.col("key") == verdict["key"])
    places = call.filter(is_it)[by].drop_nulls()
    return int(places[0]) if places.len() else None
