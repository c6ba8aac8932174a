"""The answer on a slow job: what makes it slow, which ranks, since when, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NamedTuple

import polars as pl

from ncclforensics.frames.columns import Large, Row

INPUTS = ("profiled_process", "job_step", "rank_sum")  # frames: a row in one of them is evidence on the speed of a job


class SlowKind(StrEnum):
    """The verdicts, as in the contract's `slow.verdict`; the first is told where several are explained."""

    RANK = "slow-rank"
    HOST = "slow-host"
    GROUP = "slow-group"
    COMMUNICATION = "slow-communication"
    STALLS = "periodic-stalls"
    CHANGE = "slowed-down"
    UNEVEN = "uneven-work"
    HOST_BOUND = "waits-for-host"
    EXPOSED = "exposed-communication"
    UNDECIDABLE = "undecidable"
    EVEN = "even"


# Verdicts that name a condition to act on: their exit code is that of a warning. The others describe a job as it is.
ACTIONABLE = frozenset(
    {SlowKind.RANK, SlowKind.HOST, SlowKind.GROUP, SlowKind.COMMUNICATION, SlowKind.STALLS, SlowKind.CHANGE}
)


class Place(NamedTuple):
    """A line, or a record of a document."""

    source: int
    line: int


class SlowRival(NamedTuple):
    """One explanation that was considered."""

    verdict: str
    claim: str
    certainty: str
    assumes: tuple[str, ...]  # what would have to be true for it to be false


@dataclass(frozen=True, slots=True)
class SlowAnswer:
    """One answer, as a row of the frame `slow_answer`. Shares are of a step, from 0 to 1; None is unknown."""

    verdict: SlowKind
    certainty: str
    claim: str
    details: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # for which the others wait
    hosts: tuple[str, ...] = ()
    group: str | None = None
    link: str | None = None
    since_step: Large | None = None
    since: str | None = None  # ISO 8601
    step_seconds: float | None = None
    step_share: float | None = None  # of the step, that it would gain without it
    uneven_share: float | None = None  # of the step, lost to all uneven arrival together
    gpu_hours_per_day: float | None = None
    cause: str | None = None
    missing: tuple[int, ...] = ()  # rank numbers of which nothing is there
    collect: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()  # the worlds in which it is false
    evidence: tuple[Place, ...] = ()
    considered: tuple[SlowRival, ...] = ()

    @property
    def is_actionable(self) -> bool:
        """Whether it names a condition to act on."""
        return self.verdict in ACTIONABLE

    def row(self) -> Row:
        """Return it as a row of a frame."""
        lists = {name: [value._asdict() for value in getattr(self, name)] for name in ("evidence", "considered")}
        return asdict(self) | lists

    @classmethod
    def of(cls, frame: pl.DataFrame) -> SlowAnswer | None:
        """Return the answer in a frame `slow_answer`; None if it has no row."""
        if frame.is_empty():
            return None
        row: Row = {
            name: tuple(value) if isinstance(value, list) else value for name, value in frame.row(0, named=True).items()
        }
        row["verdict"] = SlowKind(row["verdict"])
        row["evidence"] = tuple(Place(**place) for place in row["evidence"])
        row["considered"] = tuple(
            SlowRival(**{**rival, "assumes": tuple(rival["assumes"])}) for rival in row["considered"]
        )
        return cls(**row)
