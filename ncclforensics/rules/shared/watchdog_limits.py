"""Time-outs of PyTorch's watchdog that are short, and works that waited far beyond theirs."""

from __future__ import annotations

import polars as pl

SHORT_TIMEOUT = 60_000  # ms; PyTorch waits ten minutes by default
OVERDUE, LEAST_OVERDUE = 1.5, 120_000  # of the time-out, and milliseconds beyond it


def short_limit_text(work_timeout: pl.DataFrame, ranks: list[int]) -> str:
    """Say that the time-out is shorter than a first step, a checkpoint or a slow start may take."""
    rank = pl.coalesce("global_rank", "launcher_rank", "group_rank")
    shortest = work_timeout.filter(rank.is_in(ranks))["timeout"].min()
    if not isinstance(shortest, int) or shortest >= SHORT_TIMEOUT:
        return ""
    return f"; its time-out is only {shortest:,} ms, as the program set it (`timeout=` of init_process_group)"


def overdue_text(work_timeout: pl.DataFrame, ranks: list[int]) -> str:
    """Say that a work waited far beyond its time-out: then the watchdog, which looks each second, stood still, too."""
    rank = pl.coalesce("global_rank", "launcher_rank", "group_rank")
    overdue = work_timeout.filter(
        rank.is_in(ranks)
        & (pl.col("ran_for") > OVERDUE * pl.col("timeout"))
        & (pl.col("ran_for") - pl.col("timeout") > LEAST_OVERDUE)
    ).sort("ran_for", descending=True)
    for row in overdue.head(1).iter_rows(named=True):
        return (
            f"; it waited {row['ran_for']:,} ms, {row['ran_for'] / row['timeout']:.1f} times its time-out of"
            f" {row['timeout']:,} ms: the process or its watchdog stood still (suspended, or blocked in a call)"
        )
    return ""
