"""What a report says on a slow job, and the cells of its heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from ncclforensics.report.build import Report

if TYPE_CHECKING:
    from ncclforensics.analyses.slow.answer import SlowAnswer

RANKS_OF_HOST = 8


def slow_answer(report: Report) -> SlowAnswer | None:
    """Return what makes the job slow; None where that was not asked, and what was read does not show it."""
    if report.is_about_hang and not report.is_about_slow:
        return None
    from ncclforensics.analyses.slow.answer import INPUTS, SlowAnswer, SlowKind

    is_shown = any(report.run.has(frame) for frame in INPUTS)
    answer = SlowAnswer.of(report.run["slow_answer"]) if report.is_about_slow or is_shown else None
    is_open = answer is not None and answer.verdict is SlowKind.UNDECIDABLE
    return None if is_open and not report.is_about_slow else answer


def late_ranks(own_time: pl.DataFrame) -> pl.DataFrame:
    """By how much each rank works longer than the median rank of a step (rows of `own_time`)."""
    return own_time.select(
        "rank",
        "length_us",
        step=pl.coalesce("number", "step"),
        late_us=(pl.col("own_us") - pl.col("own_us").median().over("step")).clip(lower_bound=0),
    )


def late_cells(late: pl.DataFrame, most_rows: int, most_columns: int) -> pl.DataFrame:
    """One row per cell of a heat map of ranks and steps (rows of `late_ranks`).

    Of more ranks or steps than there may be rows and columns, neighbours share a cell, which shows the latest of them.
    """
    ranks, steps = late["rank"].rank("dense") - 1, late["step"].rank("dense") - 1
    wide, long = _shared_by(late["rank"].n_unique(), most_rows), -(-late["step"].n_unique() // most_columns)
    cells = late.with_columns(row=ranks // wide, column=steps // max(long, 1)).group_by("row", "column")
    return cells.agg(
        pl.col("late_us").max(),
        pl.col("length_us").median(),
        latest=pl.col("rank").sort_by("late_us").last(),
        rank=pl.col("rank").min(),
        last_rank=pl.col("rank").max(),
        step=pl.col("step").min(),
        last_step=pl.col("step").max(),
    ).sort("row", "column")


def _shared_by(ranks: int, most_rows: int) -> int:
    """How many ranks share a row: of many, whole hosts of eight."""
    wide = max(1, -(-ranks // most_rows))
    return wide if wide <= RANKS_OF_HOST else -(-wide // RANKS_OF_HOST) * RANKS_OF_HOST
