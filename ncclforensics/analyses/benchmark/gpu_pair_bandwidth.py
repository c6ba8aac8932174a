"""What nvbandwidth and p2pBandwidthLatencyTest measured between the GPUs of a host."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

PAIR = {
    "matrix": pl.Int32(),  # number of the matrix, over all files
    "tool": pl.String(),  # nvbandwidth or p2pBandwidthLatencyTest
    "test": pl.String(),  # as it is called
    "kind": pl.String(),  # bandwidth (GB/s) or latency (us)
    "has_peer_access": pl.Boolean(),  # GPUs reach one another directly; null where the tool does not say
    "row": pl.Int32(),  # the GPU at the left; null where that is the host's memory, or all GPUs
    "column": pl.Int32(),
    "value": pl.Float64(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}


OF_PAIRS = ("access", "bandwidth", "latency")  # forms of p2pBandwidthLatencyTest
IN_NANOSECONDS = ("host_latency", "pair_latency")


@analysis(PAIR, of=("pair_matrix",))
def gpu_pair(
    pair_test: pl.DataFrame, pair_matrix: pl.DataFrame, pair_columns: pl.DataFrame, pair_row: pl.DataFrame
) -> pl.DataFrame:
    """One row per cell of a matrix that holds a figure."""
    form = text_of("form")
    words = pl.concat_str(
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
            headed="pos",
            tool=pl.when(form.is_in(OF_PAIRS)).then(pl.lit("p2pBandwidthLatencyTest")).otherwise(pl.lit("nvbandwidth")),
            words=words,
            part=text_of("part"),
            of_gpus=form.is_in(OF_PAIRS) | (text_of("side") == "GPU").fill_null(value=False),
            kind=pl.when(form.is_in(["latency", *IN_NANOSECONDS]))
            .then(pl.lit("latency"))
            .otherwise(pl.lit("bandwidth")),
            has_peer_access=text_of("peers") == "Enabled",
        )
    )
    tests = pair_test.sort("pos").select("source", "pos", began="pos", named=text_of("test"))
    columns = pair_columns.sort("pos").select("source", "pos", columns=text_of("columns"))
    rows = pair_row.sort("pos").select("source", "line", "pos", "row", cells=text_of("cells"))
    for more in (matrices, tests, columns):
        rows = rows.join_asof(more, on="pos", by="source", check_sortedness=False)
    # Rows of a test whose matrix has a head that is not known are not those of the matrix before it.
    is_headed = pl.col("matrix").is_not_null() & (pl.col("headed") > pl.col("began").fill_null(-1))
    listed = rows.filter(is_headed & pl.col("columns").is_not_null()).with_columns(
        pl.col("cells", "columns").str.split(" ").list.filter(pl.element() != "")
    )
    whole = listed.filter(pl.col("cells").list.len() == pl.col("columns").list.len())
    is_named = pl.col("tool") == "nvbandwidth"
    return (
        whole.explode("cells", "columns")
        .with_columns(
            test=pl.when(is_named)
            .then(pl.concat_str("named", "part", separator=" ", ignore_nulls=True))
            .otherwise("words"),
            row=pl.when("of_gpus").then("row"),
            column=pl.col("columns").cast(pl.Int32),
            value=pl.col("cells").cast(pl.Float64, strict=False)
            / pl.when(form.is_in(IN_NANOSECONDS)).then(1000).otherwise(1),
        )
        .filter(pl.col("value").is_not_null())
    )
