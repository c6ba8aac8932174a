"""What was measured, for a person: a line for each test, the largest sizes, and busbw over size as a plot."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ncclforensics.data.busbw import AS_ON_A_RING, DOUBLED, HALVES, machine_of
from ncclforensics.data.names import bytes_text, known, printable
from ncclforensics.report.build import Report
from ncclforensics.views.plots import ENOUGH, plot
from ncclforensics.views.text_layout import headed, heading, indented

MOST = 12  # runs in the list, unless all is asked for
DRAWN = 2  # runs that are few enough to be shown one by one
LARGEST = 4  # sizes
Row = dict[str, Any]


def benchmarks(report: Report, verbose: bool) -> list[RenderableType]:
    """All runs of nccl-tests, in the order in which they stand in the files."""
    rows = report.run["benchmark"].to_dicts()
    others = _others(report)
    if not rows:
        return others
    shown = rows if verbose else rows[:MOST]
    parts: list[RenderableType] = [heading("BENCHMARKS"), indented(_list(shown))]
    if len(shown) < len(rows):
        parts.append(indented(Text(f"and {len(rows) - len(shown)} more", style="dim")))
    if len(rows) <= DRAWN or verbose:
        for row in rows:
            parts += _one(row, report.run["measurement"])
    return parts + others


def _others(report: Report) -> list[RenderableType]:
    """Tests of links and of pairs of GPUs, a line for each."""
    tables, links = (
        headed("test", "device", "sizes", "best", "typical latency", figures=True),
        report.run["link_measurement"],
    )
    for _, rows in links.group_by("table", maintain_order=True):
        best = rows["bandwidth_GBps"].max()
        latency = [f"{value:.2f} us" for value in rows["latency_us"].drop_nulls().sort().head(1)]
        tables.add_row(
            printable(rows["test"][0] or "?"), printable(rows["device"][0] or "?"), str(rows.height),
            _figure(best), *(latency or [""]),
        )  # fmt: skip
    matrices, pairs = headed("between GPUs", "pairs", "median", "least", figures=True), report.run["gpu_pair"]
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


def _list(rows: list[Row]) -> Table:
    table = headed("", "ranks", "hosts", "rows", "average", "best busbw", "at", "wrong", "", figures=True)
    for row in rows:
        failed = bool(row["wrong"] or row["failed_checks"])
        table.add_row(
            printable(row["collective"] or "?"), known(row["nranks"]), known(len(row["hosts"] or []) or None),
            str(row["rows"]), known(row["average"]), _figure(row["max_busbw"]), _size(row["max_size"]),
            Text(f"{row['wrong'] or 0:.0f}" if row["wrong"] is not None else "?", style="bold red" if failed else ""),
            Text("" if row["is_complete"] else "cut off", style="bold yellow"),
        )  # fmt: skip
    return table


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:.1f} GB/s"


def _size(size: int | None) -> str:
    return "?" if size is None else bytes_text(size)


def _one(row: Row, measurement: pl.DataFrame) -> list[RenderableType]:
    ours = measurement.filter((pl.col("benchmark") == row["benchmark"]) & pl.col("busbw").is_finite())
    sizes = ours["size"].unique().sort()
    if sizes.is_empty():
        return []
    table = headed("size", "time", "busbw", "in place", "busbw", figures=True)
    for size in sizes.tail(LARGEST):
        sides = {one["half"]: one for one in ours.filter(pl.col("size") == size).to_dicts()}
        cells = [
            cell
            for half in HALVES
            for cell in (
                (f"{sides[half]['time_us']:,.0f} us", _figure(sides[half]["busbw"])) if half in sides else ("", "")
            )
        ]
        table.add_row(bytes_text(size), *cells)
    title = Text(f"\n{row['collective'] or '?'}, the largest sizes", style="dim")
    parts: list[RenderableType] = [indented(title), indented(table)]
    if sizes.len() >= ENOUGH and (ours["busbw"] > 0).any():
        parts.append(indented(Text("\n" + _plot(row, ours))))
    return parts


def _plot(row: Row, ours: pl.DataFrame) -> str:
    """Busbw over size, and between which lines it is expected to end up."""
    curves = ours.filter((pl.col("size") > 0) & (pl.col("occurrence") == 1)).sort("size")
    sides = {half: list(curves.filter(pl.col("half") == half).select("size", "busbw").iter_rows()) for half in HALVES}
    named = {f"busbw {half}, GB/s": points for half, points in sides.items() if points}
    return plot(named, levels=expected(row))


def expected(row: Row) -> tuple[float, ...]:
    """What such a host reaches, from the least to the most."""
    hosts, gpus = row["hosts"] or [], row["gpus"] or []
    machine = machine_of(gpus[0], row["listed_devices"]) if len(hosts) == len(gpus) == 1 else None
    if machine is None or row["collective"] not in AS_ON_A_RING:
        return ()
    by_switch = machine.offloaded if row["collective"] in DOUBLED else None
    return machine.ring[0], (by_switch or machine.ring)[1]
