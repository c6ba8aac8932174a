"""When a job stopped, and on which hosts versions differ, as text."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl
from rich.console import RenderableType

from ncclforensics.report.build import Report
from ncclforensics.views.text_layout import heading, indented, table_without_header

Row = dict[str, Any]
ASSUMED_YEAR = 2000  # of clocks that print none
SHOWN_HOSTS = 4


def stop_text(report: Report, row: Row) -> str:
    """Say when the last call was made and how long the logs go on, where lines have times; else an empty string."""
    times = report.run["last_time"].filter(pl.col("job") == row["job"])
    is_open = row["verdict"] == "no-hang" and row["certainty"] == "possible"  # completed, or all ranks hang in the call
    if times.is_empty() or (row["verdict"] in ("no-hang", "init-failed") and not is_open):
        return ""
    called, ended = times["called"].max(), times["ended"].max()
    if not isinstance(called, datetime) or not isinstance(ended, datetime):
        return ""
    seconds = (ended - called).total_seconds()
    later = f"; the logs go on for {_duration(seconds)}" if seconds >= 1 else ", where the logs end"
    return f"Last call of any rank at {_clock(called)}{later}."


def _clock(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S" if moment.year == ASSUMED_YEAR else "%Y-%m-%d %H:%M:%S")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def host_versions(report: Report, row: Row) -> list[RenderableType]:
    """Return a table of NCCL's versions and their hosts, if they differ within a job."""
    owners = report.run["rank"].filter(pl.col("job") == row["job"]).select("host", "source").unique()
    columns = [pl.col("source"), pl.col("version").cast(pl.String)]
    printed = report.run["version"].select(*columns).unique().join(owners, on="source").drop_nulls("host")
    if printed["version"].n_unique() < 2:
        return []
    table = table_without_header()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    by_version = printed.group_by("version").agg(pl.col("host").cast(pl.String).unique().sort()).sort("version")
    for version, hosts in by_version.iter_rows():
        more = f" and {len(hosts) - SHOWN_HOSTS} more" if len(hosts) > SHOWN_HOSTS else ""
        table.add_row(version, ", ".join(hosts[:SHOWN_HOSTS]) + more)
    return [heading("NCCL VERSIONS DIFFER"), indented(table)]
