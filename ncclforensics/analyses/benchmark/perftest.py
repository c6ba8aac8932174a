"""Runs of perftest: bandwidth and latency of one network link."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

# GB/s in the unit of a head; `MB/sec` too means 2^20 bytes (perftest, src/perftest_parameters.h).
UNITS = {"Gb/sec": 1 / 8, "MB/sec": 2**20 / 1e9, "MiB/sec": 2**20 / 1e9}

LINK_MEASUREMENT = {
    "table": pl.Int32(),  # number of the table, over all files
    "test": pl.String(),  # its name in the header; null if there is no header
    "device": pl.String(),
    "link_layer": pl.String(),
    "of_gpu": pl.Boolean(),  # the buffers are in GPU memory; null if the test has no header
    "size": pl.Int64(),  # bytes
    "bandwidth_GBps": pl.Float64(),  # average; 1 GB is 1e9 bytes
    "latency_us": pl.Float64(),  # typical
    "source": pl.Int32(),
    "line": pl.Int32(),
}


@analysis(LINK_MEASUREMENT, of=("link_row",))
def link_measurement(
    link_title: pl.DataFrame,
    link_memory: pl.DataFrame,
    link_test: pl.DataFrame,
    link_head: pl.DataFrame,
    link_row: pl.DataFrame,
) -> pl.DataFrame:
    """One row per size that perftest measured."""
    form = text_of("form")
    kind = pl.when(form == "bandwidth").then(pl.lit("BW")).otherwise(pl.lit("Latency"))
    titles = link_title.select(
        "source", "pos", title=pl.col("pos"), test=pl.format("{} {} Test", text_of("verb"), kind)
    )
    heads = link_head.sort("pos").select(
        "source", "pos", head=pl.col("pos"), unit=text_of("unit").replace_strict(UNITS, default=None)
    )
    heads = heads.with_row_index("table")
    headers = link_test.select(
        "source",
        "pos",
        device=text_of("device"),
        link_layer=text_of("link_layer"),
    )
    devices = headers.filter(pl.col("device").is_not_null()).select("source", "pos", "device", device_pos="pos")
    layers = headers.filter(pl.col("link_layer").is_not_null()).select("source", "pos", "link_layer", layer_pos="pos")
    # perftest prints the line on CUDA before the title (and after the previous table), the line on ROCm after it.
    memories = link_memory.select("source", "pos", memory_pos="pos")
    before = link_row.select("source", "pos", before="pos").sort("pos")
    titles = titles.sort("pos").join_asof(before, on="pos", by="source", check_sortedness=False)
    rows = link_row.sort("pos")
    for context in (heads, titles, devices, layers, memories):
        rows = rows.join_asof(context.sort("pos"), on="pos", by="source", check_sortedness=False)
    title = pl.col("title").fill_null(-1)  # lines above it belong to an earlier table
    is_of_gpu = (pl.col("memory_pos") > pl.col("before").fill_null(-1)).fill_null(value=False)
    return rows.filter(pl.col("head").is_not_null()).with_columns(
        device=pl.when(pl.col("device_pos") >= title).then("device"),
        link_layer=pl.when(pl.col("layer_pos") >= title).then("link_layer"),
        of_gpu=pl.when(pl.col("title").is_not_null()).then(is_of_gpu),
        bandwidth_GBps=pl.col("average") * pl.col("unit"),
        latency_us="typical",
    )
