"""Steps that take much longer than their neighbours: at which distance, how much that costs, and what stands beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from ncclforensics.analyses.slow.stalls import LongSteps, period
from ncclforensics.analyses.slow.step_change import least_records
from ncclforensics.frames.registry import analysis

STEP_STALL = {
    "series": pl.Int32(),
    "period": pl.Int64(),  # steps from one long step to the next; null where they are irregular
    "stalls": pl.Int64(),  # long steps
    "first_step": pl.Int64(),
    "last_step": pl.Int64(),
    "ratio": pl.Float64(),  # of a long step to the others, median
    "share": pl.Float64(),  # of the time of all steps, that the long ones take longer; if irregular, without one
    "seconds": pl.Float64(),  # that a long step takes longer, median
    "step_seconds": pl.Float64(),  # of all steps, mean
    "explained_by": pl.String(),  # checkpoint, evaluation, garbage collection: printed where the long steps stand
    "gpus": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),
    "last_source": pl.Int32(),
    "last_line": pl.Int32(),
}
TIME_OUTSIDE_STEPS = {
    "series": pl.Int32(),
    "seconds": pl.Float64(),  # between lines, beyond what their steps took
    "share": pl.Float64(),  # of the time between lines, without the longest: anything may happen once
    "gaps": pl.Int64(),  # places where that is more than GAP of the steps
    "longest": pl.Float64(),  # seconds
    "explained_by": pl.String(),  # printed at most of these places
    "gpus": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the step behind the longest
    "line_before": pl.Int32(),
}

WARM_UP = 5  # lines
GAP = 0.5  # of the time of the steps of a line
CLOCK = 1.0  # seconds that times of lines are exact to
BESIDE = 0.8  # of the long steps have a line of the event before them
EVENTS = {"saves": "checkpoint", "saved": "checkpoint", "evaluates": "evaluation", "collects": "garbage collection"}


@analysis(STEP_STALL, of=("job_step",))
def step_stall(job_step: pl.DataFrame, training_event: pl.DataFrame) -> pl.DataFrame:
    """Series in which some steps take LONG times as long as the others, one row for each."""
    steps = _with_events(job_step, training_event)
    rows = [row for _, own in steps.group_by("series", maintain_order=True) for row in _stalls(own)]
    return pl.DataFrame(rows, schema=STEP_STALL)


@analysis(TIME_OUTSIDE_STEPS, of=("job_step",))
def time_outside_steps(job_step: pl.DataFrame, training_event: pl.DataFrame) -> pl.DataFrame:
    """Time between step lines that no step accounts for, one row for each series that shows any.

    Frameworks stop the clock of a step for checkpoints and evaluations; the times of the lines show these. Lines
    whose steps have no length of their own, and the first of each attempt, tell nothing.
    """
    stated = pl.col("seconds") * pl.col("averaged_over")
    taken = pl.col("time").diff().over("series", "attempt")
    steps = _with_events(job_step, training_event).with_columns(
        stated=stated, taken=taken, line_before=pl.col("line").shift(1), hidden=(taken - stated).clip(0.0)
    )
    timed = steps.filter(pl.col("taken").is_not_null() & pl.col("stated").is_not_null())
    is_gap = (pl.col("hidden") > GAP * pl.col("stated")) & (pl.col("hidden") > CLOCK)
    rows = []
    for (series,), own in timed.group_by("series", maintain_order=True):
        gaps = own.filter(is_gap).sort("hidden", descending=True, maintain_order=True)
        if gaps.is_empty():
            continue
        longest = gaps.row(0, named=True)
        rows.append(
            {
                "series": series,
                "seconds": gaps["hidden"].sum(),
                "share": (gaps["hidden"].sum() - longest["hidden"]) / own["taken"].sum(),
                "gaps": gaps.height,
                "longest": longest["hidden"],
                "explained_by": _common(gaps["events"].to_list()),
                **{name: longest[name] for name in ("gpus", "source", "line", "line_before")},
            }
        )
    return pl.DataFrame(rows, schema=TIME_OUTSIDE_STEPS)


def _with_events(steps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Add `events`: what stands between the line before and the line of a step, as a list of names."""
    if events.is_empty():
        return steps.with_columns(events=pl.lit([], dtype=pl.List(pl.String)))
    named = events.select(
        "source", "line", event=pl.col("form").cast(pl.String).replace_strict(EVENTS, default=None)
    ).drop_nulls("event")
    ordered = steps.select("source", "line").sort("line").with_columns(at=pl.col("line"))
    placed = (
        named.sort("line")
        .join_asof(ordered, on="line", by="source", strategy="forward", check_sortedness=False)
        .drop_nulls("at")
    )
    lists = placed.group_by("source", line="at").agg(events=pl.col("event").unique().sort())
    joined = steps.join(lists, on=["source", "line"], how="left", maintain_order="left")
    return joined.with_columns(pl.col("events").fill_null(pl.lit([], dtype=pl.List(pl.String))))


def _common(events: Sequence[Sequence[str]]) -> str | None:
    """The event that stands beside nearly all of these steps."""
    counted = Counter(event for names in events for event in names).most_common(1)
    return counted[0][0] if counted and counted[0][1] >= BESIDE * len(events) else None


def _stalls(steps: pl.DataFrame) -> Iterator[dict[str, Any]]:
    found = LongSteps.of(steps["pace"].to_list(), least_records(steps))
    places = found.recurring(WARM_UP)
    if not places:
        return
    excess, work = pl.col("excess"), pl.col("averaged_over")
    long = steps.with_columns(excess=pl.Series(found.excess, dtype=pl.Float64))[list(places)]
    every = period(long["step"].to_list())
    lost = excess * work
    counted = lost.sum() if every else lost.sum() - lost.max()
    first, last = long.row(0, named=True), long.row(-1, named=True)
    seconds = long.select((pl.col("seconds") * excess / pl.col("pace") * work).median()).item()
    yield {
        "series": first["series"],
        "period": every,
        "stalls": long.height,
        "first_step": first["step"],
        "last_step": last["step"],
        "ratio": long.select((pl.col("pace") / (pl.col("pace") - excess)).median()).item(),
        "share": long.select(counted).item() / steps.select((pl.col("pace") * work).sum()).item(),
        "seconds": seconds,
        "step_seconds": steps.select((pl.col("seconds") * work).sum() / work.sum()).item(),
        "explained_by": _common(long["events"].to_list()),
        "gpus": steps["gpus"].mode().sort().first(),
        **{name: first[name] for name in ("source", "line")},
        "last_source": last["source"],
        "last_line": last["line"],
    }
