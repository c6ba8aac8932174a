"""Headings of Ray's above the traceback of a task or an actor whose error is passed on."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, text_of
from ncclforensics.frames.registry import analysis

RETRY = "retry"  # form of `ray_task`: above the heading of a task that is run again
RAY_HEADING = {
    "launcher_rank": pl.Int32(),
    "launcher_pid": pl.Int32(),
    "ray_cause": pl.String(),  # class of the error; null where the heading does not name it
    "task": pl.String(),
    "not_asked_for": pl.String(),  # what Ray says where the result of the task was not asked for
    "pid": pl.Int32(),
    "address": pl.String(),
    "is_retried": pl.Boolean(),  # Ray says above it that it runs the task again
    **ORIGIN,
}


@analysis(RAY_HEADING, of=("ray_task", "worker_end"))
def ray_heading(ray_task: pl.DataFrame, worker_end: pl.DataFrame) -> pl.DataFrame:
    """One row per heading, of a task or of the creation of an actor."""
    retried = ray_task.filter(form=RETRY).select("source", "pos").with_columns(pl.col("pos") + 1, is_retried=True)
    tasks = ray_task.filter(text_of("form") != RETRY).join(retried, on=["source", "pos"], how="left")
    created = worker_end.filter(form="ray_creation").with_columns(ray_cause=None, not_asked_for=None, is_retried=None)
    rows = [frame.select(pl.col(name).cast(dtype) for name, dtype in RAY_HEADING.items()) for frame in (tasks, created)]
    return pl.concat(rows)
