"""The content of the benchmarks screen: benchmarks, machines, fabrics and counters, as `check` prints them."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.views.text_benchmarks import benchmarks
from ncclforensics.views.text_counters import counters
from ncclforensics.views.text_fabric import fabrics
from ncclforensics.views.text_layout import heading, indented
from ncclforensics.views.text_machines import machines


@dataclass(frozen=True, slots=True)
class MeasurementsPart:
    """The tables and plots of the screen."""

    parts: list[RenderableType]


def build_measurements(report: Report, _: Citer) -> MeasurementsPart:
    """Collect the tables of benchmarks, machines, fabrics, ports and counters."""
    parts = benchmarks(report, True)
    for name, table in machines(report):
        parts += [heading(f"MACHINE {name} (! differs from the others)"), indented(table)]
    return MeasurementsPart(parts + fabrics(report) + counters(report, True))
