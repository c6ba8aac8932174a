"""The table of the run: versions, ranks, hosts, network, communicators."""

from __future__ import annotations

from collections import Counter

import polars as pl
from rich.table import Table

from ncclforensics.data.names import count_of, printable, ranks_text, some_of
from ncclforensics.report.build import Report
from ncclforensics.report.summary import summary
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.views.text_layout import table_without_header

MOST = 6  # hosts or variables shown without --verbose
OF_LOGS = "NCCL_DEBUG"  # begins the names of variables that choose what is printed


def run_table(report: Report, *, verbose: bool = False) -> Table:
    """Show the summary of the run, without unknown values."""
    run = summary(report.run, report.findings)
    sizes = Counter((row["kind"], row["nranks"]) for row in run["communicators"])
    seen = run["ranks_seen"]
    lines = {
        "NCCL": ", ".join(run["nccl_versions"]),
        "ranks": f"{ranks_text(seen)} of {run['world_size']}" if seen and run["world_size"] else "",
        "missing": ranks_text(run["ranks_missing"]),
        "hosts": _list(run["hosts"], verbose),
        "network": ", ".join(run["networks"]) + f", GPUDirect RDMA: {run['gdr']}" * bool(run["networks"]),
        "transports": ", ".join(f"{count} {name}" for name, count in (run["transports"] or {}).items()),
        "channels": ", ".join(f"{count} {kind}" for kind, count in run["channels"].items() if count is not None),
        "communicators": ", ".join(
            f"{count_of(count, kind)} of {count_of(size, 'rank')}" for (kind, size), count in sorted(sizes.items())
        ),
        "variables": _list(_variables(report), verbose),
        "subsystems": ", ".join(run["debug"]["subsystems_seen"]),
    }
    table = table_without_header()
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, line in lines.items():
        if line:
            table.add_row(name, printable(line))
    return table


def _variables(report: Report) -> list[str]:
    """Return NCCL's variables as its processes print them, else as a script or a command sets them."""
    printed = environment_settings(report.run["setting"])
    rows = printed if printed.height else report.run["exported_variable"]
    named = rows.filter(pl.col("variable").str.starts_with("NCCL_"), ~pl.col("variable").str.starts_with(OF_LOGS))
    values = named.select("variable", "value").unique(maintain_order=True).sort("variable", maintain_order=True)
    return [f"{name}={value}" for name, value in values.iter_rows()]


def _list(names: list[str], verbose: bool) -> str:
    return some_of(names, len(names) if verbose else MOST)
