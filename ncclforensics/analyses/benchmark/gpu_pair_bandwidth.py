"""Bandwidth and latency between GPUs, ranks or hosts: nvbandwidth, p2pBandwidthLatencyTest, ncclforensics capture."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis

GPU_PAIR = {
    "matrix": pl.Int32(),  # number of the matrix, over all files
    "tool": pl.String(),  # nvbandwidth, p2pBandwidthLatencyTest or ncclforensics capture
    "ends": pl.String(),  # what rows and columns are numbers of: GPU, rank or host
    "test": pl.String(),  # its name
    "kind": pl.String(),  # bandwidth (GB/s) or latency (us); null for a rehearsal, whose figures are not the machine's
    "has_peer_access": pl.Boolean(),  # null if the tool does not print it
    "row": pl.Int32(),  # the GPU of the table's row; null if that is host memory, or all GPUs
    "column": pl.Int32(),  # the GPU of the table's column
    "value": pl.Float64(),
    **LINE,
}

CAPTURE = "capture"  # form of ncclforensics capture
P2P_TEST_FORMS = ("access", "bandwidth", "latency")  # forms of p2pBandwidthLatencyTest
IN_NANOSECONDS = ("host_latency", "pair_latency")


@analysis(GPU_PAIR, of=("pair_matrix",))
def gpu_pair(
    pair_test: pl.DataFrame,
    pair_matrix: pl.DataFrame,
    pair_columns: pl.DataFrame,
    pair_row: pl.DataFrame,
    copy_head: pl.DataFrame,
) -> pl.DataFrame:
    """One row per matrix cell with a value."""
    form = text_of("form")
    p2p_test = pl.concat_str(
        text_of("direction") + "directional", "P2P=" + text_of("peers"),
        separator=" ", ignore_nulls=True,
    )  # fmt: skip
    matrices = (
        pair_matrix.sort("pos")
        .with_row_index("matrix")
        .select(
            "source",
            "pos",
            "matrix",
            "form",
            matrix_pos="pos",
            tool=pl.when(form.is_in(P2P_TEST_FORMS))
            .then(pl.lit("p2pBandwidthLatencyTest"))
            .when(form == CAPTURE)
            .then(pl.lit("ncclforensics capture"))
            .otherwise(pl.lit("nvbandwidth")),
            ends=pl.coalesce(text_of("end"), pl.lit("GPU")),
            p2p_test=pl.when(form == CAPTURE).then("pairs of " + text_of("members")).otherwise(p2p_test),
            part=text_of("part"),
            words=pl.format("memcpy {} {} {} GPU", text_of("engine"), text_of("side"), text_of("arrow")),
            has_gpu_rows=form.is_in([*P2P_TEST_FORMS, CAPTURE]) | (text_of("side") == "GPU").fill_null(value=False),
            kind=pl.when(form == CAPTURE)
            .then(pl.when(pl.col("rehearsal").is_null()).then(text_of("quantity")))
            .when(form.is_in(["latency", *IN_NANOSECONDS]))
            .then(pl.lit("latency"))
            .otherwise(pl.lit("bandwidth")),
            has_peer_access=text_of("peers") == "Enabled",
        )
    )
    tests = pair_test.sort("pos").select("source", "pos", test_pos="pos", nvbandwidth_test=text_of("test"))
    columns = pair_columns.sort("pos").select(
        "source", "pos", columns=pl.coalesce(text_of("columns"), text_of("marginless_columns"))
    )
    rows = pair_row.sort("pos").select("source", "line", "pos", "row", cells=text_of("cells"))
    copies = copy_head.sort("pos").select("source", "pos", copy_pos="pos")
    for context in (matrices, tests, columns, copies):
        rows = rows.join_asof(context, on="pos", by="source", check_sortedness=False)
    # A test may print a matrix whose title is unrecognised: its rows do not belong to the matrix before it.
    is_titled = pl.col("matrix").is_not_null() & (
        pl.col("matrix_pos") > pl.max_horizontal("test_pos", "copy_pos").fill_null(-1)
    )
    listed = rows.filter(is_titled & pl.col("columns").is_not_null()).with_columns(
        pl.col("cells", "columns").str.split(" ").list.filter(pl.element() != "")
    )
    complete = listed.filter(pl.col("cells").list.len() == pl.col("columns").list.len())
    is_nvbandwidth = pl.col("tool") == "nvbandwidth"
    return (
        complete.explode("cells", "columns")
        .with_columns(
            test=pl.when(is_nvbandwidth)
            .then(pl.concat_str(pl.coalesce("nvbandwidth_test", "words"), "part", separator=" ", ignore_nulls=True))
            .otherwise("p2p_test"),
            row=pl.when("has_gpu_rows").then("row"),
            column=pl.col("columns").cast(pl.Int32, strict=False),
            value=pl.col("cells").cast(pl.Float64, strict=False)
            / pl.when(form.is_in(IN_NANOSECONDS)).then(1000).otherwise(1),
        )
        .filter(pl.col("value").is_not_null())
    )
