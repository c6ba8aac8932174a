"""Topics on measurements: nccl-tests, perftest, GPU-pair bandwidth."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.busbw import DIP_FROM, OUT_OF_PLACE
from ncclforensics.diff import Kind, topic

_TESTS = "the same test on both: all_reduce_perf -b 8 -e 8G -f 2 -g 1 of nccl-tests"


@topic(needs=_TESTS, kind=Kind.SYMPTOM)
def bandwidth(benchmark: pl.DataFrame, measurement: pl.DataFrame) -> pl.DataFrame:
    """A collective is slower or faster at sizes that both runs measured, by more than the noise of equal runs."""
    named = benchmark.select(
        "benchmark",
        "aggregated",
        "graph",
        test=pl.format("{} on {} ranks", pl.col("collective").fill_null("a test"), "nranks"),
    )
    rows = measurement.filter(pl.col("busbw").is_finite() & (pl.col("size") > 0)).join(named, on="benchmark")
    options = [
        pl.col("type").cast(pl.String),
        pl.col("redop").cast(pl.String),
        pl.when(pl.col("root") >= 0).then(pl.format("root {}", "root")),
        pl.when(pl.col("aggregated") > 1).then(pl.format("{} at once", "aggregated")),
        pl.when(pl.col("graph") > 0).then(pl.lit("by a CUDA graph")),
    ]
    # Below a megabyte the time is latency, and busbw is meaningless.
    is_large = pl.col("size") >= DIP_FROM
    return rows.select(
        "source",
        "line",
        "size",
        side=pl.col("half").fill_null(OUT_OF_PLACE),
        what=pl.concat_str(pl.col("test"), *options, separator=" ", ignore_nulls=True),
        value=pl.when(is_large).then("busbw").otherwise("time_us"),
        unit=pl.when(is_large).then(pl.lit("GB/s")).otherwise(pl.lit("us")),
    )


@topic(needs="ib_write_bw -a (also with --use_cuda 0) between the same kind of hosts", kind=Kind.SYMPTOM)
def links_measured(link_measurement: pl.DataFrame) -> pl.DataFrame:
    """One network link is slower or faster in the same test, independently of NCCL."""
    named = link_measurement.with_columns(
        what=pl.concat_str(pl.col("test").fill_null("a link test"), "link_layer", separator=" on ", ignore_nulls=True)
        + pl.when("of_gpu").then(pl.lit(", memory of a GPU")).otherwise(pl.lit(""))
    )
    bandwidths = named.filter(pl.col("bandwidth_GBps").is_not_null() & (pl.col("size") >= DIP_FROM // 16)).select(
        "source", "line", "size", "what", value="bandwidth_GBps", unit=pl.lit("GB/s")
    )
    latencies = named.filter(pl.col("latency_us").is_not_null()).select(
        "source", "line", "size", "what", value="latency_us", unit=pl.lit("us")
    )
    return pl.concat([bandwidths, latencies])


@topic(needs="nvbandwidth, or p2pBandwidthLatencyTest, on both machines", kind=Kind.SYMPTOM)
def pairs_measured(gpu_pair: pl.DataFrame) -> pl.DataFrame:
    """Transfers between GPUs of one host, or with host memory, are slower or faster in the same test."""
    cells = gpu_pair.filter((pl.col("kind") == "bandwidth") & (pl.col("row") != pl.col("column")).fill_null(value=True))
    with_access = pl.when(pl.col("has_peer_access")).then(pl.lit("with peer access"))
    without_access = pl.when(pl.col("has_peer_access").not_()).then(pl.lit("without peer access"))
    named = cells.with_columns(
        what=pl.concat_str(pl.coalesce("test", "tool"), with_access, without_access, separator=" ", ignore_nulls=True)
    )
    ordered = named.sort("value", maintain_order=True)
    least = ordered.unique("matrix", keep="first", maintain_order=True)
    typical = least.drop("value").join(named.group_by("matrix").agg(pl.col("value").median()), on="matrix")
    statistics = {"the slowest pair": least, "the median of pairs": typical}
    return pl.concat(
        rows.select("source", "line", "value", unit=pl.lit("GB/s"), what=pl.format(f"{{}}, {name}", "what"))
        for name, rows in statistics.items()
    )
