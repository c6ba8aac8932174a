"""What was measured and what machines are, as the command line draws it; counters, where some were collected."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ncclforensics.data.names import printable
from ncclforensics.report import Report
from ncclforensics.rules import Severity
from ncclforensics.tui.facts.cited import Citer
from ncclforensics.views.benchmarks import benchmarks
from ncclforensics.views.machines import machines

SEAT = ("host", "node", "device", "port")
# Frames that are shown where the program has them, and what of them; of counters only those that are not zero.
COUNTERS = {
    "counter_growth": ("COUNTERS", (*SEAT, "name", "value", "unit", "growth", "is_least", "dumps", "seconds")),
    "port_state": ("PORTS", (*SEAT, "state", "physical_state", "rate_Gbps", "width", "speed", "link_layer")),
}
MOST_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Table:
    """A frame as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the screen shows."""

    parts: list[RenderableType]
    counters: list[Table]


def measured(report: Report, _: Citer) -> Measured:
    """Benchmarks and machines of the run, and its counters."""
    parts = benchmarks(report, True)
    for name, table in machines(report):
        parts += [Text(f"\nMACHINE {name} (! differs from the others)", style="bold"), Padding(table, (0, 0, 0, 2))]
    tables = [_table(report, name) for name in COUNTERS]
    return Measured(parts, [table for table in tables if table.rows])


def _table(report: Report, name: str) -> Table:
    """A frame as text, the rows that a finding cites first; the worst of these findings stands in front."""
    title, wanted = COUNTERS[name]
    try:
        frame = report.run[name]
    except KeyError:  # the program knows no such frame
        return Table(title, [], [])
    if "value" in frame.columns:
        frame = frame.filter((pl.col("value") != 0) | (pl.col("growth") != 0))
    order = list(Severity)
    cited: dict[tuple[int, int], Severity] = {}
    for finding in sorted(report.findings, key=lambda one: -order.index(one.severity or Severity.INFO)):
        for line in finding.evidence:
            cited[line.source, line.line] = finding.severity or Severity.INFO
    shown = [column for column in wanted if column in frame.columns and frame[column].null_count() < frame.height]
    rows = [
        [str(cited.get((source, line), "")), *(printable("" if cell is None else str(cell)) for cell in cells)]
        for (source, line), cells in zip(
            frame.select("source", "line").iter_rows(), frame.select(shown).iter_rows(), strict=True
        )
    ]
    rows.sort(key=lambda row: order.index(Severity(row[0])) if row[0] else len(order))
    return Table(title, ["", *shown], rows[:MOST_ROWS])
