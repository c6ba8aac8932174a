"""What else was considered beside a verdict, in one line each: what it would assume, or what it leaves unexplained."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.report.build import Report
from ncclforensics.views.text_layout import heading, indented, place_of, table_without_header

FEW = 3  # shown on a screen


def considered(report: Report, answer: Answer) -> list[tuple[str, str]]:
    """Return each rival of a job's verdict as a sentence, and the place of the first line that contradicts it."""
    return [
        (rival.text, next((place_of(report, line) for line in rival.quoted if line["line"]), ""))
        for rival in report.job(answer.job).considered
        if not rival.is_answer
    ]


def considered_table(report: Report, answer: Answer, most: int | None = FEW) -> list[RenderableType]:
    """Return the rivals of a verdict below a heading, at most so many."""
    rivals = considered(report, answer)
    table = table_without_header()
    table.add_column(overflow="fold", ratio=1)
    table.add_column(style="cyan", overflow="fold")
    for sentence, place in rivals[:most]:
        table.add_row(Text(sentence), place)
    more = len(rivals) - len(rivals[:most])
    rest = [indented(Text(f"and {more} more (-v)", style="dim"))] if more else []
    return [heading("ALSO CONSIDERED"), indented(table), *rest] if rivals else []


def unexplained(report: Report, answer: Answer) -> list[tuple[str, str]]:
    """Return each failure that a job's verdict does not explain as a sentence, and its place."""
    return [
        (f"{known_rank(failure.rank)} {failure.text}", place_of(report, failure.place))
        for failure in report.job(answer.job).unexplained
    ]


def known_rank(number: int | None) -> str:
    """Name a rank, or a process of which no line says which rank it is."""
    return "a process" if number is None else f"rank {number}"


def unexplained_table(report: Report, answer: Answer) -> list[RenderableType]:
    """Return the failures that a verdict does not explain below a heading."""
    table = table_without_header()
    table.add_column(overflow="fold", ratio=1)
    table.add_column(style="cyan", overflow="fold")
    for sentence, place in unexplained(report, answer):
        table.add_row(Text(sentence), place)
    return [heading("ALSO FAILED, NOT EXPLAINED BY THIS"), indented(table)] if table.row_count else []
