"""Runs of nccl-tests whose hosts are known, for comparing runs of one test with each other."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.busbw import LARGE
from ncclforensics.frames.registry import analysis

HOST_RUN = {
    "benchmark": pl.Int32(),
    "collective": pl.String(),
    "models": pl.String(),  # of the GPUs
    "type": pl.String(),
    "largest": pl.Int64(),  # bytes
    "ranks_per_host": pl.Float64(),
    "hosts": pl.List(pl.String()),
    "host_count": pl.UInt32(),
    "busbw": pl.Float64(),  # GB/s, the best at large sizes
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the run
    "best_line": pl.Int32(),
}
# Columns that are equal for runs of the same test. Their number of hosts, `host_count`, may differ.
SAME_TEST = ["collective", "models", "type", "largest", "ranks_per_host"]


@analysis(HOST_RUN, of=("benchmark",))
def host_run(benchmark: pl.DataFrame, measurement: pl.DataFrame) -> pl.DataFrame:
    """One row per run that lists its hosts and measured a large size."""
    large = measurement.filter((pl.col("size") >= LARGE) & pl.col("busbw").is_finite())
    best = large.group_by("benchmark").agg(
        pl.col("type").first(),
        busbw=pl.col("busbw").max(),
        best_line=pl.col("line").sort_by("busbw").last(),
        largest=pl.col("size").max(),
    )
    runs = benchmark.filter(pl.col("hosts").list.len() > 0).join(best, on="benchmark", maintain_order="left")
    count = pl.col("hosts").list.len()
    return runs.with_columns(
        host_count=count, models=pl.col("gpus").list.join(","), ranks_per_host=pl.col("nranks") / count
    )
