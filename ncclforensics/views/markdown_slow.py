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
    return "\n".join(_parts(report))


def _parts(report: Report) -> Iterator[str]:
    answer = slow_answer(report)
    if answer is not None:
        yield f"## ncclforensics: {inline(answer.claim)}\n"
        yield f"**{answer.verdict}**{certainty_text(str(answer.verdict), answer.certainty)}\n"
        yield from (f"{inline(fact)}\n" for fact in sentences(answer))
        for title, items in (
            ("Also considered", [f"{verdict} ({sure}): {claim}" for verdict, claim, sure, _ in answer.considered]),
            ("To collect", list(answer.collect)),
        ):
            if items:
                yield f"### {title}\n"
                yield "".join(f"- {inline(item)}\n" for item in items)
    yield f"{inline(coverage(report).plain)}\n"
