"""What happened, in causal order, as text: each link with the line that shows it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.report.build import Report
from ncclforensics.report.chain import chain
from ncclforensics.rules.finding import Role
from ncclforensics.views.text_layout import heading, indented, place_of, table_without_header

WORDS = {Role.CAUSE: "first", Role.CONSEQUENCE: "then", Role.CONTEXT: "besides"}


def chain_text(report: Report, answer: Answer) -> list[RenderableType]:
    """Return the chain of a job's verdict; nothing where one kind of input says everything."""
    links = chain(report, answer)
    if not links:
        return []
    table = table_without_header()
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_column(style="cyan", overflow="fold")
    for link in links:
        place = report.cited(link.line.source, link.line.line)
        table.add_row(WORDS[link.role], Text(link.text), place_of(report, place))
    return [heading("WHAT HAPPENED"), indented(table)]
