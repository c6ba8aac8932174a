"""Words of a failure in lines that no rule reads, for sentences that deny what was not read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.job.text.program_failures import stated_mildly, topic_of
from ncclforensics.data.failure_topics import TOPICS
from ncclforensics.data.names import printable
from ncclforensics.frames.columns import text_of
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding, Line, Severity
from ncclforensics.views.text_layout import indented, place_of
from ncclforensics.views.text_reasons import remarks

DENYING = ("that was read", "that were read", "was read", "were read", "was not read", "were not read")
MOST_QUOTED = 2
MOST_BLANK = 4  # lines at the end of a text
UNKNOWN_FORMATS, STATED_BY_PROGRAM = "read-unknown-formats", "stated-by-program"  # rules
LONGEST = 120  # characters of a quoted line


def unread_failures(report: Report, shown: Iterable[Finding | None]) -> list[RenderableType]:
    """Quote the lines with words of a failure that no finding cites, where what is shown first denies something.

    `shown`: the findings that are shown beside the first verdict. What such a line says in its own words may be what a
    rule did not find.
    """
    texts = _main_texts(report, shown)
    if not any(words in text for text in texts for words in DENYING):
        return []
    rows = _uncited(report)
    if rows.is_empty():
        return []
    quoted = [
        f"{place_of(report, report.cited(source, line))} “{_cut(statement)}”"
        for source, line, statement in rows.head(MOST_QUOTED).iter_rows()
    ]
    more = f"; and {rows.height - MOST_QUOTED} more" if rows.height > MOST_QUOTED else ""
    return [indented(Text(f"Not judged, with words of a failure: {'; '.join(quoted)}{more}."))]


def last_lines(report: Report) -> list[RenderableType]:
    """Quote the last line of texts of which nothing else is said: it shows how far a program came."""
    quoted = []
    for source, lines in report.run["source"].head(MOST_QUOTED).select("source", "lines").iter_rows():
        ends = [Line(source, line) for line in range(lines, max(lines - MOST_BLANK, 0), -1)]
        report.cite(ends)
        cited = [report.cited(line.source, line.line) for line in ends]
        last = next((line for line in cited if any(map(str.isalnum, line["text"]))), None)
        quoted += [f"{place_of(report, last)} “{_cut(last['text'])}”"] if last else []
    return [indented(Text(f"The text ends with {', '.join(quoted)}."))] if quoted else []


def _main_texts(report: Report, shown: Iterable[Finding | None]) -> list[str]:
    jobs = report.verdicts
    findings = [found for found in (*shown, report.finding_of(jobs[0]) if jobs else None) if found is not None]
    reasons = [jobs[0].reason, remarks(jobs[0])] if jobs else []
    return [*chain.from_iterable((found.title, found.detail) for found in findings), *reasons]


def _uncited(report: Report) -> pl.DataFrame:
    """Return source, line and statement of such lines, those first whose words name a failure by themselves."""
    failures, columns = report.run["program_failure"], ["source", "line", "statement"]
    is_weak = pl.col("is_warning") | ~(pl.col("has_level") | pl.col("topic").is_not_null())
    is_heading = pl.col("statement").str.ends_with(":")
    strong = failures.filter(~(pl.col("is_of_end") | is_heading)).sort(is_weak, "pos").select(columns)
    mild = stated_mildly(report.run["unread_error"]).sort("pos")
    weak = mild.select("source", "line", statement=text_of("stated_mildly"))
    weak = weak.filter(topic_of(pl.col("statement"), TOPICS).is_not_null())
    # The screen of a hang lists no notes.
    listed = [f for f in report.findings if not (report.is_about_hang and f.severity is Severity.INFO)]
    cited = {(line.source, line.line) for found in listed for line in (*found.evidence, *found.about)}
    rows = pl.concat([strong, weak]).unique(["source", "line"], keep="first", maintain_order=True)
    is_cited = pl.Series([place in cited for place in rows.select("source", "line").iter_rows()], dtype=pl.Boolean)
    return rows.filter(~is_cited)


def _cut(text: str) -> str:
    text = printable(text.strip())
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"
