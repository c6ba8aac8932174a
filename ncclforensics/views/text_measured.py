"""What was measured and counted, as tables with a name: machines, benchmarks, fabrics, ports, counters."""

from __future__ import annotations

from rich.console import RenderableType

from ncclforensics.report.build import Report
from ncclforensics.views.text_benchmarks import Detail, benchmarks, measured_calls, other_tests
from ncclforensics.views.text_counters import FEW, MOST, counters, ports
from ncclforensics.views.text_fabric import fabrics
from ncclforensics.views.text_hosts import hosts
from ncclforensics.views.text_layout import heading, indented
from ncclforensics.views.text_machines import machines, numa_nodes, nvlinks


def measured(report: Report, *, verbose: bool = False) -> dict[str, list[list[RenderableType]]]:
    """Return the versions of each table, the longest first; of a list of benchmarks no version is empty."""
    of_machines: list[RenderableType] = [
        part for name, table in machines(report) for part in (heading(f"MACHINE {name}"), indented(table))
    ]
    tables: dict[str, list[list[RenderableType]]] = {
        "benchmarks": [benchmarks(report, verbose, detail) for detail in Detail],
        "links and pairs": [other_tests(report), []],
        "measured calls": [measured_calls(report), []],
        "fabric": [fabrics(report), []],
        "counters": [*(counters(report, most) for most in ((None,) if verbose else (MOST, FEW))), []],
        "ports": [ports(report), []],
        "machines": [of_machines, []],
        "NVLinks": [nvlinks(report), []],
        "hosts": [hosts(report), []],
        "NUMA nodes": [numa_nodes(report), []],
    }
    return {name: versions for name, versions in tables.items() if versions[0]}


def measurements(report: Report, *, verbose: bool = False) -> list[RenderableType]:
    """Return all tables in full, one below the other."""
    return [part for versions in measured(report, verbose=verbose).values() for part in versions[0]]
