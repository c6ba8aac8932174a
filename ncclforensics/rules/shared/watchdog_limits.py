"""Time-outs of PyTorch's watchdog: which works, limits that are short, and works that waited far beyond theirs."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.names import ranks_text, some_of

MOST_WORKS = 3  # in a title
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


def works_text(rows: pl.DataFrame) -> str:
    """Name the works of the watchdogs, each with its ranks where these differ.

    >>> works_text(pl.DataFrame({"rank": [4, 1], "sequence": [20, 369]}))
    '20 (rank 4), 369 (rank 1)'
    """
    by_work = (
        rows.drop_nulls("sequence").group_by("sequence").agg(pl.col("rank").drop_nulls().unique()).sort("sequence")
    )
    works = dict(by_work.iter_rows())
    if len(works) == 1:
        return str(next(iter(works)))
    return some_of(
        [f"{work} ({ranks_text(ranks)})" if ranks else f"{work}" for work, ranks in works.items()], MOST_WORKS
    )
