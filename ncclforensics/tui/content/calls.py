"""The content of the operations screen: the calls of all ranks of a communicator, aligned by position, on demand."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import polars as pl

from ncclforensics.analyses.job.calls import describe_calls
from ncclforensics.data.names import datatype, operation_text, printable, ranks_text, reduction
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import CitedLine, Citer

Row = dict[str, Any]
BLOCK = 256  # positions fetched at once
CACHED_BLOCKS = 16
FIELDS = ("name", "count", "datatype", "op", "root")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Cell:
    """The call of the ranks of a column at one position."""

    text: str
    differs: bool  # from the call of most ranks
    cited: CitedLine | None


class Calls:
    """All communicators, and the frame from which their calls are fetched in blocks."""

    def __init__(self, run: Frames, communicators: list[Communicator], citer: Citer) -> None:
        self.communicators = communicators
        self._call, self._call_line, self._member = run["call"], run["call_line"], run["member"]
        self._citer = citer
        self._blocks: dict[tuple[str, int], dict[int, list[Row]]] = {}

    def row(self, communicator: Communicator, position: int, columns: list[Column]) -> tuple[list[Cell], bool]:
        """Return the cells of these columns at one position, and whether any ranks differ there."""
        call_of = {call["rank_id"]: call for call in self._calls_at(communicator, position)}
        signatures = Counter(call["signature"] for call in call_of.values())
        usual = signatures.most_common(1)[0][0] if signatures else None
        model = next((call for call in call_of.values() if call["signature"] == usual), None)
        has_difference = len(signatures) > 1 or 0 < len(call_of) < len(communicator.numbers)
        cells = [self._cell([call_of.get(rank_id) for rank_id in column.rank_ids], model) for column in columns]
        return cells, has_difference

    def _cell(self, calls: list[Row | None], model: Row | None) -> Cell:
        present = [call for call in calls if call is not None]
        if not present or model is None:
            return Cell("", model is not None, None)
        shown = next((call for call in present if call["signature"] != model["signature"]), present[0])
        cited = self._citer.cite(shown["source"], shown["line"])
        if shown["signature"] == model["signature"]:
            absent = len(calls) - len(present)
            return Cell(short_text(shown) + (f" ({absent} without)" if absent else ""), absent > 0, cited)
        differing = [name for name in FIELDS if shown[name] != model[name]]
        return Cell(short_text(shown, differing), True, cited)

    def describe(self, communicator: Communicator, position: int, column: Column) -> str:
        """Return the full text of a cell."""
        call = next(
            (call for call in self._calls_at(communicator, position) if call["rank_id"] in column.rank_ids), None
        )
        return printable(operation_text(call)) if call else "no call here"

    def _calls_at(self, communicator: Communicator, position: int) -> list[Row]:
        block = position // BLOCK
        rows_at = self._blocks.get((communicator.key, block))
        if rows_at is None:
            column = pl.col(communicator.position_column)
            rows = self._call.filter(
                (column >= block * BLOCK) & (column < (block + 1) * BLOCK) & (pl.col("key") == communicator.key)
            )
            rows_at = defaultdict(list)
            for row in (
                describe_calls(rows, self._call_line, self._member)
                .select(*_SHOWN, communicator.position_column)
                .to_dicts()
            ):
                rows_at[row[communicator.position_column]].append(row)
            if len(self._blocks) >= CACHED_BLOCKS:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[communicator.key, block] = rows_at
        return rows_at.get(position, [])

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
            else {call["rank_id"]: call["signature"] for call in self._calls_at(communicator, position)}
        )
        groups: dict[tuple[Any, int | None], list[int]] = defaultdict(list)
        for rank_id in communicator.numbers:
            groups[signatures.get(rank_id), communicator.last.get(rank_id)].append(rank_id)
        ordered = sorted(groups.values(), key=len)
        return [Column(_title([communicator.numbers[rank_id] for rank_id in group]), tuple(group)) for group in ordered]

    def single_columns(self, communicator: Communicator) -> list[Column]:
        """Return a column for every rank."""
        return [Column(f"rank {number}", (rank_id,)) for rank_id, number in communicator.numbers.items()]


_SHOWN = ("rank_id", *FIELDS, "ordinal", "signature", "source", "line")


def short_text(call: Row, differing: list[str] | None = None) -> str:
    """Return a text such as `AllReduce 1048576 bfloat16 sum`, with `≠` before the differing fields."""
    parts = {
        "name": call["name"],
        "count": call["count"],
        "datatype": datatype(call["datatype"]),
        "op": reduction(call["name"], call["op"]),
        "root": f"root {call['root']}" if call["name"] in ("Broadcast", "Reduce", "Send", "Recv") else None,
    }
    texts = [f"{'≠' * (name in (differing or []))}{value}" for name, value in parts.items() if value is not None]
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
    verdict = {row["key"]: row for row in reversed(report.verdicts) if row["key"] is not None}
    differs = dict(run["divergence"].select(pl.col("key").cast(pl.String), "nth").iter_rows())
    members: dict[str, dict[int, str]] = defaultdict(dict)
    for row in run["member"].sort("rank", nulls_last=True).select("key", "rank_id").to_dicts():
        rank = number.get(row["rank_id"])
        members[row["key"]][row["rank_id"]] = "?" if rank is None else str(rank)
    last_calls: dict[str, list[Row]] = defaultdict(list)
    for row in last_of_rank.to_dicts():
        last_calls[row["key"]].append(row)
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


def _stop_position(call: pl.DataFrame, verdict: Row | None, position_column: str) -> int | None:
    """Return the position of the verdict's call, which the verdict names by its ordinal."""
    if verdict is None or verdict["ordinal"] is None:
        return None
    is_verdict_call = (pl.col("ordinal") == verdict["ordinal"]) & (pl.col("key") == verdict["key"])
    positions = call.filter(is_verdict_call)[position_column].drop_nulls()
    return int(positions[0]) if positions.len() else None
