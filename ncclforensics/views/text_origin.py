"""Where the first line of a finding that names no place stands: below which prompt of a shell."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding


def origin_text(report: Report, finding: Finding) -> str:
    """Say below which prompt a finding's first line stands, where the finding names no place."""
    first = next(iter(finding.evidence), None)
    if first is None or finding.hosts or finding.ranks or finding.nics:
        return ""
    host = host_of_prompt(report, first.source, first.line)
    return f"it stands below a prompt of {host}" if host and host not in f"{finding.title} {finding.detail}" else ""


def host_of_prompt(report: Report, source: int, line: int) -> str:
    """Return the host that the last prompt or heading above a line names; empty without one."""
    typed = report.run["unread_error"].select("source", "line", host=text_of("typed_host"))
    heads = report.run["output_heading"].select("source", "line", host="heading_host")
    named = pl.concat([typed, heads]).drop_nulls("host")
    above = named.filter(pl.col("source") == source, pl.col("line") <= line).sort("line")
    return str(above["host"].item(-1)) if above.height and line > 0 else ""
