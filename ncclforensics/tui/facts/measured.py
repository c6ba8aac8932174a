"""What was measured and what machines are, as the command line draws it; counters, where some were collected."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ncclforensics.data.names import printable
from ncclforensics.frames import Run
from ncclforensics.report import Report
from ncclforensics.tui.facts.cited import Citer
from ncclforensics.views.benchmarks import benchmarks
from ncclforensics.views.machines import machines

# Frames that are shown as they are, where the program has them and they have rows.
COUNTERS = {"counter_delta": "COUNTERS THAT GREW", "port_state": "PORTS", "counter": "COUNTERS"}
MOST_ROWS = 10_000


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
    tables = [_table(report.run, name, title) for name, title in COUNTERS.items()]
    return Measured(parts, [table for table in tables if table.rows])


def _table(run: Run, name: str, title: str) -> Table:
    try:
        frame = run[name].head(MOST_ROWS)
    except KeyError:  # the program knows no such frame
        return Table(title, [], [])
    shown = [column for column in frame.columns if column not in ("source", "line", "pos")]
    rows = [[printable("" if cell is None else str(cell)) for cell in row] for row in frame.select(shown).iter_rows()]
    return Table(title, shown, rows)
