"""The answer on one job: what went wrong, how sure that is, whose fault it is, and what shows it.

One frozen value, which rules and views render; the frame `job_diagnosis` holds one of these in each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import polars as pl

from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.vocabulary import Basis, Certainty, Detail, How, Kind, Sign
from ncclforensics.data.names import operation_text

EVIDENCE_LINE = {
    "what": pl.String(),  # culprit, waiting, majority, minority, failure, context
    "rank_id": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}
CONSIDERED = {
    "fault": pl.String(),  # as the contract's `hang.verdict`; undecidable: another one, which nothing names
    "culprits": pl.List(pl.Int32()),  # rank ids
    "missing": pl.List(pl.Int32()),  # rank numbers of culprits without a log
    "cost": pl.String(),  # of what it assumes: ordinary, unusual; impossible: what contradicts it is no matter of doubt
    "assumes": pl.List(pl.String()),
    "against": pl.String(),  # what it does not explain
    "lines": pl.List(pl.Struct(EVIDENCE_LINE)),  # that contradict it
    "is_answer": pl.Boolean(),
}
UNEXPLAINED = {
    "rank_id": pl.Int32(),
    "text": pl.String(),  # a predicate of the rank
    "source": pl.Int32(),
    "line": pl.Int32(),
}
OPERATION = {
    "ordinal": pl.Int32(),
    "name": pl.String(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),  # a number within the communicator
    "root_rank": pl.Int32(),  # the same as a rank of the job
    "caller": pl.Int32(),  # rank number of the process that made this Send or Recv
}
VERDICT = {
    "job": pl.Int32(),
    "verdict": pl.String(),
    "certainty": pl.String(),
    "culprits": pl.List(pl.Int32()),  # rank ids
    "victims": pl.List(pl.Int32()),
    "missing": pl.List(pl.Int32()),  # rank numbers of culprits without a log
    "suspects": pl.List(pl.Int32()),  # rank numbers without a log, or without an error, of which one may be the culprit
    "absent": pl.List(pl.Int32()),  # all rank numbers without a log
    "key": pl.String(),
    **OPERATION,
    "call_ranks": pl.List(pl.Int32()),  # rank numbers of its communicator; null if unknown, or if it has all ranks
    "how": pl.String(),  # of a mismatch: skipped, extra, swapped, arguments, another; compared: by PyTorch
    "basis": pl.String(),  # what it rests on, if not on calls in logs: stacks, dumps, counters
    "detail": pl.String(),  # what was refused or failed in init
    "fault": pl.String(),  # what failed in init, in words
    "doubts": pl.List(pl.String()),  # names of the doubts that lower its certainty
    "fields": pl.List(pl.String()),  # of the call that differ
    "claim": pl.String(),  # what happened
    "reason": pl.String(),  # the same, with all that is known beside it
    "stall_evidence": pl.List(pl.String()),  # what shows that the job stood still
    "rests_on_stall": pl.Boolean(),  # the verdict holds only if the job stood still, which nothing in the logs shows
    "collect": pl.List(pl.String()),  # further inputs that would decide an open question
}
JOB_DIAGNOSIS = {
    **VERDICT,
    "evidence_lines": pl.List(pl.Struct(EVIDENCE_LINE)),
    "considered": pl.List(pl.Struct(CONSIDERED)),
    "unexplained": pl.List(pl.Struct(UNEXPLAINED)),
}
Row = dict[str, Any]
IMPOSSIBLE = "impossible"  # cost of a rival that no doubt makes true


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A line that proves an answer or contradicts a rival: a row of EVIDENCE_LINE."""

    what: str
    rank_id: int | None
    source: int
    line: int


@dataclass(frozen=True, slots=True)
class Considered:
    """One explanation that was considered: a row of CONSIDERED."""

    fault: Kind
    culprits: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    cost: str = IMPOSSIBLE
    assumes: tuple[str, ...] = ()
    against: str = ""
    lines: tuple[EvidenceLine, ...] = ()
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A failure that an answer does not explain: a row of UNEXPLAINED."""

    rank_id: int
    text: str
    source: int
    line: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A call, with NCCL's numbers of types; None is what no line shows."""

    name: str | None = None
    ordinal: int | None = None
    count: int | None = None
    datatype: int | None = None
    op: int | None = None
    root: int | None = None  # a number within the communicator
    root_rank: int | None = None  # the same as a rank of the job
    caller: int | None = None  # rank number of the process that made this Send or Recv

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the call in a row of a frame; columns that it lacks are not known."""
        return cls(**{name: row.get(name) for name in OPERATION})

    @property
    def text(self) -> str:
        """The call as `AllReduce #13 (1,048,576 x bfloat16, sum)`."""
        return operation_text(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What went wrong with one job; the columns of VERDICT say what each field means."""

    job: int
    verdict: Kind
    certainty: Certainty
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    missing: tuple[int, ...]
    suspects: tuple[int, ...]
    absent: tuple[int, ...]
    key: str | None
    operation: Operation
    call_ranks: tuple[int, ...] | None  # none where it has all ranks, or they are not known
    how: How
    basis: Basis
    detail: Detail
    fault: str
    doubts: tuple[Doubt, ...]
    fields: tuple[str, ...]
    claim: str
    reason: str
    stall_evidence: tuple[Sign, ...]
    rests_on_stall: bool
    collect: tuple[str, ...]
    evidence_lines: tuple[EvidenceLine, ...]
    considered: tuple[Considered, ...]
    unexplained: tuple[Unexplained, ...]

    def row(self) -> Row:
        """Return the answer as a row of JOB_DIAGNOSIS."""
        row = asdict(self)
        return {**row, **row["operation"], "doubts": [doubt.name for doubt in self.doubts]}

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the answer in a row of JOB_DIAGNOSIS."""
        values: Row = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        values |= {name: of(values[name]) for name, of in _WORDS.items()}
        values["operation"] = Operation.of(row)
        values["doubts"] = tuple(Doubt[name] for name in row["doubts"])
        values["stall_evidence"] = tuple(map(Sign, row["stall_evidence"]))
        values["evidence_lines"] = _lines(row["evidence_lines"])
        values["considered"] = tuple(_considered(rival) for rival in row["considered"])
        values["unexplained"] = tuple(Unexplained(**failure) for failure in row["unexplained"])
        return cls(**{field.name: values[field.name] for field in fields(cls)})


_WORDS = {"verdict": Kind, "certainty": Certainty, "how": How, "basis": Basis, "detail": Detail}


def _considered(row: Row) -> Considered:
    lists = {name: tuple(row[name]) for name in ("culprits", "missing", "assumes")}
    return Considered(**{**row, **lists, "fault": Kind(row["fault"]), "lines": _lines(row["lines"])})


def _lines(rows: Iterable[Row]) -> tuple[EvidenceLine, ...]:
    return tuple(EvidenceLine(**row) for row in rows)


def answers(job_diagnosis: pl.DataFrame) -> list[Answer]:
    """Return the answer on each job."""
    return [Answer.of(row) for row in job_diagnosis.to_dicts()]
