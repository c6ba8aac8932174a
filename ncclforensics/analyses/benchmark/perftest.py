"""Bandwidth and latency of one link: perftest, OSU's tests of MPI, ucx_perftest, iperf, and bandwidthTest of a GPU."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis

# GB/s in the unit of a head; `MB/sec` too means 2^20 bytes (perftest, src/perftest_parameters.h).
UNITS = {"Gb/sec": 1 / 8, "MB/sec": 2**20 / 1e9, "MiB/sec": 2**20 / 1e9}

LINK_MEASUREMENT = {
    "table": pl.Int32(),  # number of the table, over all files
    "test": pl.String(),  # its name in the header; null if there is no header
    "device": pl.String(),
    "link_layer": pl.String(),
    "of_gpu": pl.Boolean(),  # the buffers are in GPU memory; null if the test has no header
    "size": pl.Int64(),  # bytes; null of iperf, which sends a stream
    "bandwidth_GBps": pl.Float64(),  # average; 1 GB is 1e9 bytes
    "latency_us": pl.Float64(),  # typical
    **LINE,
}


OF_MPI = 1 / 1000  # GB/s in MB/s of OSU and IMB


@analysis(
    LINK_MEASUREMENT, of=("link_row", "mpi_test_row", "imb_row", "ucx_test", "copy_line", "copy_head", "tcp_interval")
)
def link_measurement(
    link_title: pl.DataFrame,
    link_memory: pl.DataFrame,
    link_test: pl.DataFrame,
    link_head: pl.DataFrame,
    link_row: pl.DataFrame,
    mpi_test: pl.DataFrame,
    imb_test: pl.DataFrame,
    mpi_test_head: pl.DataFrame,
    mpi_test_row: pl.DataFrame,
    imb_row: pl.DataFrame,
    ucx_test: pl.DataFrame,
    copy_line: pl.DataFrame,
    copy_title: pl.DataFrame,
    copy_head: pl.DataFrame,
    pair_row: pl.DataFrame,
    pair_matrix: pl.DataFrame,
    tcp_test: pl.DataFrame,
) -> pl.DataFrame:
    """One row per size that a test of a link measured."""
    parts = [
        _perftest(link_title, link_memory, link_test, link_head, link_row),
        _of_mpi(mpi_test, imb_test, mpi_test_head, [mpi_test_row, imb_row]),
        _ucx(ucx_test),
        _copies(copy_line, copy_title, copy_head, pair_row, pair_matrix),
        tcp_test.drop_nulls("bandwidth_GBps").with_columns(
            test=pl.format("iperf to {}", pl.col("peer").fill_null("?"))
        ),
    ]
    first = 0
    for at, part in enumerate(parts):
        parts[at] = part.with_columns(table=pl.col("table").cast(pl.Int32) + first)
        first += part["table"].n_unique()
    return pl.concat(
        [part.select(*(set(LINK_MEASUREMENT) & set(part.columns))) for part in parts], how="diagonal_relaxed"
    )


def _of_mpi(
    mpi_test: pl.DataFrame, imb_test: pl.DataFrame, mpi_test_head: pl.DataFrame, measured: list[pl.DataFrame]
) -> pl.DataFrame:
    """Return the rows of OSU's and Intel's tests below their heads."""
    heads = mpi_test_head.sort("pos").with_row_index("table").select("source", "pos", "table", kind=text_of("form"))
    of_osu = mpi_test.select("source", "pos", test=pl.format("OSU {}", text_of("test")))
    of_intel = imb_test.select("source", "pos", test=pl.format("IMB {}", text_of("imb_test")))
    heads = heads.join_asof(pl.concat([of_osu, of_intel]).sort("pos"), on="pos", by="source", check_sortedness=False)
    rows = (
        pl.concat(measured, how="diagonal_relaxed")
        .sort("pos")
        .join_asof(heads, on="pos", by="source", check_sortedness=False)
    )
    is_latency = pl.col("kind").is_in(["latency", "imb_latency"])
    return rows.drop_nulls("table").with_columns(
        bandwidth_GBps=pl.when(~is_latency).then(pl.col("value") * OF_MPI),
        latency_us=pl.when(is_latency).then("value"),
    )


def _ucx(ucx_test: pl.DataFrame) -> pl.DataFrame:
    """Return the last line of each run of ucx_perftest; what it measured stands in the box above.

    A run that was cut has no line `Final:`; its lines of each second state the figures since its start, too.
    """
    ordered = ucx_test.sort("pos").with_columns(form=text_of("form"), words=text_of("text_in_box"))
    is_size, is_test = text_of("key") == "Message size", text_of("key") == "Test"
    ordered = ordered.with_columns(
        size=pl.when(is_size).then("words").cast(pl.Int64, strict=False).forward_fill().over("source"),
        test=pl.when(is_test).then("words").forward_fill().over("source"),
    )
    runs = ordered.with_columns(run=(pl.col("form") == "units").cum_sum().over("source"))
    of_runs = runs.filter(pl.col("form").is_in(["final", "thread"]))
    is_last = pl.col("pos") == pl.col("pos").max().over("source", "run")
    last = of_runs.filter((pl.col("form") == "final") | is_last).with_row_index("table")
    return last.with_columns(
        test=pl.format("ucx_perftest {}", pl.col("test").fill_null("")).str.strip_chars(),
        bandwidth_GBps=pl.col("rate") * UNITS["MiB/sec"],
    )


WAYS = {"H2D": "Host to Device", "D2H": "Device to Host", "D2D": "Device to Device"}
COPY_UNITS = {"GB": 1.0, "MB": 1 / 1000}


def _copies(
    copy_line: pl.DataFrame,
    copy_title: pl.DataFrame,
    copy_head: pl.DataFrame,
    pair_row: pl.DataFrame,
    pair_matrix: pl.DataFrame,
) -> pl.DataFrame:
    """Return the rows of bandwidthTest: complete lines, and rows below its head."""
    lines = copy_line.with_columns(copied=text_of("way").replace(WAYS), unit=text_of("copy_unit"))
    titles = copy_title.sort("pos").select("source", "pos", copied=text_of("copied"))
    heads = copy_head.sort("pos").select("source", "pos", unit=text_of("copy_unit"), head="pos")
    matrices = pair_matrix.sort("pos").select("source", "pos", matrix="pos")
    rows = pair_row.sort("pos")
    for context in (titles, heads, matrices):
        rows = rows.join_asof(context, on="pos", by="source", check_sortedness=False)
    rows = rows.filter(pl.col("head") > pl.col("matrix").fill_null(-1)).with_columns(
        copy_size="row", copy_rate=text_of("cells").cast(pl.Float64, strict=False)
    )
    found = pl.concat([lines, rows], how="diagonal_relaxed").drop_nulls("copy_rate").sort("pos")
    return found.with_columns(
        table=pl.struct("source", "copied").rank("dense") - 1,
        test=pl.format("bandwidthTest, {}", pl.col("copied").str.to_lowercase()),
        size="copy_size",
        bandwidth_GBps=pl.col("copy_rate") * pl.col("unit").replace_strict(COPY_UNITS, return_dtype=pl.Float64),
    )


def _perftest(
    link_title: pl.DataFrame,
    link_memory: pl.DataFrame,
    link_test: pl.DataFrame,
    link_head: pl.DataFrame,
    link_row: pl.DataFrame,
) -> pl.DataFrame:
    """Return the rows of perftest below their heads."""
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
