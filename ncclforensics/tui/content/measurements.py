"""The content of the benchmarks screen: benchmarks, machines, fabrics and counters, as `check` prints them."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import RenderableType

from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.views.text_measured import measurements


@dataclass(frozen=True, slots=True)
class MeasurementsPart:
    """The tables and plots of the screen."""

    parts: list[RenderableType]


def build_measurements(report: Report, _: Citer) -> MeasurementsPart:
    """Collect the tables of benchmarks, machines, fabrics, ports and counters."""
    return MeasurementsPart(measurements(report, verbose=True))
