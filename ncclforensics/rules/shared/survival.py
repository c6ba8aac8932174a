"""Leave out failures that a job survived: behind them, their process or their file shows progress."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.program_ends import add_program_end
from ncclforensics.frames.columns import OWNER, SOURCE_BITS
from ncclforensics.frames.step_order import last_steps


def last_of_process(rows: pl.DataFrame, communicator_progress: pl.DataFrame) -> pl.DataFrame:
    """Leave out lines behind which their process completed the init of a communicator or made a call."""
    ends = communicator_progress.group_by(OWNER).agg(pl.col("last_pos").max())
    is_survived = (pl.col("pos") < pl.col("last_pos")).fill_null(value=False)
    return rows.join(ends, on=OWNER, how="left", nulls_equal=True).filter(~is_survived)


def last_ready(engine_ready: pl.DataFrame) -> pl.DataFrame:
    """Where an engine reports for the last time that it is ready, in each input: `ready_pos`."""
    return engine_ready.group_by("source").agg(ready_pos=pl.col("pos").max())


def of_open_inputs(rows: pl.DataFrame, program_end: pl.DataFrame) -> pl.DataFrame:
    """Leave out lines of inputs whose program says of all its ranks that it came to its end."""
    return rows.join(program_end.filter(pl.col("pid").is_null()), on="source", how="anti", maintain_order="left")


def not_survived(
    rows: pl.DataFrame,
    progress: pl.DataFrame,
    milestone: pl.DataFrame,
    training_step: pl.DataFrame,
    program_end: pl.DataFrame,
) -> pl.DataFrame:
    """Leave out lines behind which their process or their file shows progress, and those behind an end."""
    steps = milestone.select(*OWNER, last_pos="pos")
    progress = pl.concat([progress, steps], how="diagonal_relaxed")
    of_source = progress.group_by(source=(pl.col("last_pos") // (1 << SOURCE_BITS)).cast(pl.Int32))
    of_owner = progress.group_by(OWNER).agg(pl.col("last_pos").max(), pl.col("end_pos").min())
    is_survived = pl.col("pos") < pl.max_horizontal("last_pos", "last_pos_of_source", "last_step", "success_pos")
    is_at_end = pl.col("pos") > pl.min_horizontal("end_pos", "own_end_pos", "success_pos")
    return (
        rows.join(of_source.agg(last_pos_of_source=pl.col("last_pos").max()), on="source", how="left")
        .join(last_steps(training_step), on="source", how="left", maintain_order="left")
        .join(of_owner, on=OWNER, how="left", maintain_order="left")
        .pipe(add_program_end, program_end)
        .filter((is_survived | is_at_end).fill_null(value=False).not_())
        .sort("pos")
    )
