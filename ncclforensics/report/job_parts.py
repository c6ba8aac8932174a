"""What a report shows of one job beside the answer itself, each part computed once and rendered by every view."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.hang.wait_graph import edges_of
from ncclforensics.analyses.verdict.answer import Answer, Operation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import Row
from ncclforensics.report.run_view import RunView
from ncclforensics.rules.finding import Line


class Rival(NamedTuple):
    """One fault that was considered: the answer itself, or a rival with what it assumes or does not explain."""

    fault: Kind
    ranks: list[int]  # numbers of all ranks that it would be on
    hosts: list[str]
    cost: str
    assumes: list[str]
    against: str
    quoted: list[Row]  # path, line and text of the lines that contradict it
    is_answer: bool

    @property
    def text(self) -> str:
        """What it is, and what speaks against it, as a sentence."""
        fault = self.fault.text + (f" ({ranks_text(self.ranks)})" if self.ranks else "")
        if not self.assumes:
            return f"{fault} {self.against}"
        how_rare = {"ordinary": "not unusual"}.get(self.cost, self.cost)
        fault = "this answer is wrong" if self.fault == Kind.UNDECIDABLE else f"{fault},"
        return f"{fault} if {' and '.join(self.assumes)} ({how_rare})"


class OtherFailure(NamedTuple):
    """A failure that the answer does not explain."""

    rank: int | None
    text: str  # a predicate of the rank
    place: Row  # path, line and text


class LastCall(NamedTuple):
    """The last call of a rank."""

    rank_id: int
    rank: int | None
    host: str | None
    key: str | None  # communicator
    operation: Operation
    source: int
    line: int


class Wait(NamedTuple):
    """A rank that waits in a call, or in an init (`operation` is None), for other ranks."""

    waiter: int
    rank: int | None
    key: str | None
    operation: Operation | None
    waits_for: tuple[int, ...]  # rank ids; ranks that wait in the same call share it
    for_ranks: list[int]  # their numbers; shared, too
    source: int
    line: int

    @property
    def call_text(self) -> str:
        """The call in which it waits; `a call` where it waits in an init."""
        return (self.operation or Operation()).text

    def text(self, group: str) -> str:
        """Where it waits: `AllReduce (8 x float32) of ranks 0-3`, or the init of a communicator."""
        return f"{self.call_text} of {group}" if self.operation else f"the init of {group}"


class JobParts:
    """The parts of one job of a report that its answer alone does not hold."""

    def __init__(self, report: RunView, answer: Answer) -> None:
        self._report, self._answer = report, answer

    def _frame(self, name: str) -> pl.DataFrame:
        return self._report.of_job(name, self._answer.job)

    @cached_property
    def reporting(self) -> dict[str, int | None]:
        """How many `ranks` have evidence, `of` how many.

        The second is None where no line states the size of the job, and where more ranks show than its largest known
        communicator has: then that is not the world's.
        """
        ranks = self._frame("rank").height
        size = max(self._frame("member")["nranks"].drop_nulls(), default=None)
        return {"ranks": ranks, "of": None if size is None or size < ranks else size}

    @cached_property
    def considered(self) -> list[Rival]:
        """What was considered, the answer first."""
        report, considered = self._report, self._answer.considered
        report.cite(Line(line.source, line.line) for rival in considered for line in rival.lines)
        host_of = dict(self._frame("rank").select("rank_id", pl.col("host").cast(pl.String)).iter_rows())
        return [
            Rival(
                rival.fault, sorted({*report.numbers(rival.culprits), *rival.missing}),
                sorted({host for rank_id in rival.culprits if (host := host_of.get(rank_id)) is not None}),
                rival.cost, [*rival.assumes], rival.against,
                [report.cited(line.source, line.line) for line in rival.lines], rival.is_answer,
            )
            for rival in considered
        ]  # fmt: skip

    @cached_property
    def unexplained(self) -> list[OtherFailure]:
        """The failures that the answer does not explain."""
        report, failures = self._report, self._answer.unexplained
        report.cite(Line(failure.source, failure.line) for failure in failures)
        return [
            OtherFailure(
                report.number_of_rank.get(failure.rank_id), failure.text, report.cited(failure.source, failure.line)
            )
            for failure in failures
        ]

    @cached_property
    def last_calls(self) -> list[LastCall]:
        """The last call of every selected rank, in the order of ranks."""
        last = self._frame("shown_call")
        if last.is_empty():
            return []
        return self._selected(last.filter("is_last"))

    @cached_property
    def differing_calls(self) -> list[LastCall]:
        """The calls of a mismatch that its culprits made in place of that of the others; empty unless all are known.

        Their last calls may be later ones, which are no fault.
        """
        answer = self._answer
        if answer.verdict != Kind.MISMATCH or answer.operation.ordinal is None:
            return []
        is_disputed = (pl.col("key").cast(pl.String) == answer.key) & (pl.col("ordinal") == answer.operation.ordinal)
        is_culprit = pl.col("rank_id").is_in(list(answer.culprits))
        calls = self._selected(self._frame("shown_call").filter(is_disputed & is_culprit))
        return calls if {call.rank_id for call in calls} == {*answer.culprits} else []

    @property
    def calls_of_culprits(self) -> tuple[str, dict[int, LastCall]]:
        """The call to show of each culprit, by rank id, and what it is."""
        calls = self.differing_calls
        return "differing call" if calls else "last call", {call.rank_id: call for call in calls or self.last_calls}

    def _selected(self, calls: pl.DataFrame) -> list[LastCall]:
        ranks = self._frame("rank").select("rank_id", "rank", "host")
        named = calls.join(ranks, on="rank_id", how="left").sort("rank", nulls_last=True)
        return [
            LastCall(
                row["rank_id"], row["rank"], row["host"], row["key"], Operation.of(row), row["source"], row["line"]
            )
            for row in named.to_dicts()
            if self._is_shown(row["rank"], row["host"], row["key"])
        ]

    def _is_shown(self, rank: int | None, host: str | None, key: str | None) -> bool:
        """Whether the selection shows a rank on this host, with this communicator."""
        return self._report.selection.shows([] if rank is None else [rank], [host], key)

    @cached_property
    def waits(self) -> list[Wait]:
        """The first wait of every selected rank; NCCL's lines come before Flight Recorder dumps."""
        edges, recorded = self._frame("wait"), self._frame("recorded_wait")
        if edges.is_empty() and recorded.is_empty():
            return []
        edges = edges.sort("pos")
        is_message = pl.col("kind").is_in(["send", "recv"])
        first_place = [name for name in edges.columns if name in ("source", "line", "pos")]
        messages = (
            edges.filter(is_message)
            .explode("waits_for")
            .group_by([name for name in edges.columns if name not in ("waits_for", *first_place)], maintain_order=True)
            .agg(pl.col("waits_for"), pl.col(first_place).first())
        )
        waits = pl.concat([edges.filter(~is_message), messages.select(edges.columns)]).sort("pos")
        locations = {row["rank_id"]: row for row in self._frame("rank").select("rank_id", "rank", "host").to_dicts()}
        numbers: dict[int, list[int]] = {}
        calls = {(call["source"], call["line"]): Operation.of(call) for call in self._calls_at(waits)}
        recorded = recorded.join(waits, on="waiter", how="anti")
        edges_of_lines = edges_of(waits.unique("waiter", keep="first", maintain_order=True))
        made = [(edge, calls.get((edge.source, edge.line))) for edge in edges_of_lines]
        made += zip(edges_of(recorded), map(Operation.of, recorded.to_dicts()), strict=True)
        found = []
        for edge, call in made:
            rank, host = locations[edge.waiter]["rank"], locations[edge.waiter]["host"]
            if not self._is_shown(rank, host, edge.key):
                continue
            if id(edge.waits_for) not in numbers:
                numbers[id(edge.waits_for)] = self._report.numbers(edge.waits_for)
            awaited = numbers[id(edge.waits_for)]
            if rank in awaited:  # two processes that took themselves for the same rank
                awaited = [number for number in awaited if number != rank]
            found.append(Wait(edge.waiter, rank, edge.key, call, edge.waits_for, awaited, edge.source, edge.line))
        return found

    @cached_property
    def waiting_groups(self) -> list[tuple[list[int], str, list[int]]]:
        """Waiting ranks, their call, and the ranks they wait for, by number: one per group, the largest first."""
        groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        targets: dict[int, tuple[int, ...]] = {}  # of the lists of ranks, which waits share
        for wait in self.waits:
            what = wait.text(self._report.groups.text(wait.key))
            awaited = targets.setdefault(id(wait.for_ranks), tuple(wait.for_ranks))
            groups.setdefault((what, awaited), []).append(wait.waiter)
        ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
        return [(self._report.numbers(waiters), what, list(awaited)) for (what, awaited), waiters in ordered]

    def _calls_at(self, waits: pl.DataFrame) -> list[Row]:
        places = waits.select("source", "line").unique()
        return self._frame("shown_call").join(places, on=["source", "line"], how="semi").to_dicts()
