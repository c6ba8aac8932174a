"""How fast calls move data once all members are there, against sister groups and against the slowest network in use.

A call's transfer is its duration on the member that began last. The others may have filled buffers until then, so that
the rate is the most that it can be: what is too slow by that is slow. Bandwidth as nccl-tests counts it.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.collectives import bus_factor
from ncclforensics.frames.registry import analysis

CALL_RATE = {
    "key": pl.String(),
    "members": pl.List(pl.Int32()),
    "operation": pl.String(),
    "bytes": pl.Int64(),
    "calls": pl.Int32(),
    "transfer_us": pl.Float64(),  # median
    "total_us": pl.Float64(),  # of all calls
    "busbw": pl.Float64(),  # GB/s of the busiest link
    "sisters_us": pl.Float64(),  # median of the same call in groups of as many ranks; null: there is none
    "ratio": pl.Float64(),  # to the sisters
}


@analysis(CALL_RATE, of=("profiled_call",))
def call_rate(call_wait: pl.DataFrame, timed_call: pl.DataFrame) -> pl.DataFrame:
    """One row per group and kind of call in which all members wait for each other."""
    of_kind = ["key", "operation", "bytes"]
    calls = call_wait.unique(["key", "nth"])
    rates = calls.group_by(of_kind).agg(
        calls=pl.len(), transfer_us=pl.col("transfer_us").median(), total_us=pl.col("transfer_us").sum()
    )
    members = timed_call.group_by("key").agg(pl.col("members").first())
    rates = rates.join(members, on="key").with_columns(size=pl.col("members").list.len()).filter(pl.col("size") > 1)
    factors = pl.struct("operation", "size").map_elements(
        lambda row: bus_factor(row["operation"], row["size"]), return_dtype=pl.Float64
    )
    rates = rates.with_columns(
        busbw=factors * pl.col("bytes") / pl.col("transfer_us").replace(0.0, None) / 1000,
        sisters=pl.len().over("operation", "bytes", "size"),
    )
    usual = pl.col("transfer_us").median().over("operation", "bytes", "size")
    return (
        rates.with_columns(sisters_us=pl.when(pl.col("sisters") > 2).then(usual))
        .with_columns(ratio=pl.col("transfer_us") / pl.col("sisters_us"))
        .sort("total_us", descending=True)
    )
