"""Benchmarks as text: a line for each test, the largest sizes, and a plot of busbw over size."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ncclforensics.data.busbw import AS_ON_A_RING, DOUBLED, HALVES, LARGE, LARGE_MESSAGE, machine_of
from ncclforensics.data.names import bandwidth_text, bytes_text, known, printable
from ncclforensics.frames.columns import Row, text_of
from ncclforensics.report.build import Report
from ncclforensics.rules.shared.benchmark_text import called
from ncclforensics.views.plots import MIN_SIZES, plot
from ncclforensics.views.text_layout import file_name, heading, indented, table_with_header, without_middle

MOST, FEWEST = 12, 3  # runs listed without -v, and where a screen has no room
DRAWN = 2  # up to so many runs are shown in detail
LARGEST = 4  # sizes
LEAST_BANDWIDTH = 0.05  # GB/s; below it a figure is shown as 0.0


class Detail(IntEnum):
    """How much is shown of a run of nccl-tests: also the largest sizes, and a plot of all."""

    PLOT = 0
    SIZES = 1
    LIST = 2
    FEW = 3


def benchmarks(report: Report, verbose: bool, detail: Detail = Detail.PLOT) -> list[RenderableType]:
    """List all runs of nccl-tests in the order of the files."""
    runs = report.run["benchmark_sweep"]
    if runs.is_empty():
        return []
    by_size = runs.with_row_index("place").sort(pl.col("last_size").fill_null(0), descending=True, maintain_order=True)
    # Those of the largest sizes, in the order of the files.
    most = FEWEST if detail is Detail.FEW else None if verbose else MOST
    shown = by_size.head(most or runs.height).sort("place").to_dicts()
    parts: list[RenderableType] = [heading("BENCHMARKS"), indented(_list(report, shown))]
    if len(shown) < runs.height:
        parts.append(indented(Text(f"and {runs.height - len(shown)} more", style="dim")))
    if detail < Detail.LIST and (runs.height <= DRAWN or verbose):
        for row in shown:
            parts += _details(row, report.run["measurement"], detail, file_of(report, row))
    return parts


def file_of(report: Report, row: Row) -> str:
    """Name the file of a run, where there are runs of several files."""
    is_one = report.run["benchmark_sweep"]["source"].n_unique() == 1
    return "" if is_one else file_name(report, report.path_of(row["source"]))


def other_tests(report: Report) -> list[RenderableType]:
    """List tests of links and of GPU pairs: one line each, or one for all tests of a device where there are many."""
    links = report.run["link_measurement"]
    tables = table_with_header(
        "test", "device", "runs", "sizes", "best", "at", "least", "typical latency", figures=True
    )
    if are_several := links["source"].n_unique() > 1:
        tables.add_column("file", overflow="fold")
    tests = links.group_by("table", "test", "device", maintain_order=True).agg(
        pl.len().alias("sizes"),
        pl.col("source").first(),
        best=pl.col("bandwidth_GBps").max(),
        at=pl.col("size").sort_by("bandwidth_GBps", nulls_last=False).last(),
        latency=pl.col("latency_us").min(),
    )
    runs = tests.group_by(
        ["test", "device"] if tests.height > MOST else ["table", "test", "device"], maintain_order=True
    )
    for row in runs.agg(
        pl.len(),
        pl.col("sizes").max(),
        pl.col("source").unique(maintain_order=True),
        best=pl.col("best").max(),
        at=pl.col("at").sort_by("best", nulls_last=False).last(),
        least=pl.col("best").min(),
        latency=pl.col("latency").min(),
    ).iter_rows(named=True):
        tables.add_row(
            printable(row["test"] or "?"), printable(row["device"] or "?"), str(row["len"]), str(row["sizes"]),
            _figure(row["best"]), "" if row["best"] is None or row["at"] is None else _size(row["at"]),
            _figure(row["least"]) if row["len"] > 1 else "",
            "" if row["latency"] is None else f"{row['latency']:.2f} us",
            *([_only_file(report, row["source"])] if are_several else []),
        )  # fmt: skip
    matrices, pairs = (
        table_with_header("between GPUs, ranks or hosts", "pairs", "median", "least", figures=True),
        report.run["gpu_pair"],
    )
    apart = pairs.filter(pl.col("row").ne_missing(pl.col("column")) & (pl.col("kind") == "bandwidth"))
    for _, rows in apart.group_by("matrix", maintain_order=True):
        matrices.add_row(
            printable(rows["test"][0] or "?"), str(rows.height), _figure(rows["value"].median()),
            _figure(rows["value"].min()),
        )  # fmt: skip
    parts: list[RenderableType] = []
    for title, table in (("LINKS MEASURED", tables), ("PAIRS MEASURED", matrices)):
        if table.row_count:
            parts += [heading(title), indented(table)]
    return parts


def _only_file(report: Report, sources: list[int]) -> str:
    return file_name(report, report.path_of(sources[0])) if len(sources) == 1 else "several"


def _list(report: Report, rows: list[Row]) -> Table:
    """Lay out the runs; columns that say nothing of any of them are left out."""
    cells: dict[str, list[str | Text]] = {
        "": [printable(row["collective"] or "?") for row in rows],
        "ranks": [f"{'>= ' if row['is_cut_in_list'] else ''}{known(row['nranks'])}" for row in rows],
        "hosts": [known(_hosts(row)) for row in rows],
        "sizes": [str(row["rows"]) for row in rows],
        "best busbw": [_figure(row["max_busbw"]) if row["rows"] else _average(row) for row in rows],
        "at": [_size(row["max_size"]) if row["rows"] else "" for row in rows],
        "expected": [_expected_cell(row) if row["rows"] else "" for row in rows],
        "wrong": [_wrong(row) if row["rows"] else "" for row in rows],
        "part": [Text(_part(row), style="bold yellow") for row in rows],
        "file": [without_middle(file_of(report, row)) for row in rows],
    }
    filled = {name: column for name, column in cells.items() if any(str(cell) not in ("", "?") for cell in column)}
    table = table_with_header(*filled, figures=True)
    table.columns[0].no_wrap = True
    if "file" in filled:
        table.columns[-1].justify = "left"
    for row in zip(*filled.values(), strict=True):
        table.add_row(*row)
    return table


def _part(row: Row) -> str:
    """Say what is here of a run that is not complete."""
    return "" if row["is_complete"] else "cut off" if _has_head(row) else "a part"


def _average(row: Row) -> str:
    """Format what the footer states, where the table above it is not given."""
    return "" if row["average"] is None else f"{_figure(row['average'])} average"


def decisive_runs(benchmark_sweep: pl.DataFrame) -> list[Row]:
    """Return the run with the largest size of each test; those of small sizes alone only where no other was made."""
    measured = benchmark_sweep.filter(pl.col("max_busbw").is_not_null())
    largest = measured.filter(pl.col("last_size") == pl.col("last_size").max().over("collective", "nranks", "hosts"))
    runs = largest.unique(["collective", "nranks", "hosts"], keep="first", maintain_order=True)
    is_large = pl.col("last_size") >= LARGE
    return (runs.filter(is_large) if runs.filter(is_large).height else runs).to_dicts()


def reached(row: Row) -> str:
    """Say what a run reached at best, and what hosts of its kind reach if that is known; empty if it measured nothing.

    An average over all sizes would say little: latency decides the small ones.
    """
    if row["max_busbw"] is None:
        return ""
    if row["max_busbw"] < LEAST_BANDWIDTH:
        return f"{called(row)} was measured up to {_size(row['last_size'])} only, which shows no bandwidth"
    best = f"{called(row)} reaches {_figure(row['max_busbw'])} at {_size(row['max_size'])}"
    levels = expected(row)
    if not levels:
        if row["last_size"] < LARGE_MESSAGE << 4:
            return f"{best}; larger sizes, which show the bandwidth, are not here"
        return best  # that it is not judged is said of all tests at once
    if max(row["last_size"], row["max_size"]) < LARGE:
        return f"{best}; such hosts reach {_expected_text(row)} from {_size(LARGE)} on, which was not measured"
    return f"{best}; such hosts reach {_expected_text(row)}"


def by_first_column(row: Row, measurement: pl.DataFrame) -> str:
    """Say what a run reached at its largest size in each row of a table with a column of its own in front; else empty.

    Such a column counts hosts, mostly, which nothing shows: the best of its rows says nothing of the others.
    """
    of_run = measurement.filter(pl.col("benchmark").is_in(row["benchmarks"]) & pl.col("busbw").is_finite())
    largest = of_run.filter(pl.col("size") == pl.col("size").max()).drop_nulls("label")
    rates = largest.group_by(text_of("label"), maintain_order=True).agg(pl.col("busbw").max())
    if rates.height < 2:
        return ""
    texts = [f"{printable(label)}: {_figure(rate)}" for label, rate in rates.head(MOST).iter_rows()]
    more = f" and {rates.height - MOST} more" * (rates.height > MOST)
    head = largest["label_head"][0]
    column = f"column {printable(head)}" if head else "first column"
    return (
        f"{called(row)} at {_size(largest['size'][0])} reaches, by the {column}, {', '.join(texts)}{more}. What that "
        "column counts is not known, so these differences are not judged"
    )


def _expected_text(row: Row) -> str:
    """Format the busbw that hosts of this kind reach, if that is known."""
    levels = expected(row)
    return f"{levels[0]:.0f} to {levels[-1]:.0f} GB/s" if levels else "?"


def _expected_cell(row: Row) -> str:
    """The same without the unit, which stands beside it in a table."""
    return _expected_text(row).removesuffix(" GB/s").replace(" to ", "-")


def _hosts(row: Row) -> int | None:
    """Count the hosts; None where the list of devices is not there, or only a part of it."""
    is_whole = (row["communicators"] or 1) > 1 or row["listed_devices"] == row["nranks"]
    return len(row["hosts"]) if row["hosts"] and is_whole else None


def _has_head(row: Row) -> bool:
    """Whether the beginning of the run is there, too, so that its end would follow."""
    return bool(row["parameters"] or row["listed_devices"])


def _wrong(row: Row) -> Text:
    """Count the wrong values; red also where the test itself says that it failed."""
    style = "bold red" if row["wrong"] or row["failed_checks"] else ""
    return Text(known(None if row["wrong"] is None else round(row["wrong"])), style=style)


def _figure(value: Any) -> str:
    return "" if value is None else f"{bandwidth_text(value)}"


def _time(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} us"


def _size(size: int | None) -> str:
    return "?" if size is None else bytes_text(size)


def _details(row: Row, measurement: pl.DataFrame, detail: Detail, file: str) -> list[RenderableType]:
    measured = measurement.filter(pl.col("benchmark").is_in(row["benchmarks"]) & pl.col("busbw").is_finite())
    sizes = measured["size"].unique().sort()
    if sizes.is_empty():
        return []
    is_labelled = measured["label"].drop_nulls().len() > 0
    labels = [printable(str(measured["label_head"].drop_nulls().first() or ""))] * is_labelled
    table = table_with_header(*labels, "size", "time", "busbw", "in place", "busbw", figures=True)
    largest = measured.filter(pl.col("size").is_in(sizes.tail(LARGEST).implode())).sort("size", "row")
    for (size, _), rows in largest.group_by("size", text_of("label"), maintain_order=True):
        label = rows["label"][0]
        halves = {row["half"]: row for row in rows.to_dicts()}
        cells = [
            cell
            for half in HALVES
            for cell in (
                (_time(halves[half]["time_us"]), _figure(halves[half]["busbw"])) if half in halves else ("", "")
            )
        ]
        table.add_row(*[printable(label or "")] * is_labelled, bytes_text(int(str(size))), *cells)
    title = Text(f"\n{row['collective'] or '?'}, the largest sizes{f' ({file})' * bool(file)}", style="dim")
    parts: list[RenderableType] = [indented(title), indented(table)]
    if detail is Detail.PLOT and sizes.len() >= MIN_SIZES and (measured["busbw"] > 0).any():
        parts.append(indented(Text("\n" + _plot(row, measured))))
    return parts


def measured_calls(report: Report) -> list[RenderableType]:
    """List the calls that the Inspector profiler measured: a line for each kind of call and size, the largest first."""
    ended = report.run["ended_operation"].filter(pl.col("busbw") > 0)
    kinds = ended.group_by(pl.col("operation").cast(pl.String), "nranks", "bytes").agg(
        pl.len(), pl.col("rank").n_unique(), pl.col("microseconds").median(), pl.col("busbw").median()
    )
    if kinds.is_empty():
        return []
    table = table_with_header("call", "ranks", "measured on", "size", "times", "median", "busbw", figures=True)
    for row in kinds.sort("bytes", "operation", "nranks", descending=True).head(MOST).iter_rows(named=True):
        table.add_row(
            printable(row["operation"]), str(row["nranks"]), str(row["rank"]), bytes_text(row["bytes"]),
            str(row["len"]), _time(row["microseconds"]), _figure(row["busbw"]),
        )  # fmt: skip
    return [heading("CALLS MEASURED BY NCCL'S INSPECTOR"), indented(table)]


def _plot(row: Row, measured: pl.DataFrame) -> str:
    """Plot busbw over size, with the expected range."""
    curves = measured.filter((pl.col("size") > 0) & (pl.col("occurrence") == 1)).sort("size")
    sides = {half: list(curves.filter(pl.col("half") == half).select("size", "busbw").iter_rows()) for half in HALVES}
    curves_by_name = {f"busbw {half}, GB/s": points for half, points in sides.items() if points}
    return plot(curves_by_name, levels=expected(row))


def expected(row: Row) -> tuple[float, ...]:
    """Return the expected busbw range of such a host; empty if unknown, as where lines of its GPUs are missing."""
    if (row["communicators"] or 1) == 1 and row["nranks"] and row["listed_devices"] != row["nranks"]:
        return ()
    hosts, gpus = row["hosts"] or [], row["gpus"] or []
    machine = machine_of(gpus[0], row["listed_devices"]) if len(hosts) == len(gpus) == 1 else None
    if machine is None or row["collective"] not in AS_ON_A_RING:
        return ()
    by_switch = machine.offloaded if row["collective"] in DOUBLED else None
    return machine.ring[0], (by_switch or machine.ring)[1]
