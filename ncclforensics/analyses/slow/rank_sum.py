"""How long each rank was in calls, and how long its other kernels ran, from tables of profilers: sums without order."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.slow.step_window import FEWEST_MEMBERS
from ncclforensics.data.collectives import WAITS_FOR_ALL, collective_named, communicates
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.column_types import COLUMN_TYPES

RANK_SUM = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # of its longest call
    "rank": pl.Int32(),
    "host": pl.String(),
    "collective_us": pl.Float64(),  # in calls in which all members wait for each other
    "other_calls_us": pl.Float64(),
    "own_us": pl.Float64(),  # of kernels that compute; on CPUs the time of the steps outside of calls; null: unknown
    "wall_us": pl.Float64(),  # of the steps, or from the first kernel to the last; null: unknown
    "calls": pl.String(),  # the collectives and how many: equal where ranks did the same
}
# Columns of torch.profiler's table with the time of kernels on a device.
OF_DEVICE = ("Self CUDA", "Self XPU", "Self HIP", "Self MTIA", "Self PrivateUse1", "Self device")
STEP, GLOO = "ProfilerStep", "gloo:"
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6}
TABLE = ["source", "report", "head"]  # `report`: rank that the report of `nsys stats` names, GPU of a database, or -1
SUMMED = {
    "source": pl.Int32(),
    "report": pl.Int32(),
    "head": pl.Int64(),
    "line": pl.Int32(),
    "name": pl.String(),
    "calls": pl.Int64(),
    "total_us": pl.Float64(),
    "is_of_torch": pl.Boolean(),  # only of calls and steps; otherwise of all kernels
}


@analysis(RANK_SUM, of=("sum_columns", "summed_process"))
def rank_sum(
    sum_columns: pl.DataFrame,
    sum_report: pl.DataFrame,
    sum_row: pl.DataFrame,
    sum_total: pl.DataFrame,
    summed_process: pl.DataFrame,
    summed_kernel: pl.DataFrame,
    ranked_process: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank without a trace: of several tables of it, the last. None where there are not three such ranks.

    A trace of the same rank shows each call.
    """
    rows = _below_heads(sum_columns, sum_report, sum_row)
    kernels = pl.concat(
        [
            _of_nsys(rows),
            _of_torch(rows),
            summed_kernel.select(
                "source", "line", "calls", "total_us", head=0, report="gpu", name=text_of("kernel"), is_of_torch=False
            ).cast(pl.Schema(SUMMED)),
        ],
        how="diagonal",
    )
    own = _with_parts(kernels.filter(pl.col("head") == pl.col("head").max().over("source", "report")))
    totals = _totals(sum_columns, sum_total)
    gpus = pl.len().over("source")
    processes = summed_process.select("source", text_of("host"), report="gpu", walled="wall_us", gpus=gpus)
    found = (
        own.join(totals, on=["source", "head"], how="left")
        .join(processes, on=["source", "report"], how="left")
        .join(source.select("source", "hint"), on="source", how="left")
    )
    on_device = pl.when("is_of_torch").then("device_us").otherwise("kernels_us")
    outside = on_device - pl.col("collective_us") - pl.col("other_calls_us")
    # Which ranks the GPUs of several hosts are, nothing tells.
    is_single = pl.lit(summed_process["source"].n_unique() == 1)
    is_named = pl.when(pl.col("gpus").is_null()).then(pl.col("report") >= 0).otherwise((pl.col("gpus") > 1) & is_single)
    found = found.with_columns(
        rank=pl.when(is_named).then("report").when(pl.col("gpus").fill_null(1) == 1).then("hint"),
        wall_us=pl.coalesce("walled", "steps_us"),
        own_us=pl.when(pl.col("is_cpu")).then(pl.col("steps_us") - pl.col("collective_us")).otherwise(outside),
    )
    known = found.join(ranked_process, on="rank", how="anti").drop_nulls("rank").sort("rank", "source")
    of_ranks = known.unique("rank", keep="last", maintain_order=True)
    return of_ranks if of_ranks.height >= FEWEST_MEMBERS else of_ranks.clear()


def _below_heads(sum_columns: pl.DataFrame, sum_report: pl.DataFrame, sum_row: pl.DataFrame) -> pl.DataFrame:
    """The rows of all tables with the columns, the unit and the place of their head, and the rank of their report."""
    heads = sum_columns.select("source", "pos", "columns", text_of("unit"), head="pos").sort("pos")
    reports = sum_report.select("source", "pos", report="report_rank").sort("pos")
    rows = sum_row.with_columns(
        text_of("form"), text_of("summed"), cells=pl.coalesce(text_of("cells"), text_of("figures_and_name"))
    ).sort("pos")
    for above in (heads, reports):
        rows = rows.join_asof(above, on="pos", by="source", check_sortedness=False)
    return rows.with_columns(pl.col("report").fill_null(-1), columns=_split("columns"), parts=_split("cells"))


def _split(column: str) -> pl.Expr:
    """The cells of a row of text, between two blanks or more."""
    cells = pl.col(column).str.split("  ").list.eval(pl.element().str.strip_chars())
    return cells.list.eval(pl.element().filter(pl.element() != ""))


def _of_nsys(rows: pl.DataFrame) -> pl.DataFrame:
    """The kernels in tables of `nsys stats`: other tables have other columns."""
    commas = pl.col("form") == "csv"
    columns = pl.when(commas).then(pl.col("columns").list.first().str.split(",")).otherwise("columns")
    names_of_csv = pl.col("cells").str.split(",").list.slice(pl.col("names").list.len() - 1).list.join(",")
    cells = pl.when(commas).then(pl.col("cells").str.split(",")).otherwise("parts")
    found = (
        rows.filter(pl.col("form").is_in(["nsys", "csv"]))
        .with_columns(names=columns)
        .filter((pl.col("names").list.first() == "Instances") & (pl.col("names").list.last() == "Name"))
    )
    scale = pl.col("unit").replace_strict(MICROSECONDS, default=None, return_dtype=pl.Float64)
    return found.select(
        *TABLE,
        "line",
        name=pl.when(commas).then(names_of_csv.str.strip_chars('"')).otherwise(pl.col("parts").list.last()),
        calls=cells.list.first().str.replace_all(",", "", literal=True).cast(pl.Int64, strict=False),
        total_us=pl.col("total") * scale,
        is_of_torch=False,
    ).drop_nulls(["name", "calls", "total_us"])


def _of_torch(rows: pl.DataFrame) -> pl.DataFrame:
    """The calls, steps and kernels in tables of torch.profiler, with the time that counts of each."""
    own = rows.filter((pl.col("form") == "torch") & (pl.col("columns").list.len() == pl.col("parts").list.len()))
    cells = own.select(*TABLE, "line", "pos", "summed", column="columns", cell="parts").explode("column", "cell")
    seconds = COLUMN_TYPES["DURATION"].cast(pl.col("cell"))
    is_device, is_total = pl.col("column").is_in(OF_DEVICE), pl.col("column") == "CPU total"
    is_count = pl.col("column") == "# of Calls"
    values = cells.group_by(*TABLE, "line", "pos", name="summed", maintain_order=True).agg(
        calls=pl.col("cell").filter(is_count).cast(pl.Int64, strict=False).first(),
        device_us=seconds.filter(is_device).first() * 1e6,
        host_us=seconds.filter(is_total).first() * 1e6,
    )
    on_host = pl.col("name").str.starts_with(STEP) | pl.col("name").str.starts_with(GLOO)
    # The sums of annotations and of operators hold those of kernels.
    is_kernel = pl.col("name").map_elements(communicates, return_dtype=pl.Boolean) & ~pl.col("name").str.contains(
        ":", literal=True
    )
    has_device = pl.col("device_us").is_not_null().any().over(TABLE)
    wanted = values.with_columns(total_us=pl.when(on_host).then("host_us").when(is_kernel).then("device_us"))
    is_gloo = pl.col("name").str.starts_with(GLOO)
    return (
        wanted.filter(~(is_gloo & has_device))
        .drop_nulls(["calls", "total_us"])
        .with_columns(is_of_torch=True)
        .select(list(SUMMED))
    )


def _with_parts(kernels: pl.DataFrame) -> pl.DataFrame:
    """The sums of each profile that has a call."""
    name = pl.col("name")
    is_call = name.map_elements(communicates, return_dtype=pl.Boolean) | name.str.starts_with(GLOO)
    is_step = name.str.starts_with(STEP)
    operation = pl.when(is_call).then(name.map_elements(collective_named, return_dtype=pl.String))
    waits = pl.col("operation").is_in(WAITS_FOR_ALL)
    total = pl.col("total_us")
    rows = kernels.with_columns(operation=operation, is_call=is_call, is_step=is_step)
    sums = rows.group_by(TABLE, maintain_order=True).agg(
        line=pl.col("line").filter(waits).sort_by(total.filter(waits)).last(),
        collective_us=total.filter(waits).sum(),
        other_calls_us=total.filter(pl.col("is_call") & ~waits).sum(),
        kernels_us=total.filter(~pl.col("is_step")).sum(),
        steps_us=pl.when(pl.col("is_step").any()).then(total.filter("is_step").sum()),
        is_cpu=name.str.starts_with(GLOO).any(),
        is_of_torch=pl.col("is_of_torch").any(),
    )
    made = rows.filter(waits).group_by(*TABLE, "operation").agg(pl.col("calls").sum()).sort("operation")
    described = made.group_by(TABLE).agg(calls=pl.format("{} x {}", "calls", "operation").str.join(", "))
    return sums.filter(pl.col("collective_us") > 0).join(described, on=TABLE)


def _totals(sum_columns: pl.DataFrame, sum_total: pl.DataFrame) -> pl.DataFrame:
    """The time of all kernels that torch.profiler prints below a table."""
    of_device = sum_total.filter(text_of("device") != "CPU").sort("pos")
    heads = sum_columns.select("source", "pos", head="pos").sort("pos")
    found = of_device.join_asof(heads, on="pos", by="source", check_sortedness=False)
    return found.group_by("source", "head").agg(device_us=pl.col("took").last() * 1e6)
