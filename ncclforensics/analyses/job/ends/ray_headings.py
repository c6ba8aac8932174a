"""Headings of Ray's above the traceback of a task or an actor whose error is passed on."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN
from ncclforensics.frames.registry import analysis

RAY_HEADING = {
    "launcher_rank": pl.Int32(),
    "launcher_pid": pl.Int32(),
    "ray_cause": pl.String(),  # class of the error; null where the heading does not name it
    "task": pl.String(),
    "pid": pl.Int32(),
    "address": pl.String(),
    **ORIGIN,
}


@analysis(RAY_HEADING, of=("ray_task", "worker_end"))
def ray_heading(ray_task: pl.DataFrame, worker_end: pl.DataFrame) -> pl.DataFrame:
    """One row per heading, of a task or of the creation of an actor."""
    created = worker_end.filter(form="ray_creation").with_columns(ray_cause=None)
    rows = [
        frame.select(pl.col(name).cast(dtype) for name, dtype in RAY_HEADING.items()) for frame in (ray_task, created)
    ]
    return pl.concat(rows)
