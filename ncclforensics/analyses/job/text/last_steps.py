"""How far each rank came in a training, by the last line of a step that it printed."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.step_order import counted_step, step_rank, step_time

LAST_STEP = {
    **ORIGIN,
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "every": pl.Int64(),  # steps between the last two lines; null for one line
    "first_time": pl.Float64(),  # seconds since 1970 of the first line; null where none shows a time
    "time": pl.Float64(),  # the same of the last one
}


@analysis(LAST_STEP, of=("training_step",))
def last_step(training_step: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row per rank that prints steps in one file: the last of its lines.

    Files whose names give no rank may be of several runs, as well as several files of one rank.
    """
    steps = (
        training_step.join(source.select("source", "hint"), on="source", how="left")
        .select(*ORIGIN, rank=step_rank(), step=counted_step(), time=step_time())
        .drop_nulls(["rank", "step"])
        .filter(pl.col("source").n_unique().over("rank") == 1)
        .sort("pos")
    )
    return (
        steps.group_by("rank", maintain_order=True)
        .agg(
            pl.col(*ORIGIN, "step").last(),
            every=pl.col("step").diff().last(),
            first_time=pl.col("time").first(),
            time=pl.col("time").last(),
        )
        .select(LAST_STEP.keys())
    )
