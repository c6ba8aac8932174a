"""What was measured, what machines are and what ports counted, as the command line draws it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.views.text_benchmarks import benchmarks
from ncclforensics.views.text_counters import counters
from ncclforensics.views.text_layout import heading, indented
from ncclforensics.views.text_machines import machines


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
