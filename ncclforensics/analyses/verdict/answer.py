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
from ncclforensics.frames.columns import Large, Row, columns_of

LAST_WORDS = "last words"  # what shows the last line that a rank printed
IMPOSSIBLE = "impossible"  # cost of a rival that no doubt makes true


class EvidenceLine(NamedTuple):
    """A line that proves an answer or contradicts a rival."""

    what: str  # culprit, waiting, majority, minority, failure, context, or LAST_WORDS
    rank_id: int | None
    source: int
    line: int


class Considered(NamedTuple):
    """One explanation that was considered."""

    fault: Kind  # as the contract's `hang.verdict`; undecidable: another one, which nothing names
    culprits: tuple[int, ...] = ()  # rank ids
    missing: tuple[int, ...] = ()  # rank numbers of culprits without a log
    cost: str = IMPOSSIBLE  # of what it assumes: ordinary, unusual, or impossible
    assumes: tuple[str, ...] = ()
    against: str = ""  # what it does not explain
    lines: tuple[EvidenceLine, ...] = ()  # that contradict it
    is_answer: bool = False


class Unexplained(NamedTuple):
    """A failure that an answer does not explain."""

    rank_id: int
    text: str  # a predicate of the rank
    source: int
    line: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A call, with NCCL's numbers of types; None is what no line shows."""

    ordinal: int | None = None
    name: str | None = None
    count: Large | None = None
    datatype: int | None = None
    op: int | None = None
    root: int | None = None  # a number within the communicator
    root_rank: int | None = None  # the same as a rank of the job
    caller: int | None = None  # rank number of the process that made this Send or Recv

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the call in a row of a frame; columns that it lacks are not known."""
        return cls(**{name: row.get(name) for name in cls.__dataclass_fields__})

    @property
    def text(self) -> str:
        """The call as `AllReduce #13 (1,048,576 x bfloat16, sum)`."""
        return operation_text(asdict(self))


class Answer(NamedTuple):
    """What went wrong with one job: a row of `job_diagnosis`."""

    job: int
    verdict: Kind
    certainty: Certainty
    culprits: tuple[int, ...]  # rank ids
    victims: tuple[int, ...]
    missing: tuple[int, ...]  # rank numbers of culprits without a log
    suspects: tuple[int, ...]  # rank numbers without a log, or without an error, of which one may be the culprit
    absent: tuple[int, ...]  # all rank numbers without a log
    key: str | None
    operation: Operation
    call_ranks: tuple[int, ...] | None  # rank numbers of its communicator; null if unknown, or if it has all ranks
    how: How  # of a mismatch: skipped, extra, swapped, arguments, another; compared: by PyTorch
    basis: Basis  # what it rests on, if not on calls in logs: stacks, dumps, counters
    detail: Detail  # what was refused or failed in init
    fault: str  # what failed in init, in words
    doubts: tuple[Doubt, ...]  # names of the doubts that lower its certainty
    fields: tuple[str, ...]  # of the call that differ
    claim: str  # what happened
    remarks: tuple[str, ...]  # what else is known
    reason: str  # both, as one text
    stall_evidence: tuple[Sign, ...]  # what shows that the job stood still
    rests_on_stall: bool  # the verdict holds only if the job stood still, which nothing in the logs shows
    collect: tuple[str, ...]  # further inputs that would decide an open question
    evidence_lines: tuple[EvidenceLine, ...]
    considered: tuple[Considered, ...]
    unexplained: tuple[Unexplained, ...]

    def row(self) -> Row:
        """Return the answer as a row of a frame."""
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
        """Return the answer in a row of a frame; what another version wrote, or left out, is not known."""
        lists = [name for name, dtype in columns_of(Answer).items() if isinstance(dtype, pl.List)]
        values: Row = row | {name: tuple(row[name] or ()) for name in lists if name in row}
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
