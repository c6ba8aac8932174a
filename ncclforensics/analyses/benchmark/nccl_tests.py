"""Runs of nccl-tests and rccl-tests: what was measured at each size, and each run as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.analyses.benchmark.nccl_tests_lines import add_parameters
from ncclforensics.data.busbw import DOUBLED, ELEMENT_BYTES, IN_PLACE, OUT_OF_PLACE, SHRUNK
from ncclforensics.frames.columns import equal_before, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.templates import distinct_rows

MOST_ELEMENTS = 2.0**53  # of a buffer; a row that counts more is damaged
FIGURES = ("time", "algbw", "busbw", "wrong")
AT = ["source", "line"]
ROW = ["benchmark", "row"]
MEASUREMENT = {
    "benchmark": pl.Int32(),
    "row": pl.Int32(),
    "half": pl.Categorical(),  # out-of-place or in-place
    "size": pl.Int64(),  # bytes per rank: the larger of what it sends and what it receives
    "count": pl.Int64(),  # elements, as the table counts them; null in version 1.0
    "label": pl.Categorical(),  # in a column in front of the table that a script added
    "label_head": pl.Categorical(),  # the title of that column
    "type": pl.Categorical(),
    "redop": pl.Categorical(),  # null where there is none
    "root": pl.Int64(),  # -1: the collective has none
    "occurrence": pl.Int32(),  # of this size, type, operation and root: the nth row, from 1
    "time_us": pl.Float64(),  # time of one operation, in microseconds
    "algbw": pl.Float64(),  # GB/s
    "busbw": pl.Float64(),  # GB/s
    "wrong": pl.Float64(),  # elements; null where nothing was checked
    "deviation": pl.Float64(),  # the largest, where the version counts none (up to 2.12)
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the first piece of a torn row
}
BENCHMARK = {
    "benchmark": pl.Int32(),
    "tool": pl.String(),
    "collective": pl.String(),  # name of the program without _perf; null if neither lines nor table show it
    "version": pl.String(),  # of nccl-tests, from 2.17.4 on
    "headers": pl.Int32(),  # NCCL's version code at compile time
    "library": pl.Int32(),  # and at run time
    "nranks": pl.Int64(),  # of the communicator, from the list of devices or from busbw / algbw
    "listed_devices": pl.Int64(),
    "is_cut_in_list": pl.Boolean(),  # nothing stands behind the devices: there may be more
    "sharing_ranks": pl.List(pl.Int64()),
    "communicators": pl.Int64(),  # that run the test side by side
    "hosts": pl.List(pl.String()),
    "gpus": pl.List(pl.String()),  # models
    "parameters": pl.String(),  # values of the line that lists them
    "min_bytes": pl.Int64(),
    "max_bytes": pl.Int64(),
    "step": pl.Int64(),
    "step_kind": pl.String(),  # factor or bytes
    "graph": pl.Int32(),
    "aggregated": pl.Int32(),  # operations launched in one group
    "is_checked": pl.Boolean(),  # some row has a count of wrong elements, or a deviation
    "rows": pl.Int64(),  # with a measurement
    "wrong": pl.Float64(),  # elements in all rows; null where nothing was checked
    "failed_checks": pl.Int64(),  # `Out of bounds values`
    "average": pl.Float64(),  # GB/s, as printed
    "is_below_minimum": pl.Boolean(),  # the average is below NCCL_TESTS_MIN_BW
    "is_complete": pl.Boolean(),  # the footer was printed
    "max_busbw": pl.Float64(),  # GB/s, of both halves
    "max_size": pl.Int64(),  # the size it was measured at
    "last_size": pl.Int64(),  # of the last row with a measurement
    "unfinished_size": pl.Int64(),  # whose measurement did not end, where the run was cut off
    "has_failed": pl.Boolean(),  # the test printed that a call failed
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first
    "last_line": pl.Int32(),
}


@analysis(MEASUREMENT, of=("table_row",))
def measurement(
    table_row: pl.DataFrame, row_rest: pl.DataFrame, table_head: pl.DataFrame, benchmark_line: pl.DataFrame
) -> pl.DataFrame:
    """One row per size and half that was measured; pieces of a torn row are joined."""
    heads = _of_runs("table_head", table_head, benchmark_line, ["unit", "sized_early", "checked", "own_head"])
    units = heads.group_by("benchmark").agg(
        unit=text_of("unit").drop_nulls().first(),
        is_early=pl.col("sized_early").is_not_null().any(),
        checked=text_of("checked").drop_nulls().first(),
        label_head=pl.col("own_head").drop_nulls().first(),
    )
    begun = _of_runs("table_row", table_row, benchmark_line, ["size", "count", "label", "type", "redop", "root"])
    begun = begun.drop("half").sort(*ROW, "line")
    begun = begun.filter(pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in ROW))
    _, measured = distinct_rows(begun, ["benchmark", "type", "redop", "root", "size"])
    begun = begun.with_columns(occurrence=equal_before(measured) + 1)
    checked = text_of("wrong").cast(pl.Float64, strict=False)
    in_ms = (pl.col("unit") == "ms") | (pl.col("unit").is_null() & pl.col("is_early"))
    found = _halves(table_row, row_rest, benchmark_line).join(begun, on=ROW)
    return (
        found.join(units, on="benchmark", how="left")
        .with_columns(
            count=pl.when(~pl.col("is_early").fill_null(value=False)).then("count"),
            time_us=pl.when(in_ms.fill_null(False)).then(1000 * pl.col("time")).otherwise("time"),
            wrong=pl.when((pl.col("checked") == "#wrong") & (checked <= MOST_ELEMENTS)).then(checked),
            deviation=pl.when(pl.col("checked").ne_missing("#wrong")).then(checked),
        )
        .drop("time", "unit", "is_early", "checked")
        .sort(*ROW, pl.col("half") == IN_PLACE)
    )


def _of_runs(frame: str, rows: pl.DataFrame, benchmark_line: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Columns of the lines of a frame, with the run, the row of its table and the half that they belong to."""
    lines = benchmark_line.filter(pl.col("frame") == frame)
    return rows[:, [*AT, *columns]].join(lines[:, [*AT, *ROW, "half"]], on=AT)


def _halves(table_row: pl.DataFrame, row_rest: pl.DataFrame, benchmark_line: pl.DataFrame) -> pl.DataFrame:
    """The figures of each half that was measured."""
    in_figures = [f"in_{name}" for name in FIGURES]
    pieces = pl.concat(
        _of_runs(frame, rows, benchmark_line, [*FIGURES, *in_figures])
        for frame, rows in (("table_row", table_row), ("row_rest", row_rest))
    )
    out_of_place = pieces.filter(pl.col("busbw").is_not_null() | pl.col("wrong").is_not_null()).select(
        *ROW, *FIGURES, half=pl.col("half").fill_null(_half(OUT_OF_PLACE))
    )
    in_place = pieces.filter(pl.col("in_busbw").is_not_null() | pl.col("in_wrong").is_not_null()).select(
        *ROW, *map(pl.Expr.alias, map(pl.col, in_figures), FIGURES), half=_half(IN_PLACE)
    )
    return pl.concat([out_of_place, in_place])


def _half(name: str) -> pl.Expr:
    return pl.lit(name, dtype=MEASUREMENT["half"])


@analysis(BENCHMARK, of=("test_setting", "test_device", "table_head", "table_row", "test_end"))
def benchmark(
    benchmark_line: pl.DataFrame,
    measurement: pl.DataFrame,
    test_setting: pl.DataFrame,
    test_command: pl.DataFrame,
    test_device: pl.DataFrame,
    test_note: pl.DataFrame,
    table_row: pl.DataFrame,
    test_end: pl.DataFrame,
) -> pl.DataFrame:
    """One row per run of nccl-tests or rccl-tests: its settings, devices, footer, and a summary of its table."""
    runs = benchmark_line.group_by("benchmark", maintain_order=True).agg(
        pl.col("source").first(),
        pl.col("line").first(),
        pl.col("line").last().alias("last_line"),
        has_failed=(pl.col("frame") == "test_failure").any(),
        is_cut_in_list=(pl.col("frame").last() == "test_device"),
    )
    setting, device, end = (
        rows.join(benchmark_line.filter(pl.col("frame") == frame), on=AT, how="inner", maintain_order="left")
        for frame, rows in (
            ("test_setting", add_parameters(test_setting)),
            ("test_device", test_device),
            ("test_end", test_end),
        )
    )
    sizes = _of_runs("table_row", table_row, benchmark_line, ["size"])
    begun = sizes.group_by("benchmark").agg(
        begun_row=pl.col("row").max(), begun_size=pl.col("size").sort_by("row").last()
    )
    settings = setting.group_by("benchmark").agg(
        pl.col("version", "headers", "library", "step", "step_kind", "graph", "parameters").drop_nulls().first(),
        *(pl.col(name).drop_nulls().first().alias(alias) for name, alias in _SETTINGS.items()),
        named=text_of("collective").drop_nulls().first(),
        is_amd=(text_of("form") == "rccl").any(),
    )
    devices = device.group_by("benchmark").agg(
        text_of("host").drop_nulls().unique().sort().alias("hosts"),
        pl.col("gpu").unique().sort().alias("gpus"),
        listed_devices=pl.len().cast(pl.Int64),
        communicators=pl.col("group").n_unique().cast(pl.Int64),
        last_rank=pl.col("rank").max().cast(pl.Int64),
        sharing_ranks=pl.col("rank").filter(_shares_gpu(), pl.col("rank").is_unique().all()).cast(pl.Int64).sort(),
    )
    outcome = text_of("outcome")
    form = text_of("form")
    ends = end.group_by("benchmark").agg(
        failed_checks=pl.col("failed").drop_nulls().first(),
        average=pl.col("average").drop_nulls().first(),
        is_below_minimum=((form == "average") & (outcome == "FAILED")).any(),
        is_complete=(form == "average").any(),
        concluded=text_of("collective").drop_nulls().first(),
    )
    best = measurement[:, ["benchmark", "busbw", "size"]].filter(pl.col("busbw").is_finite())
    peaks = best.group_by("benchmark").agg(
        max_busbw=pl.col("busbw").max(), max_size=pl.col("size").get(pl.col("busbw").arg_max())
    )
    tables = measurement.group_by("benchmark").agg(
        rows=pl.col("row").n_unique().cast(pl.Int64),
        wrong=pl.when(pl.col("wrong").is_not_null().any()).then(pl.col("wrong").sum()),
        is_checked=(pl.col("wrong").is_not_null() | pl.col("deviation").is_not_null()).any(),
        last_size=pl.col("size").last(),
        last_row=pl.col("row").max(),
        is_half=pl.col("half").filter(pl.col("row") == pl.col("row").max()).n_unique() == 1,
        is_paired=(pl.col("half") == IN_PLACE).any() & (pl.col("half") == OUT_OF_PLACE).any(),
    )
    for columns in (settings, devices, ends, peaks, tables, begun):
        runs = runs.join(columns, on="benchmark", how="left", maintain_order="left")
    typed = test_command.select("source", "line", typed=text_of("collective"))
    reduced = test_note.drop_nulls("maxbytes").select("source", "line", reduced_line="line", reduced="maxbytes")
    runs = runs.sort("line").join_asof(
        typed.sort("line"), on="line", by="source", allow_exact_matches=False, check_sortedness=False
    )
    runs = runs.join_asof(reduced.sort("line"), on="line", by="source", strategy="forward", check_sortedness=False)
    runs = runs.sort("benchmark")
    for columns in (_busbw_shares(measurement), _sizes_per_count(measurement), _tables_told_apart(measurement)):
        runs = runs.join(columns, on="benchmark", how="left", maintain_order="left")
    flags = ("is_complete", "is_below_minimum", "is_checked", "is_half", "is_paired")
    runs = runs.with_columns(pl.col("rows").fill_null(0), *(pl.col(name).fill_null(value=False) for name in flags))
    is_reduced = (pl.col("reduced_line") <= pl.col("last_line")).fill_null(value=False)
    runs = runs.with_columns(
        collective=pl.coalesce("named", "concluded", "typed", _collective_of_table()),
        tool=pl.when("is_amd").then(pl.lit("rccl-tests")).otherwise(pl.lit("nccl-tests")),
        max_bytes=pl.when(is_reduced).then("reduced").otherwise("max_bytes"),
    )
    runs = runs.with_columns(nranks=_nranks(), unfinished_size=pl.when(~pl.col("is_complete")).then(_unfinished_size()))
    return runs.sort("source", "line")


_SETTINGS = {"minbytes": "min_bytes", "maxbytes": "max_bytes", "agg_iters": "aggregated"}


def _busbw_shares(measurement: pl.DataFrame) -> pl.DataFrame:
    """Return bounds of busbw / algbw that agree with the rounding of all rows of a benchmark, if there are any."""
    is_rounded = (pl.col("busbw") >= 1) & pl.col("algbw").is_finite() & pl.col("busbw").is_finite()
    low = (pl.col("busbw") - _rounding("busbw")) / (pl.col("algbw") + _rounding("algbw"))
    high = (pl.col("busbw") + _rounding("busbw")) / (pl.col("algbw") - _rounding("algbw"))
    bounds = (
        measurement[:, ["benchmark", "algbw", "busbw"]]
        .filter(is_rounded)
        .group_by("benchmark")
        .agg(least=low.max(), most=high.min())
    )
    return bounds.filter(pl.col("least") <= pl.col("most"))


def _sizes_per_count(measurement: pl.DataFrame) -> pl.DataFrame:
    """Return how often the counted elements of a benchmark make up the size, unless its rows differ (`multiple`).

    That is 1, or the number of ranks: all_gather, reduce_scatter, alltoall, gather and scatter count the elements for
    one rank, and give the size for all of them (nccl-tests, src/*.cu: GetCollByteCount).
    """
    counts = measurement[:, ["benchmark", "type", "size", "count"]]
    counted = counts.filter((pl.col("count") > 0) & (pl.col("size") > 0))
    width = text_of("type").replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    multiples = counted.select("benchmark", multiple=pl.col("size") / (pl.col("count") * width))
    multiple = pl.col("multiple")
    found = multiples.group_by("benchmark").agg(multiple.first(), differ=multiple.n_unique() > 1)
    is_whole = (pl.col("multiple") > 0) & (pl.col("multiple") == pl.col("multiple").floor())
    return found.filter(~pl.col("differ") & is_whole).drop("differ")


def _rounding(name: str) -> pl.Expr:
    """Largest rounding error of a printed bandwidth: two decimals, fewer for large ones from 2.17.3 on."""
    return pl.when(pl.col(name) < 1000).then(0.0051).when(pl.col(name) < 1e4).then(0.051).otherwise(0.51)


def _shares_gpu() -> pl.Expr:
    """Whether a rank's GPU is that of another rank; partitions of a GPU have its bus id, too.

    A bus without its domain ([0x01], up to 2.12) names no GPU: those of a GH200 or of an Azure VM differ in the domain.
    """
    name, is_one = pl.col("gpu").cast(pl.String), pl.struct("host", "device", "bus").is_duplicated()
    has_domain = text_of("bus").str.contains(":", literal=True)
    return is_one & has_domain & pl.col("host").is_not_null() & ~name.str.contains("MIG", literal=True)


def _nranks() -> pl.Expr:
    """The number of ranks: from the highest listed rank, the counts, or the only one that fits busbw / algbw."""
    collective, bounds = pl.col("collective"), (pl.col("least"), pl.col("most"))
    is_doubled = collective.is_in(DOUBLED).fill_null(value=False)
    is_shrunk = collective.is_in(SHRUNK).fill_null(value=False) | (pl.col("most") < 1)
    low, high = (
        pl.when(is_doubled)
        .then(2 / (2 - pl.min_horizontal(bound, 1.9999)))
        .when(is_shrunk)
        .then(1 / (1 - pl.min_horizontal(bound, 0.9999)))
        for bound in bounds
    )
    is_one = pl.col("communicators").fill_null(1) == 1
    return (
        pl.when(pl.col("last_rank").is_not_null())
        .then(pl.when(is_one).then(pl.col("last_rank") + 1))
        .when(pl.col("multiple") > 1)
        .then(pl.col("multiple").cast(pl.Int64))
        .when(low.ceil() == high.floor())
        .then(low.ceil().cast(pl.Int64, strict=False))
    )


def _tables_told_apart(measurement: pl.DataFrame) -> pl.DataFrame:
    """Of each benchmark, what `_collective_of_table` needs of its rows."""
    has_check = pl.col("wrong").is_not_null() | pl.col("deviation").is_not_null()
    is_out, is_in = (pl.col("half") == half for half in (OUT_OF_PLACE, IN_PLACE))
    return measurement.group_by("benchmark").agg(
        is_reduction=(text_of("redop") != "none").any(),
        is_rooted=(pl.col("root") >= 0).any(),
        has_busbw=(pl.col("busbw") > 0).any(),
        is_checked_out_of_place_alone=(has_check & is_out).any() & is_in.any() & ~(has_check & is_in).any(),
        is_counted=pl.col("wrong").is_not_null().all(),
    )


def _collective_of_table() -> pl.Expr:
    """The only collective that fits the columns of a table, its counts and its busbw / algbw; else null.

    `least`, `most`: bounds of busbw / algbw, which is near 1 for many ranks; `multiple`: how often the counted elements
    make up the size, which is the number of ranks where they are counted for one rank.
    """
    is_below, multiple = (pl.col("most") < 1).fill_null(value=False), pl.col("multiple")
    is_whole = pl.col("least").is_not_null() & (pl.col("least") <= 1) & (pl.col("most") >= 1)
    is_whole &= multiple.fill_null(1) == 1
    by_share = pl.when(pl.col("most").is_not_null()).then(is_below)
    by_count = pl.when(multiple > 1).then(True).when(~is_below).then(False)
    is_known = multiple.is_not_null() & pl.col("has_busbw")  # a single rank has a busbw of 0
    is_per_rank = pl.when(is_known).then(by_count).otherwise(by_share)
    rooted = pl.when("is_reduction").then(pl.lit("reduce")).otherwise(pl.lit("broadcast"))
    return (
        pl.when("is_rooted")
        .then(pl.when(is_whole).then(rooted))
        .when(is_per_rank.is_null())
        .then(None)
        # In place it cannot be checked. Old versions print `sum` for these, too.
        .when("is_checked_out_of_place_alone")
        .then(pl.when(is_per_rank).then(pl.lit("alltoall")).otherwise(pl.lit("sendrecv")))
        .when("is_reduction")
        .then(pl.when(is_per_rank).then(pl.lit("reduce_scatter")).otherwise(pl.lit("all_reduce")))
        .when(is_per_rank & pl.col("is_counted") & is_below)
        .then(pl.lit("all_gather"))
    )


def _unfinished_size() -> pl.Expr:
    """The size that was being measured when the table ended; null if it is not known."""
    last, step = pl.col("last_size").cast(pl.Int128), pl.col("step")
    following = pl.when(pl.col("step_kind") == "factor").then(last * step).otherwise(last + step)
    is_next = (pl.col("rows") > 0) & (step != 0) & (last < following) & (following <= pl.col("max_bytes"))
    return (
        pl.when(pl.col("begun_row") > pl.col("last_row").fill_null(0))
        .then("begun_size")
        .when((pl.col("rows") > 0) & pl.col("is_half") & pl.col("is_paired"))
        .then("last_size")
        .when(is_next)
        .then(following.cast(pl.Int64, strict=False))
    )
