"""Barriers that a rank makes in its teardown, after it raised an exception: they are no calls of its program.

PyTorch's barrier over NCCL is an AllReduce of one element (ProcessGroupNCCL.cpp, barrier): a byte up to 2.3, a float
later. A `finally` around the training, or the end of the group, makes it while the others are in the next call.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import RAISED
from ncclforensics.frames.columns import text_of


def without_teardown_barriers(
    differences: pl.DataFrame,
    calls: pl.DataFrame,
    call_line: pl.DataFrame,
    last_calls: pl.DataFrame,
    process_exit: pl.DataFrame,
) -> pl.DataFrame:
    """Return the differences without those that only the last call of ranks that raised an exception makes."""
    is_by_itself = pl.col("is_first") & pl.col("is_final") & pl.col("how").is_in(RAISED)
    raised = process_exit.filter(is_by_itself)["rank_id"].drop_nulls().unique()
    if differences.is_empty() or raised.is_empty():
        return differences
    there = calls.join(differences, on=["key", "nth"], how="semi").select("rank_id", "key", "nth", "call_line")
    lines = call_line.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("call_line"), "signature", "name", "count")
    last = last_calls.select("rank_id", "key", last="nth")
    there = there.join(lines, on="call_line").join(last, on=["rank_id", "key"])
    is_barrier = (text_of("name") == "AllReduce") & (pl.col("count") == 1) & (pl.col("nth") == pl.col("last"))
    is_teardown = is_barrier & pl.col("rank_id").is_in(raised.implode())
    others = pl.col("signature").filter(~is_teardown)
    explained = there.group_by("key").agg(is_explained=others.n_unique() <= 1).filter("is_explained")
    return differences.join(explained, on="key", how="anti")
