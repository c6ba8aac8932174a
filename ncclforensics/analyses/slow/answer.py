"""The answer on a slow job: what makes it slow, which ranks, since when, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import polars as pl

Row = dict[str, Any]
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

CONSIDERED = {
    "verdict": pl.String(),
    "claim": pl.String(),
    "certainty": pl.String(),
    "assumes": pl.List(pl.String()),  # what would have to be true for it to be false
}

SLOW_ANSWER = {
    "verdict": pl.String(),
    "certainty": pl.String(),
    "claim": pl.String(),
    "details": pl.List(pl.String()),
    "ranks": pl.List(pl.Int32()),  # for which the others wait
    "hosts": pl.List(pl.String()),
    "group": pl.String(),
    "link": pl.String(),
    "since_step": pl.Int64(),
    "since": pl.String(),  # ISO 8601
    "step_seconds": pl.Float64(),
    "step_share": pl.Float64(),  # of the step, that it would gain without it
    "uneven_share": pl.Float64(),  # of the step, lost to all uneven arrival together
    "gpu_hours_per_day": pl.Float64(),
    "cause": pl.String(),
    "missing": pl.List(pl.Int32()),  # rank numbers of which nothing is there
    "collect": pl.List(pl.String()),
    "assumes": pl.List(pl.String()),  # the worlds in which it is false
    "evidence": pl.List(pl.Struct({"source": pl.Int32(), "line": pl.Int32()})),
    "considered": pl.List(pl.Struct(CONSIDERED)),
}


@dataclass(frozen=True, slots=True)
class SlowAnswer:
    """One answer, as a row of the frame `slow_answer`. Shares are of a step, from 0 to 1; None is unknown."""

    verdict: SlowKind
    certainty: str
    claim: str
    details: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    group: str | None = None
    link: str | None = None
    since_step: int | None = None
    since: str | None = None
    step_seconds: float | None = None
    step_share: float | None = None
    uneven_share: float | None = None
    gpu_hours_per_day: float | None = None
    cause: str | None = None
    missing: tuple[int, ...] = ()
    collect: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    evidence: tuple[tuple[int, int], ...] = ()  # source and line
    considered: tuple[tuple[str, str, str, tuple[str, ...]], ...] = ()  # as CONSIDERED

    @property
    def is_actionable(self) -> bool:
        """Whether it names a condition to act on."""
        return self.verdict in ACTIONABLE

    def row(self) -> Row:
        """Return it as a row of SLOW_ANSWER."""
        evidence = [{"source": source, "line": line} for source, line in self.evidence]
        considered = [dict(zip(CONSIDERED, rival, strict=True)) for rival in self.considered]
        return {**asdict(self), "evidence": evidence, "considered": considered}

    @classmethod
    def of(cls, frame: pl.DataFrame) -> SlowAnswer | None:
        """Return the answer in a frame `slow_answer`; None if it has no row."""
        if frame.is_empty():
            return None
        row: Row = {
            name: tuple(value) if isinstance(value, list) else value for name, value in frame.row(0, named=True).items()
        }
        row["verdict"] = SlowKind(row["verdict"])
        row["evidence"] = tuple((place["source"], place["line"]) for place in row["evidence"])
        row["considered"] = tuple(
            (*(rival[name] for name in ("verdict", "claim", "certainty")), tuple(rival["assumes"]))
            for rival in row["considered"]
        )
        return cls(**row)
