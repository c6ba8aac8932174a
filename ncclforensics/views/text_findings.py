"""Findings in one line each."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding
from ncclforensics.views.text_layout import STYLE, indented, place_of, table_without_header


def one_liners(report: Report, findings: list[Finding]) -> list[RenderableType]:
    """List findings: severity, title, rule, and the first line that shows it."""
    table = table_without_header()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        severity = str(finding.severity)
        table.add_row(
            Text.assemble((severity, STYLE[severity]), (f" ({finding.certainty})", "dim")),
            Text.assemble(finding.title, (f"  {finding.rule}", "dim"), *_place_shown(report, finding)),
        )
    return [indented(table)]


def _place_shown(report: Report, finding: Finding) -> list[tuple[str, str]]:
    """Name the file and line of the first line of evidence, if there is one."""
    cited = [report.cited(line.source, line.line) for line in finding.evidence[:1]]
    return [(f"  {place_of(report, line)}", "cyan") for line in cited]
