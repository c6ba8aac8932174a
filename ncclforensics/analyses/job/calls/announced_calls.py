"""Calls that PyTorch prints before it compares them over the ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL, log level INFO).

A rank that prints a call then waits in a barrier until all members of the process group came. The line does not name
the group, so that only jobs with one group are judged: there all ranks print the same numbers, one after the other
(torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, runCollectiveChecks).
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis

ANNOUNCED_POSITION = {
    "rank": pl.Int32(),
    "sequence": pl.Int64(),  # of the last call that it printed
    "operation": pl.String(),
    "shape": pl.String(),
    **LINE,
}


@analysis(ANNOUNCED_POSITION, of=("announced_call",))
def announced_position(announced_call: pl.DataFrame) -> pl.DataFrame:
    """One row per rank: the last call that it printed; empty where several process groups print theirs."""
    calls = (
        announced_call.with_columns(rank=pl.coalesce("global_rank", "group_rank").cast(pl.Int32))
        .select("rank", "sequence", "pos", "source", "line", operation=text_of("operation"), shape=text_of("shape"))
        .drop_nulls(["rank", "sequence"])
        .sort("rank", "pos")
    )
    step = pl.col("sequence").diff().over("rank")
    operations = calls.group_by("sequence").agg(pl.col("operation").n_unique())
    is_one_group = bool((calls.select(step.fill_null(1)).to_series() == 1).all()) and operations["operation"].max() == 1
    last = calls.group_by("rank", maintain_order=True).last()
    return (last if is_one_group else last.clear()).select(*ANNOUNCED_POSITION)
