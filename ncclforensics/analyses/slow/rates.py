"""How fast calls move data once all members are there, against sister groups and against the slowest network in use.

A call's transfer is its duration on the member that began last. The others may have filled buffers until then, so that
the rate is the most that it can be: what is too slow by that is slow. Bandwidth as nccl-tests counts it.

What a network can do, its fastest calls show: a slow link is slow in all of them, while hosts that are busy with
something else delay only some.
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
    "best_busbw": pl.Float64(),  # of the fastest tenth of the calls
    "is_steady": pl.Boolean(),  # the fastest tenth takes nearly as long as the others
    "sisters_us": pl.Float64(),  # median of the same call in groups of as many ranks; null: there is none
    "ratio": pl.Float64(),  # to the sisters
}

FASTEST = 0.1  # share of the calls that show what the network can do
STEADY = 0.75  # of the usual transfer, that these take where the network alone decides


@analysis(CALL_RATE, of=("profiled_call",))
def call_rate(call_wait: pl.DataFrame, call_group: pl.DataFrame) -> pl.DataFrame:
    """One row per group and kind of call in which all members wait for each other."""
    of_kind = ["key", "operation", "bytes"]
    calls = call_wait.unique(["key", "nth"])
    rates = calls.group_by(of_kind).agg(
        calls=pl.len(),
        transfer_us=pl.col("transfer_us").median(),
        fastest_us=pl.col("transfer_us").quantile(FASTEST),
        total_us=pl.col("transfer_us").sum(),
    )
    rates = (
        rates.join(call_group.select("key", "members"), on="key")
        .with_columns(size=pl.col("members").list.len())
        .filter(pl.col("size") > 1)
    )
    factors = pl.struct("operation", "size").map_elements(
        lambda row: bus_factor(row["operation"], row["size"]), return_dtype=pl.Float64
    )
    moved = factors * pl.col("bytes") / 1000
    rates = rates.with_columns(
        busbw=moved / pl.col("transfer_us").replace(0.0, None),
        best_busbw=moved / pl.col("fastest_us").replace(0.0, None),
        is_steady=pl.col("fastest_us") >= STEADY * pl.col("transfer_us"),
        sisters=pl.len().over("operation", "bytes", "size"),
    )
    usual = pl.col("transfer_us").median().over("operation", "bytes", "size")
    return (
        rates.with_columns(sisters_us=pl.when(pl.col("sisters") > 2).then(usual))
        .with_columns(ratio=pl.col("transfer_us") / pl.col("sisters_us"))
        .sort("total_us", descending=True)
    )
