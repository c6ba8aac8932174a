"""The content of the operations screen: the calls of all ranks of a communicator, aligned by position, on demand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

from ncclforensics.analyses.job.calls.calls import describe_calls
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import (
    ROOTED,
    argument_text,
    datatype,
    operation_text,
    printable,
    ranks_text,
    reduction,
)
from ncclforensics.frames.columns import Row
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.build import Report
from ncclforensics.report.timeline import times_of_calls
from ncclforensics.tui.content.call_rows import Stretch, stretches_of
from ncclforensics.tui.content.evidence import CitedLine, Citer

_ROOT_PREPOSITIONS = {**dict.fromkeys(ROOTED, "root"), "Send": "to", "Recv": "from"}
BLOCK = 64  # positions fetched at once: a screen of them, for a communicator of 10,000 ranks makes 640,000 calls
CACHED_BLOCKS = 8
CACHED_COLUMNS = 64  # of a block
EVERY = 1000  # of so many calls one is looked at to learn whether lines have times
FIELDS = ("name", "count", "datatype", "op", "root")


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of the table: ranks with the same calls at the difference, or one rank."""

    title: str
    rank_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator, and the positions of interest in its sequence of calls."""

    key: str
    nranks: int
    numbers: dict[int, str]  # rank_id -> the rank's number, in order
    length: int  # positions of its sequence that the logs show
    calls_without_position: int  # because part of a file has not been read
    p2p_calls: int  # sends and receives, which have no position among the collectives
    position_column: str  # `nth` among the collectives; `ordinal` if there are only sends and receives
    differs_at: int | None  # the first position at which its members made different calls
    stops_at: int | None  # the position of the verdict's call
    last: dict[int, int]  # rank_id -> the position of its last call
    stretches: list[Stretch]  # of its sequence, from position 0 on


@dataclass(frozen=True, slots=True)
class Cell:
    """The call of the ranks of a column at one position."""

    text: str
    differs: bool  # from the call of most ranks
    cited: CitedLine | None
    description: str = "no call here"
    time: datetime | None = None  # by the clock of the rank's host


@dataclass(slots=True)
class _Block:
    """The calls at some consecutive positions, and what has been summarised of them."""

    calls: pl.DataFrame
    usual: dict[int, Row]  # by position: the call of most ranks, and `differs` where not all ranks made it
    first_times: dict[int, datetime | None]  # by position: when the first rank made its call
    shown: dict[Column, dict[int, Row]] = field(default_factory=dict)  # the call to show of a column, by position


class Calls:
    """All communicators, and the frame from which their calls are fetched in blocks."""

    def __init__(self, run: Frames, communicators: list[Communicator], citer: Citer) -> None:
        self.communicators = communicators
        self._run = run
        self._call, self._call_line, self._member = run["call"], run["call_line"], run["member"]
        self.has_times = not times_of_calls(run, self._call["pos"].gather_every(EVERY)).is_null().all()
        self._rank_of: dict[int, int | None] = dict(run["rank"].select("rank_id", "rank").iter_rows())
        self._citer = citer
        self._blocks: dict[tuple[str, int], _Block] = {}

    def row(self, communicator: Communicator, position: int, columns: list[Column]) -> tuple[list[Cell], bool]:
        """Return the cells of these columns at one position, and whether any ranks differ there."""
        block = self._block(communicator, position)
        self._summarise(block, columns)
        usual = block.usual.get(position)
        cells = [self._cell(block.shown[column].get(position), usual, len(column.rank_ids)) for column in columns]
        return cells, usual is not None and usual["differs"]

    def time(self, communicator: Communicator, position: int) -> datetime | None:
        """Return when the first rank made its call at a position, where lines have times."""
        return self._block(communicator, position).first_times.get(position) if self.has_times else None

    def _cell(self, shown: Row | None, usual: Row | None, ranks: int) -> Cell:
        if shown is None or usual is None:
            return Cell("", usual is not None, None)
        cited, description = self._citer.cite(shown["source"], shown["line"]), printable(operation_text(shown))
        if shown["signature"] == usual["signature"]:
            absent = ranks - shown["ranks"]
            text = short_text(shown) + (f" ({absent} without)" if absent else "")
            return Cell(text, absent > 0, cited, description, shown["time"])
        differing = [name for name in FIELDS if shown[name] != usual[name]]
        return Cell(short_text(shown, differing), True, cited, description, shown["time"])

    def _summarise(self, block: _Block, columns: list[Column]) -> None:
        """Choose the call to show of each column at each position of a block: one that differs from the usual first."""
        new = [column for column in columns if column not in block.shown]
        if not new:
            return
        if len(block.shown) + len(new) > CACHED_COLUMNS:
            block.shown = {column: block.shown[column] for column in columns if column in block.shown}
        rank_ids = [rank_id for column in new for rank_id in column.rank_ids]
        numbers = [number for number, column in enumerate(new) for _ in column.rank_ids]
        column_of = pl.DataFrame({"rank_id": rank_ids, "column": numbers}, {"rank_id": pl.Int32, "column": pl.Int32})
        usual = [(position, row["signature"]) for position, row in block.usual.items()]
        usual_signature = pl.DataFrame(usual, {"position": pl.Int32, "usual": pl.Int64}, orient="row")
        made = (
            block.calls.join(column_of, on="rank_id")
            .group_by("position", "column", "signature")
            .agg(pl.col("call_line", "member", "key", "ordinal", "pos", "time").first(), ranks=pl.len())
            .join(usual_signature, on="position")
            .sort(pl.col("signature") == pl.col("usual"), "pos")
            .unique(["position", "column"], keep="first")
            .drop("signature")  # of its line, as that of all calls
        )
        for column in new:
            block.shown[column] = {}
        for row in describe_calls(made, self._call_line, self._member).to_dicts():
            row["root_rank"] = self._rank_of.get(row["root_rank_id"])
            block.shown[new[row["column"]]][row["position"]] = row

    def _block(self, communicator: Communicator, position: int) -> _Block:
        number = position // BLOCK
        block = self._blocks.get((communicator.key, number))
        if block is None:
            if len(self._blocks) >= CACHED_BLOCKS:
                self._blocks.pop(next(iter(self._blocks)))
            block = self._blocks[communicator.key, number] = self._fetch(communicator, number * BLOCK)
        return block

    def _fetch(self, communicator: Communicator, first: int) -> _Block:
        place = pl.col(communicator.position_column)
        calls = self._call.filter(
            (place >= first) & (place < first + BLOCK) & (pl.col("key") == communicator.key)
        ).select("rank_id", "key", "member", "call_line", "ordinal", "pos", position=place)
        calls = calls.with_columns(signature=self._call_line["signature"].gather(calls["call_line"]))
        no_times = pl.lit(None, pl.Datetime("us")).alias("time")
        calls = calls.with_columns(times_of_calls(self._run, calls["pos"]) if self.has_times else no_times)
        times = dict(calls.group_by("position").agg(pl.col("time").min()).iter_rows())
        made = calls.group_by("position", "signature", maintain_order=True).agg(
            pl.col("call_line").first(), ranks=pl.len()
        )
        usual = (
            made.sort("ranks", descending=True, maintain_order=True)
            .group_by("position", maintain_order=True)
            .agg(pl.col("call_line").first(), signatures=pl.len(), all_ranks=pl.col("ranks").sum())
            .with_columns(differs=(pl.col("signatures") > 1) | (pl.col("all_ranks") < len(communicator.numbers)))
        )
        usual = usual.hstack(self._call_line.select(*FIELDS, "signature")[usual["call_line"]])
        return _Block(calls, {row["position"]: row for row in usual.to_dicts()}, times)

    def last_of(self, rank_id: int) -> Communicator | None:
        """Return the communicator of a rank's last call, if the logs show one."""
        calls = self._call.filter(pl.col("rank_id") == rank_id).select("key", "pos")
        if calls.is_empty():
            return None
        key = calls.sort("pos")["key"][-1]
        return next((communicator for communicator in self.communicators if communicator.key == key), None)

    def grouped_columns(self, communicator: Communicator) -> list[Column]:
        """Group ranks that made the same call at the difference and stopped at the same position."""
        position = communicator.differs_at if communicator.differs_at is not None else communicator.stops_at
        signatures = (
            {}
            if position is None
            else dict(
                self._block(communicator, position)
                .calls.filter(pl.col("position") == position)
                .select("rank_id", "signature")
                .iter_rows()
            )
        )
        groups: dict[tuple[Any, int | None], list[int]] = defaultdict(list)
        for rank_id in communicator.numbers:
            groups[signatures.get(rank_id), communicator.last.get(rank_id)].append(rank_id)
        ordered = sorted(groups.values(), key=len)
        return [Column(_title([communicator.numbers[rank_id] for rank_id in group]), tuple(group)) for group in ordered]

    def single_columns(self, communicator: Communicator) -> list[Column]:
        """Return a column for every rank."""
        return [Column(f"rank {number}", (rank_id,)) for rank_id, number in communicator.numbers.items()]


def short_text(call: Row, differing: list[str] | None = None) -> str:
    """Return a text such as `AllReduce 1048576 bfloat16 sum`, with `≠` before the differing fields."""
    name, root = call["name"], argument_text(call, "root")
    parts = {
        "name": name,
        "count": call["count"],
        "datatype": datatype(call["datatype"]),
        "op": reduction(name, call["op"]),
        "root": f"{_ROOT_PREPOSITIONS[name]} {root}" if name in _ROOT_PREPOSITIONS else None,
    }
    texts = [f"{'≠' * (field in (differing or []))}{value}" for field, value in parts.items() if value is not None]
    return printable(" ".join(texts))


def _title(numbers: list[str]) -> str:
    text = ranks_text(int(number) for number in numbers if number != "?")
    return text if "?" not in numbers else "unknown ranks"


def build_calls(report: Report, citer: Citer) -> Calls:
    """Collect the communicators with calls: those of verdicts first, then those with a difference, then the largest."""
    run = report.run
    call = run["call"]
    counted = call.group_by("key").agg(
        pl.col("nth").max(), pl.col("ordinal").max(), pl.col("member", "call_line", "pos").first(),
        placed=pl.col("ordinal").count(), calls=pl.len(), collectives=pl.col("nth").count(),
    )  # fmt: skip
    counted = describe_calls(counted, run["call_line"], run["member"])
    last_of_member = call.group_by("member").agg(pl.col("key", "rank_id").first(), pl.col("nth", "ordinal").max())
    last_of_rank = last_of_member.group_by("key", "rank_id").agg(pl.col("nth", "ordinal").max())
    number = dict(run["rank"].select("rank_id", "rank").iter_rows())
    verdict = {answer.key: answer for answer in reversed(report.verdicts) if answer.key is not None}
    differs = dict(run["divergence"].select(pl.col("key").cast(pl.String), "nth").iter_rows())
    members: dict[str, dict[int, str]] = defaultdict(dict)
    for row in run["member"].sort("rank", nulls_last=True).select("key", "rank_id").to_dicts():
        rank = number.get(row["rank_id"])
        members[row["key"]][row["rank_id"]] = "?" if rank is None else str(rank)
    last_calls: dict[str, list[Row]] = defaultdict(list)
    for row in last_of_rank.to_dicts():
        last_calls[row["key"]].append(row)
    stretches = stretches_of(call, run["call_line"]["signature"].gather(call["call_line"]))
    communicators = []
    for row in counted.to_dicts():
        key = row["key"]
        position_column = "nth" if row["collectives"] else "ordinal"
        is_by_collective = position_column == "nth"
        highest = row[position_column]
        communicators.append(
            Communicator(
                key=key,
                nranks=row["nranks"],
                numbers=members[key],
                length=0 if highest is None else highest + 1,
                calls_without_position=row["calls"] - row["placed"],
                p2p_calls=row["placed"] - row["collectives"] if is_by_collective else 0,
                position_column=position_column,
                differs_at=differs.get(key) if is_by_collective else None,
                stops_at=_stop_position(call, verdict.get(key), position_column),
                last={
                    last["rank_id"]: last[position_column]
                    for last in last_calls[key]
                    if last[position_column] is not None
                },
                stretches=stretches.get(key, []),
            )
        )
    communicators.sort(
        key=lambda communicator: (
            communicator.key not in verdict,
            communicator.differs_at is None,
            -communicator.nranks,
            communicator.key,
        )
    )
    return Calls(run, communicators, citer)


def _stop_position(call: pl.DataFrame, answer: Answer | None, position_column: str) -> int | None:
    """Return the position of the verdict's call, which the verdict names by its ordinal."""
    if answer is None or answer.operation.ordinal is None:
        return None
    is_verdict_call = (pl.col("ordinal") == answer.operation.ordinal) & (pl.col("key") == answer.key)
    positions = call.filter(is_verdict_call)[position_column].drop_nulls()
    return int(positions[0]) if positions.len() else None
