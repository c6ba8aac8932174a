"""The answer on one job: what went wrong, how sure that is, whose fault it is, and what shows it.

One frozen value, which rules and views render; the frame `job_diagnosis` holds one of these in each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar

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
    "remarks": pl.List(pl.String()),  # what else is known
    "reason": pl.String(),  # both, as one text
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


class EvidenceLine(NamedTuple):
    """A line that proves an answer or contradicts a rival: a row of EVIDENCE_LINE."""

    what: str
    rank_id: int | None
    source: int
    line: int


class Considered(NamedTuple):
    """One explanation that was considered: a row of CONSIDERED."""

    fault: Kind
    culprits: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    cost: str = IMPOSSIBLE
    assumes: tuple[str, ...] = ()
    against: str = ""
    lines: tuple[EvidenceLine, ...] = ()
    is_answer: bool = False


class Unexplained(NamedTuple):
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


class Answer(NamedTuple):
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
    remarks: tuple[str, ...]
    reason: str
    stall_evidence: tuple[Sign, ...]
    rests_on_stall: bool
    collect: tuple[str, ...]
    evidence_lines: tuple[EvidenceLine, ...]
    considered: tuple[Considered, ...]
    unexplained: tuple[Unexplained, ...]

    def row(self) -> Row:
        """Return the answer as a row of JOB_DIAGNOSIS."""
        return {
            **self._asdict(),
            **asdict(self.operation),
            "doubts": [doubt.name for doubt in self.doubts],
            "evidence_lines": _rows(self.evidence_lines),
            "considered": [{**rival._asdict(), "lines": _rows(rival.lines)} for rival in self.considered],
            "unexplained": _rows(self.unexplained),
        }

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the answer in a row of JOB_DIAGNOSIS; what another version wrote, or left out, is not known."""
        values: Row = {name: tuple(value or ()) if name in _LISTS else value for name, value in row.items()}
        values |= {name: _word(row[name], unknown) for name, unknown in _WORDS.items()}
        values["operation"] = Operation.of(row)
        values["call_ranks"] = None if row["call_ranks"] is None else tuple(row["call_ranks"])
        values["doubts"] = tuple(doubt for name in values["doubts"] for doubt in Doubt if doubt.name == name)
        values["stall_evidence"] = tuple(Sign(sign) for sign in values["stall_evidence"] if sign in list(Sign))
        values["evidence_lines"] = _lines(values["evidence_lines"])
        values["considered"] = tuple(map(_considered, values["considered"]))
        values["unexplained"] = tuple(Unexplained(**failure) for failure in values["unexplained"])
        return cls(**{name: values[name] for name in cls._fields})


W = TypeVar("W", bound=StrEnum)
_LISTS = [name for name, dtype in JOB_DIAGNOSIS.items() if isinstance(dtype, pl.List)]
# Columns of words -> what stands for one that is not known.
_WORDS: dict[str, StrEnum] = {
    "verdict": Kind.UNDECIDABLE,
    "certainty": Certainty.POSSIBLE,
    "how": How.NOT_SAID,
    "basis": Basis.LINES,
    "detail": Detail.NOTHING,
}


def _word(value: object, unknown: W) -> W:
    return next((word for word in type(unknown) if word == value), unknown)


def _considered(row: Row) -> Considered:
    lists = {name: tuple(row[name] or ()) for name in ("culprits", "missing", "assumes")}
    fault, lines = _word(row["fault"], Kind.UNDECIDABLE), _lines(row["lines"] or ())
    return Considered(**{**row, **lists, "fault": fault, "lines": lines})


def _rows(values: Iterable[EvidenceLine | Unexplained]) -> list[Row]:
    return [value._asdict() for value in values]


def _lines(rows: Iterable[Row]) -> tuple[EvidenceLine, ...]:
    return tuple(EvidenceLine(**row) for row in rows)


def answers(job_diagnosis: pl.DataFrame) -> list[Answer]:
    """Return the answer on each job."""
    return [Answer.of(row) for row in job_diagnosis.to_dicts()]
