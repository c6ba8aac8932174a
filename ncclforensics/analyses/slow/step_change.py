"""Since which step a job is slower, by how much, and what explains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from ncclforensics.analyses.slow.change_points import MIN_RECORDS, RATIO, Level, levels
from ncclforensics.frames.registry import analysis

STEP_CHANGE = {
    "series": pl.Int32(),
    "since_step": pl.Int64(),  # the first slow one; where a line stands for several, the first that it stands for
    "until_step": pl.Int64(),  # the last slow one
    "has_ended": pl.Boolean(),  # later steps are as fast as before
    "time": pl.Float64(),  # of the first slow line, seconds since 1970
    "ratio": pl.Float64(),  # of the medians: slow to before
    "pace_before": pl.Float64(),  # seconds for one `unit`, median
    "pace": pl.Float64(),
    "unit": pl.String(),
    "seconds": pl.Float64(),
    "steps": pl.Int64(),  # slow ones
    "records_before": pl.Int64(),  # lines by which it was judged
    "records": pl.Int64(),
    "is_sharp": pl.Boolean(),  # from one line to the next; otherwise steps grew longer by and by
    "explained_by": pl.String(),  # batch, sequence, restart; null: by nothing in these lines
    "gpus": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first slow one
    "line_before": pl.Int32(),
    "last_source": pl.Int32(),
    "last_line": pl.Int32(),
}
LEAST = {50: 2, 10: 3}  # steps that a line stands for -> lines of a level; else MIN_RECORDS
NEAR = 5  # lines on each side of a cut by which it is sharp


@dataclass(frozen=True, slots=True)
class _Slow:
    """Neighbouring levels that are slower than the one before them; numbers of records."""

    before: Level
    start: int
    end: int


@analysis(STEP_CHANGE, of=("job_step",))
def step_change(job_step: pl.DataFrame) -> pl.DataFrame:
    """Stretches of steps that are slower than those before them by RATIO or more, in the order of steps."""
    rows = [row for _, steps in job_step.group_by("series", maintain_order=True) for row in _changes(steps)]
    return pl.DataFrame(rows, schema=STEP_CHANGE)


def least_records(steps: pl.DataFrame) -> int:
    """How many lines of a series a level must have: fewer where a line stands for many steps."""
    stands_for = steps["averaged_over"].median()
    typical = stands_for if isinstance(stands_for, float) else 1.0
    return next((least for steps_of_line, least in LEAST.items() if typical >= steps_of_line), MIN_RECORDS)


def _changes(steps: pl.DataFrame) -> Iterator[dict[str, Any]]:
    pace = steps["pace"].to_list()
    for slow in _slow_stretches(levels(pace, least_records(steps))):
        rows = steps.slice(slow.start, slow.end - slow.start)
        before = steps.slice(slow.before.start, slow.start - slow.before.start)
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        pace_before, medians = before["pace"].median(), rows.select(pl.col("pace", "seconds").median())
        yield {
            "series": first["series"],
            "since_step": first["step"] - first["averaged_over"] + 1,
            "until_step": last["step"],
            "has_ended": slow.end < steps.height,
            "time": first["time"],
            "ratio": medians["pace"][0] / pace_before,
            "pace_before": pace_before,
            "pace": medians["pace"][0],
            "unit": first["unit"],
            "seconds": medians["seconds"][0],
            "steps": rows["averaged_over"].sum(),
            "records_before": before.height,
            "records": rows.height,
            "is_sharp": _is_sharp(pace, slow),
            "explained_by": _explained_by(before, rows),
            "gpus": rows["gpus"].mode().sort().first(),
            "source": first["source"],
            "line": first["line"],
            "line_before": before["line"][-1],
            "last_source": last["source"],
            "last_line": last["line"],
        }


def _slow_stretches(parts: list[Level]) -> Iterator[_Slow]:
    """Stretches of levels above the fastest that came before, up to where that speed is reached again.

    What is slow from the beginning is how the job is, or warm-up.
    """
    base: Level | None = None
    slow: _Slow | None = None
    for part in parts:
        if base is not None and part.middle >= RATIO * base.middle and part.differs_from(base):
            slow = _Slow(base, slow.start if slow else part.start, part.end)
            continue
        if slow:
            yield slow
            slow = None
        if base is None or part.middle < base.middle or part.start > base.end:
            base = part
    if slow:
        yield slow


def _is_sharp(pace: list[float], slow: _Slow) -> bool:
    """Whether the lines next to the cut are as far apart as half of the whole change."""
    before, after = (
        sorted(pace[max(slow.start - NEAR, slow.before.start) : slow.start]),
        sorted(pace[slow.start : slow.start + NEAR]),
    )
    slow_pace = sorted(pace[slow.start : slow.end])
    change = slow_pace[len(slow_pace) // 2] - slow.before.middle
    return after[len(after) // 2] - before[len(before) // 2] >= change / 2


def _explained_by(before: pl.DataFrame, slow: pl.DataFrame) -> str | None:
    """What changed in the lines at the same place: the work of a step, or the job began anew."""
    for column, name in (("batch", "batch"), ("sequence_length", "sequence")):
        last, first = before[column].median(), slow[column].median()
        if last is not None and first is not None and last != first:
            return name
    return "restart" if slow["attempt"][0] != before["attempt"][-1] else None
