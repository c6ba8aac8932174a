"""What was measured, what machines are and what ports counted, as the command line draws it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from ncclforensics.report import Report
from ncclforensics.tui.facts.cited import Citer
from ncclforensics.views.benchmarks import benchmarks
from ncclforensics.views.counters import counters
from ncclforensics.views.machines import machines
from ncclforensics.views.screen import heading, indented


@dataclass(frozen=True, slots=True)
class Measured:
    """What the screen shows."""

    parts: list[RenderableType]


def measured(report: Report, _: Citer) -> Measured:
    """Benchmarks and machines of the run, and its ports and counters."""
    parts = benchmarks(report, True)
    for name, table in machines(report):
        parts += [heading(f"MACHINE {name} (! differs from the others)"), indented(table)]
    return Measured(parts + counters(report, True))
