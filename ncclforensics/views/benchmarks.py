"""What was measured, for a person: a line for each test, the largest sizes, and busbw over size as a plot."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ncclforensics.analyses.benchmarks import HALVES, OUT
from ncclforensics.data.busbw import AS_ON_A_RING, DOUBLED, machine_of
from ncclforensics.data.names import bytes_text, printable
from ncclforensics.report import Report

MOST = 12  # runs in the list, unless all is asked for
DRAWN = 2  # runs that are few enough to be shown one by one
LARGEST = 4  # sizes
ENOUGH = 5  # sizes that are worth a plot
HEIGHT, WIDTH = 14, 76  # of a plot, in characters
TICKS = 6
Row = dict[str, Any]


def benchmarks(report: Report, verbose: bool) -> list[RenderableType]:
    """All runs of nccl-tests, in the order in which they stand in the files."""
    rows = report.run["benchmark"].to_dicts()
    others = _others(report)
    if not rows:
        return others
    shown = rows if verbose else rows[:MOST]
    parts: list[RenderableType] = [Text("\nBENCHMARKS", style="bold"), Padding(_list(shown), (0, 0, 0, 2))]
    if len(shown) < len(rows):
        parts.append(Padding(Text(f"and {len(rows) - len(shown)} more", style="dim"), (0, 0, 0, 2)))
    if len(rows) <= DRAWN or verbose:
        for row in rows:
            parts += _one(row, report.run["measurement"])
    return parts + others


def _others(report: Report) -> list[RenderableType]:
    """Tests of links and of pairs of GPUs, a line for each."""
    tables, links = _table("test", "device", "sizes", "best", "typical latency"), report.run["link_measurement"]
    for _, rows in links.group_by("table", maintain_order=True):
        best = rows["gbps"].max()
        latency = [f"{value:.2f} us" for value in rows["us"].drop_nulls().sort().head(1)]
        tables.add_row(
            printable(rows["test"][0] or "?"), printable(rows["device"][0] or "?"), str(rows.height),
            _figure(best), *(latency or [""]),
        )  # fmt: skip
    matrices, pairs = _table("between GPUs", "pairs", "median", "least"), report.run["gpu_pair"]
    apart = pairs.filter((pl.col("row") != pl.col("column")) & (pl.col("kind") == "bandwidth"))
    for _, rows in apart.group_by("matrix", maintain_order=True):
        matrices.add_row(
            printable(rows["test"][0] or "?"), str(rows.height), _figure(rows["value"].median()),
            _figure(rows["value"].min()),
        )  # fmt: skip
    parts: list[RenderableType] = []
    for title, table in (("LINKS MEASURED", tables), ("PAIRS MEASURED", matrices)):
        if table.row_count:
            parts += [Text(f"\n{title}", style="bold"), Padding(table, (0, 0, 0, 2))]
    return parts


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _list(rows: list[Row]) -> Table:
    table = _table("", "ranks", "hosts", "rows", "average", "best busbw", "at", "wrong", "")
    for row in rows:
        failed = bool(row["wrong"] or row["failed_checks"])
        table.add_row(
            printable(row["collective"] or "?"), _known(row["nranks"]), _known(len(row["hosts"] or []) or None),
            str(row["rows"]), _known(row["average"]), _figure(row["max_busbw"]), _size(row["max_size"]),
            Text(f"{row['wrong'] or 0:.0f}" if row["wrong"] is not None else "?", style="bold red" if failed else ""),
            Text("" if row["complete"] else "cut off", style="bold yellow"),
        )  # fmt: skip
    return table


def _known(value: object) -> str:
    return "?" if value is None else str(value)


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:.1f} GB/s"


def _size(size: int | None) -> str:
    return "?" if size is None else bytes_text(size)


def _one(row: Row, measurement: pl.DataFrame) -> list[RenderableType]:
    ours = measurement.filter((pl.col("benchmark") == row["benchmark"]) & pl.col("busbw").is_finite())
    sizes = ours["size"].unique().sort()
    if sizes.is_empty():
        return []
    table = _table("size", "time", "busbw", "in place", "busbw")
    for size in sizes.tail(LARGEST):
        sides = {one["half"]: one for one in ours.filter(pl.col("size") == size).to_dicts()}
        cells = [
            cell
            for half in HALVES
            for cell in ((f"{sides[half]['us']:,.0f} us", _figure(sides[half]["busbw"])) if half in sides else ("", ""))
        ]
        table.add_row(bytes_text(size), *cells)
    title = Text(f"\n{row['collective'] or '?'}, the largest sizes", style="dim")
    parts: list[RenderableType] = [Padding(title, (0, 0, 0, 2)), Padding(table, (0, 0, 0, 2))]
    if sizes.len() >= ENOUGH and (ours["busbw"] > 0).any():
        parts.append(Padding(Text("\n" + _plot(row, ours)), (0, 0, 0, 2)))
    return parts


def _plot(row: Row, ours: pl.DataFrame) -> str:
    """Busbw over size, and between which lines it is expected to end up."""
    import plotext  # type: ignore[import-untyped]  # it has no types, and is loaded only where it is needed

    curves = ours.filter((pl.col("size") > 0) & (pl.col("occurrence") == 1)).sort("size")
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(WIDTH, HEIGHT)
    plotext.xscale("log")
    for half, marker in zip(HALVES, ("braille", "."), strict=True):
        side = curves.filter(pl.col("half") == half)
        if side.height:
            draw = plotext.plot if half == OUT else plotext.scatter
            draw(side["size"].to_list(), side["busbw"].to_list(), marker=marker, label=f"busbw {half}, GB/s")
    ends = [curves["size"].min(), curves["size"].max()]
    for value in expected(row):
        plotext.plot(ends, [value, value], marker="-")
    sizes = curves["size"].unique().sort()
    ticks = sizes.gather_every(max(1, -(-sizes.len() // TICKS))).to_list()
    plotext.xticks(ticks, [bytes_text(size) for size in ticks])
    plotext.ylim(0, None)
    return str(plotext.uncolorize(plotext.build())).rstrip()


def expected(row: Row) -> tuple[float, ...]:
    """What such a host reaches, from the least to the most."""
    hosts, gpus = row["hosts"] or [], row["gpus"] or []
    machine = machine_of(gpus[0], row["listed"]) if len(hosts) == len(gpus) == 1 else None
    if machine is None or row["collective"] not in AS_ON_A_RING:
        return ()
    by_switch = machine.offloaded if row["collective"] in DOUBLED else None
    return machine.ring[0], (by_switch or machine.ring)[1]
