"""The report of `slow` as text: the verdict, what it costs, the ranks, and what to collect."""

from __future__ import annotations

import math

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.slow.answer import SlowAnswer, SlowKind, SlowRival
from ncclforensics.data.names import certainty_text, printable, sentence
from ncclforensics.frames.columns import short_name
from ncclforensics.report.build import Report
from ncclforensics.report.slow import slow_answer
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_findings import one_liners
from ncclforensics.views.text_layout import STYLE, heading, indented, render_text, table_with_header, wrapped_items

MOST_PROBLEMS = 1
MARGIN = 2  # lines for the prompt below the report
ORDER = ("times of ranks", "collect", "what else was considered", "what was found there")  # as they are printed
MOST_RANKS = 8  # of a table
PARTS = (
    ("own time", "own_us"),
    ("waits", "wait_us"),
    ("transfers", "transfer_us"),
    ("busy", "busy_us"),
    ("idle", "idle_us"),
)


def screen(report: Report, *, width: int, height: float = math.inf, color: bool = False) -> str:
    """Return the answer on a slow job as lines of text; where a terminal is too low, parts are left out and named."""
    answer = slow_answer(report)
    head: list[RenderableType] = [wrapped_items(coverage(report), width)]
    details: dict[str, list[RenderableType]] = {}  # by name; the last one is left out first, the first one never
    if answer is not None:
        head += verdict(answer)
        details["collect"] = _items("COLLECT", list(answer.collect))
        details["times of ranks"] = _ranks(report, answer)
        if there := found_there(report, answer):
            details["what was found there"] = [heading("ALSO FOUND THERE"), *one_liners(report, there)]
        details["what else was considered"] = _items("ALSO CONSIDERED", [_rival(rival) for rival in answer.considered])
    problems = [*map(str, report.defects_beside_inputs)]
    problems += [f"{path} {problem}" for path, problem in report.input_problems()]
    end: list[RenderableType] = []
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > MOST_PROBLEMS else ""
        end += [Text.assemble(("\nproblem  ", STYLE["warning"]), printable(problems[0]) + more)]
    if answer is not None:
        end += [Text(f"\nmeaning and what to do: ncclforensics explain {answer.verdict}", style="dim")]
    shown = [name for name in details if details[name]]
    left_out: list[str] = []
    while True:
        parts = [*head, *(part for name in ORDER if name in shown for part in details[name]), *end]
        if left_out:
            parts.append(Text(f"-v: {', '.join(left_out)}", style="dim"))
        text = render_text(parts, width=width, color=color)
        if text.count("\n") < height - MARGIN or len(shown) < 2:
            return text
        left_out.insert(0, shown.pop())


def cost(answer: SlowAnswer) -> str:
    """Return what a step would gain, as a sentence; empty where that is not known.

    >>> cost(SlowAnswer(SlowKind.RANK, "likely", "", step_seconds=0.486, step_share=0.152, gpu_hours_per_day=58.4))
    'Without it a step would take 0.412 s instead of 0.486 s: 15.2 % of the step, 58 GPU-hours a day.'
    """
    if answer.step_seconds is None or answer.step_share is None:
        return ""
    without = answer.step_seconds * (1 - answer.step_share)
    per_day = answer.gpu_hours_per_day
    hours = "" if per_day is None else f", {per_day:,.{0 if per_day >= 10 else 1}f} GPU-hours a day"
    return (
        f"Without it a step would take {without:.3g} s instead of {answer.step_seconds:.3g} s: "
        f"{answer.step_share:.1%} of the step{hours}.".replace("%", " %")
    )


def since(answer: SlowAnswer) -> str:
    """Return since which step and time it is so, as a sentence; empty where it was so from the beginning."""
    places = [f"step {answer.since_step}" if answer.since_step is not None else "", answer.since or ""]
    known = ", ".join(place for place in places if place)
    return f"Since {known}." if known else ""


def sentences(answer: SlowAnswer) -> list[str]:
    """Return what is said below the verdict, a sentence each."""
    facts = [cost(answer), since(answer), *map(sentence, answer.details)]
    if answer.cause:
        facts.append(sentence(f"Why (likely): {answer.cause}"))
    if answer.assumes and answer.verdict is not SlowKind.UNDECIDABLE:
        facts.append(sentence(f"This is false only if {', or '.join(answer.assumes)}"))
    return [fact for fact in facts if fact]


def verdict(answer: SlowAnswer) -> list[RenderableType]:
    """Return the verdict with what is said below it."""
    style = (
        STYLE["no-hang"] if answer.verdict is SlowKind.EVEN else STYLE["warning" if answer.is_actionable else "info"]
    )
    sure = certainty_text(str(answer.verdict), answer.certainty)
    question = "whether the job is slow: " * (answer.verdict is SlowKind.UNDECIDABLE)
    title = Text.assemble(("\n" + answer.verdict.upper(), style), f"{sure}  {question}{printable(answer.claim)}")
    return [title, *(indented(Text(printable(fact))) for fact in sentences(answer))]


def _ranks(report: Report, answer: SlowAnswer) -> list[RenderableType]:
    """Return the times of the ranks that are named, and the medians of the others."""
    times = report.run["rank_time"]
    named = times.filter(pl.col("rank").is_in(list(answer.ranks)))
    if named.is_empty():
        return []
    table = table_with_header("rank", "host", *(title for title, _ in PARTS), "last in", figures=True)
    for row in named.head(MOST_RANKS).to_dicts():
        table.add_row(
            str(row["rank"]),
            printable(row["host"] or "?"),
            *(_seconds(row[part]) for _, part in PARTS),
            f"{row['last']} of {row['steps']}",
        )
    rest = times.filter(~pl.col("rank").is_in(list(answer.ranks)))
    table.add_row("others", "(median)", *(_seconds(rest[part].median()) for _, part in PARTS), "")
    return [indented(Text("\nSeconds in a usual step:", "dim")), indented(table)]


def _seconds(microseconds: object) -> str:
    return f"{microseconds / 1e6:.4f}" if isinstance(microseconds, int | float) else "?"


def _rival(rival: SlowRival) -> str:
    return f"{rival.claim}: that alone would be {rival.verdict} ({rival.certainty})"


def found_there(report: Report, answer: SlowAnswer) -> list[Finding]:
    """Return the warnings and errors about the hosts that are named; what they cost the job is not known."""
    hosts = set(map(short_name, answer.hosts))
    return [
        finding
        for finding in report.findings
        if finding.severity is not Severity.INFO and finding.category is not Category.STRAGGLER
        if hosts & set(map(short_name, finding.hosts))
    ]


def _items(title: str, items: list[str]) -> list[RenderableType]:
    return [heading(title), *(indented(Text(printable(item))) for item in items)] if items else []
