"""Findings, and the verdicts of further jobs, in one line each."""

from __future__ import annotations

from collections import Counter

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import certainty_text, printable
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding
from ncclforensics.views.screen_evidence import evidence
from ncclforensics.views.text_layout import STYLE, indented, one_row, place_of, table_without_header


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


def verdict_text(report: Report, answer: Answer) -> list[tuple[str, str]]:
    """Return a verdict and how sure it is."""
    sure = certainty_text(answer.verdict, answer.certainty)
    return [(answer.verdict.upper(), STYLE[report.severity_of(answer)]), (sure.replace(" ", "  "), "dim")]


def other_jobs(report: Report, jobs: list[Answer], most: int, width: int = 0) -> list[RenderableType]:
    """Tell the verdicts of the jobs below the worst one: a line for each, and a count of those beyond `most`.

    With a `width`, the first line of evidence of each stands below it.
    """
    others = list(enumerate(jobs[1:], 2))
    listed = others if len(others) == most + 1 else others[:most]
    lines: list[RenderableType] = []
    for number, row in listed:
        earlier = "earlier run on the same GPUs: " if row.job in report.earlier_runs else ""
        verdict = verdict_text(report, row)
        lines.append(
            one_row(Text.assemble(f"job {number} of {len(jobs)}: ", *verdict, f"  {earlier}{report.title_of(row)}"))
        )
        lines += (
            evidence(report, width, report.finding_of(row), None, report.numbers(row.culprits))[-1][:1] if width else []
        )
    beyond = [row for _, row in others[len(listed) :]]
    rest = Counter(row.verdict + certainty_text(row.verdict, row.certainty) for row in beyond)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in rest.items())
    more = [Text(f"{rest.total()} more jobs: {counts}")] if rest else []
    return [Text(""), *lines, *more, Text("")] if lines else []  # what follows is about the worst job again


def first_problem(report: Report) -> list[RenderableType]:
    """Show the first problem of the inputs, and count the others; nothing without any."""
    of_inputs = [f"{path} {problem}" for path, problem in report.input_problems()]
    problems = [*map(str, report.defects_beside_inputs), *of_inputs]
    more = f" (and {len(problems) - 1} more; -v lists them)" if len(problems) > 1 else ""
    return [Text.assemble(("\nproblem  ", STYLE["warning"]), printable(problems[0]) + more)] if problems else []
