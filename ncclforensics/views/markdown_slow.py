"""The report of `slow` as Markdown, for issues and merge requests."""

from __future__ import annotations

from collections.abc import Iterator

from ncclforensics.data.names import certainty_text
from ncclforensics.report.build import Report
from ncclforensics.report.slow import slow_answer
from ncclforensics.views.markdown_syntax import inline
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_slow import sentences


def markdown(report: Report) -> str:
    """Return the answer on a slow job as Markdown."""
    answer = slow_answer(report)
    title = answer.claim if answer is not None else "nothing to judge"
    return "\n".join([f"## ncclforensics: {inline(title)}\n", *section(report), f"{inline(coverage(report).plain)}\n"])


def section(report: Report) -> Iterator[str]:
    """Yield the verdict on a slow job, what is said below it, and what to collect; nothing without an answer."""
    answer = slow_answer(report)
    if answer is None:
        return
    sure = certainty_text(str(answer.verdict), answer.certainty)
    yield f"**{answer.verdict}**{sure}: {inline(answer.claim)}\n"
    yield from (f"{inline(fact)}\n" for fact in sentences(answer))
    for title, items in (
        ("Also considered", [f"{verdict} ({sure}): {claim}" for verdict, claim, sure, _ in answer.considered]),
        ("To collect", list(answer.collect)),
    ):
        if items:
            yield f"{title}:\n"
            yield "".join(f"- {inline(item)}\n" for item in items)
