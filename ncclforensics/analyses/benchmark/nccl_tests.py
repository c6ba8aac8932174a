"""Runs of nccl-tests and rccl-tests: what was measured at each size, and each run as a whole."""

from __future__ import annotations

from math import ceil, floor
from typing import Any

import polars as pl

from ncclforensics.analyses.benchmark.nccl_tests_lines import add_parameters
from ncclforensics.data.busbw import DOUBLED, ELEMENT_BYTES, IN_PLACE, OUT_OF_PLACE, SHRUNK
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.templates import distinct_rows

MOST_ELEMENTS = 2.0**53  # of a buffer; a row that counts more is damaged
FIGURES = ("time", "algbw", "busbw", "wrong")
MEASUREMENT = {
    "benchmark": pl.Int32(),
    "row": pl.Int32(),
    "half": pl.String(),  # out-of-place or in-place
    "size": pl.Int64(),  # bytes per rank: the larger of what it sends and what it receives
    "count": pl.Int64(),  # elements, as the table counts them; null in version 1.0
    "label": pl.Categorical(),  # in a column in front of the table that a script added
    "type": pl.Categorical(),
    "redop": pl.Categorical(),  # null where there is none
    "root": pl.Int64(),  # -1: the collective has none
    "occurrence": pl.Int32(),  # how often this size, type, operation and root was measured so far, from 1
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
    at = ["source", "line"]
    lines = benchmark_line.filter(pl.col("frame").is_in(["table_row", "row_rest"]))
    table_row_key = ["benchmark", "row"]
    heads = table_head.join(benchmark_line.filter(pl.col("frame") == "table_head"), on=at).group_by("benchmark")
    units = heads.agg(
        unit=text_of("unit").drop_nulls().first(),
        is_early=pl.col("sized_early").is_not_null().any(),
        checked=text_of("checked").drop_nulls().first(),
    )
    rows = table_row.join(lines.filter(pl.col("frame") == "table_row"), on=at)
    begun = rows.select(*table_row_key, *at, "size", "count", "label", "type", "redop", "root").unique(
        table_row_key, keep="first", maintain_order=True
    )
    pieces = pl.concat(
        [rows, row_rest.join(lines.filter(pl.col("frame") == "row_rest"), on=at)], how="diagonal_relaxed"
    )
    out_of_place = pieces.filter(pl.col("busbw").is_not_null() | pl.col("wrong").is_not_null()).select(
        *table_row_key, *FIGURES, half=pl.coalesce("half", pl.lit(OUT_OF_PLACE))
    )
    in_place = pieces.filter(pl.col("in_busbw").is_not_null() | pl.col("in_wrong").is_not_null()).select(
        *table_row_key, *(pl.col(f"in_{name}").alias(name) for name in FIGURES), half=pl.lit(IN_PLACE)
    )
    checked = text_of("wrong").cast(pl.Float64, strict=False)
    in_ms = (pl.col("unit") == "ms") | (pl.col("unit").is_null() & pl.col("is_early"))
    found = (
        pl.concat([out_of_place, in_place], how="vertical_relaxed")
        .join(begun, on=table_row_key)
        .join(units, on="benchmark", how="left")
        .with_columns(
            count=pl.when(~pl.col("is_early").fill_null(value=False)).then("count"),
            time_us=pl.when(in_ms.fill_null(False)).then(1000 * pl.col("time")).otherwise("time"),
            wrong=pl.when((pl.col("checked") == "#wrong") & (checked <= MOST_ELEMENTS)).then(checked),
            deviation=pl.when(pl.col("checked").ne_missing("#wrong")).then(checked),
        )
        .sort(*table_row_key, pl.col("half") == IN_PLACE)
    )
    _, measured = distinct_rows(found, ["benchmark", "half", "type", "redop", "root", "size"])
    return found.with_columns(measured.alias("measured")).with_columns(
        occurrence=pl.int_range(1, pl.len() + 1).over("measured")
    )


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
    at = ["source", "line"]
    runs = benchmark_line.group_by("benchmark", maintain_order=True).agg(
        pl.col("source").first(),
        pl.col("line").first(),
        pl.col("line").last().alias("last_line"),
        has_failed=(pl.col("frame") == "test_failure").any(),
    )
    frames = {
        "test_setting": add_parameters(test_setting),
        "test_device": test_device,
        "test_end": test_end,
        "table_row": table_row,
    }
    by_frame = {
        frame: rows.join(benchmark_line.filter(pl.col("frame") == frame), on=at, how="inner", maintain_order="left")
        for frame, rows in frames.items()
    }
    settings = (
        by_frame["test_setting"]
        .group_by("benchmark")
        .agg(
            pl.col("version", "headers", "library", "step", "step_kind", "graph", "parameters").drop_nulls().first(),
            *(pl.col(name).drop_nulls().first().alias(alias) for name, alias in _SETTINGS.items()),
            named=text_of("collective").drop_nulls().first(),
            is_amd=(text_of("form") == "rccl").any(),
        )
    )
    devices = (
        by_frame["test_device"]
        .group_by("benchmark")
        .agg(
            text_of("host").drop_nulls().unique().sort().alias("hosts"),
            pl.col("gpu").unique().sort().alias("gpus"),
            listed_devices=pl.len().cast(pl.Int64),
            communicators=pl.col("group").n_unique().cast(pl.Int64),
            last_rank=pl.col("rank").max().cast(pl.Int64),
        )
    )
    outcome = text_of("outcome")
    form = text_of("form")
    ends = (
        by_frame["test_end"]
        .group_by("benchmark")
        .agg(
            failed_checks=pl.col("failed").drop_nulls().first(),
            average=pl.col("average").drop_nulls().first(),
            is_below_minimum=((form == "average") & (outcome == "FAILED")).any(),
            is_complete=(form == "average").any(),
            concluded=text_of("collective").drop_nulls().first(),
        )
    )
    best = measurement.filter(pl.col("busbw").is_finite()).sort("busbw", descending=True, maintain_order=True)
    peaks = best.group_by("benchmark", maintain_order=True).agg(
        max_busbw=pl.col("busbw").first(), max_size=pl.col("size").first()
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
    begun = (
        by_frame["table_row"]
        .group_by("benchmark")
        .agg(begun_row=pl.col("row").max(), begun_size=pl.col("size").sort_by("row").last())
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
    for columns in (_busbw_shares(measurement), _sizes_per_count(measurement)):
        runs = runs.join(columns, on="benchmark", how="left", maintain_order="left")
    numbers = measurement["benchmark"]
    starts, stops = (numbers.search_sorted(runs["benchmark"], side=side) for side in ("left", "right"))
    rows = [
        _finished_row(row, measurement.slice(start, stop - start))
        for row, start, stop in zip(runs.iter_rows(named=True), starts, stops, strict=True)
    ]
    return pl.DataFrame(rows, schema=BENCHMARK, orient="row").sort("source", "line")


_SETTINGS = {"minbytes": "min_bytes", "maxbytes": "max_bytes", "agg_iters": "aggregated"}


def _finished_row(row: dict[str, Any], measured: pl.DataFrame) -> dict[str, Any]:
    """Return the columns of BENCHMARK; add those that follow from several lines together.

    `measured`: the rows of `measurement` of this run.
    """
    family = row["named"] or row["concluded"] or row["typed"]
    share = (row["least"], row["most"]) if row["least"] is not None else None
    multiple = int(row["multiple"]) if row["multiple"] is not None else None
    row["collective"] = family or _collective_of_table(measured, share, multiple)
    row["nranks"] = _nranks(row, share, multiple)
    row["tool"] = "rccl-tests" if row["is_amd"] else "nccl-tests"
    row["rows"] = row["rows"] or 0
    row["is_complete"] = bool(row["is_complete"])
    row["is_below_minimum"], row["is_checked"] = bool(row["is_below_minimum"]), bool(row["is_checked"])
    if row["reduced_line"] is not None and row["reduced_line"] <= row["last_line"]:
        row["max_bytes"] = row["reduced"]
    row["unfinished_size"] = None if row["is_complete"] else _unfinished_size(row)
    return {name: row[name] for name in BENCHMARK}


def _busbw_shares(measurement: pl.DataFrame) -> pl.DataFrame:
    """Return bounds of busbw / algbw that agree with the rounding of all rows of a benchmark, if there are any."""
    is_rounded = (pl.col("busbw") >= 1) & pl.col("algbw").is_finite() & pl.col("busbw").is_finite()
    low = (pl.col("busbw") - _rounding("busbw")) / (pl.col("algbw") + _rounding("algbw"))
    high = (pl.col("busbw") + _rounding("busbw")) / (pl.col("algbw") - _rounding("algbw"))
    bounds = measurement.filter(is_rounded).group_by("benchmark").agg(least=low.max(), most=high.min())
    return bounds.filter(pl.col("least") <= pl.col("most"))


def _sizes_per_count(measurement: pl.DataFrame) -> pl.DataFrame:
    """Return how often the counted elements of a benchmark make up the size, unless its rows differ (`multiple`).

    That is 1, or the number of ranks: all_gather, reduce_scatter, alltoall, gather and scatter count the elements for
    one rank, and give the size for all of them (nccl-tests, src/*.cu: GetCollByteCount).
    """
    counted = measurement.filter((pl.col("count") > 0) & (pl.col("size") > 0))
    width = text_of("type").replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    multiples = (pl.col("size") / (pl.col("count") * width)).alias("multiple")
    found = counted.group_by("benchmark").agg(multiples.first(), differ=multiples.n_unique() > 1)
    is_whole = (pl.col("multiple") > 0) & (pl.col("multiple") == pl.col("multiple").floor())
    return found.filter(~pl.col("differ") & is_whole).drop("differ")


def _rounding(name: str) -> pl.Expr:
    """Largest rounding error of a printed bandwidth: two decimals, fewer for large ones from 2.17.3 on."""
    return pl.when(pl.col(name) < 1000).then(0.0051).when(pl.col(name) < 1e4).then(0.051).otherwise(0.51)


def _nranks(row: dict[str, Any], share: tuple[float, float] | None, multiple: int | None) -> int | None:
    """Return the number of ranks: from the highest listed rank, the counts, or the only one that fits busbw / algbw."""
    if row["last_rank"] is not None and (row["communicators"] or 1) == 1:
        return int(row["last_rank"]) + 1
    if row["last_rank"] is not None:
        return None
    if multiple is not None and multiple > 1:
        return multiple
    if share is None:
        return None
    if row["collective"] in DOUBLED:
        low, high = (2 / (2 - min(value, 1.9999)) for value in share)
    elif row["collective"] in SHRUNK or share[1] < 1:
        low, high = (1 / (1 - min(value, 0.9999)) for value in share)
    else:
        return None
    return ceil(low) if ceil(low) == floor(high) else None


def _collective_of_table(measured: pl.DataFrame, share: tuple[float, float] | None, multiple: int | None) -> str | None:
    """Return the only collective that fits the columns of a table, its counts and its busbw / algbw; else None.

    `share`: bounds of busbw / algbw, which is near 1 for many ranks; `multiple`: how often the counted elements make up
    the size, which is the number of ranks where they are counted for one rank.
    """
    low, high = share or (0.0, float("inf"))
    is_reduction = measured["redop"].drop_nulls().cast(pl.String).ne("none").any()
    if (measured["root"] >= 0).any():
        is_whole = share is not None and low <= 1 <= high and (multiple or 1) == 1
        return ("reduce" if is_reduction else "broadcast") if is_whole else None
    if multiple is None or not (measured["busbw"] > 0).any():  # a single rank has a busbw of 0
        is_per_rank = None if share is None else high < 1
    else:
        is_per_rank = multiple > 1 or (None if high < 1 else False)
    if is_per_rank is None:
        return None
    checked = pl.col("wrong").is_not_null() | pl.col("deviation").is_not_null()
    is_checked = dict(measured.group_by("half").agg(checked.any()).iter_rows())
    if is_checked.get(OUT_OF_PLACE, False) and not is_checked.get(IN_PLACE, True):  # in place it cannot be checked
        return "alltoall" if is_per_rank else "sendrecv"  # old versions print `sum` for these, too
    if is_reduction:
        return "reduce_scatter" if is_per_rank else "all_reduce"
    is_counted = measured["wrong"].count() == measured.height
    return "all_gather" if is_per_rank and is_counted and high < 1 else None


def _unfinished_size(row: dict[str, Any]) -> int | None:
    """Return the size that was being measured when the table ended; None if it is not known."""
    if row["begun_row"] is not None and row["begun_row"] > (row["last_row"] or 0):
        return int(row["begun_size"])
    if row["rows"] and row["is_half"] and row["is_paired"]:
        return int(row["last_size"])
    if row["max_bytes"] is None or not row["step"]:
        return None
    if not row["rows"]:
        return None
    following = row["last_size"] * row["step"] if row["step_kind"] == "factor" else row["last_size"] + row["step"]
    return int(following) if row["last_size"] < following <= row["max_bytes"] else None
