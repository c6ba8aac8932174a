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
from ncclforensics.frames.columns import count_behind, text_of
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding, Line, Severity, places_of
from ncclforensics.rules.job.stated_stands import PHASES
from ncclforensics.views.text_layout import indented, place_of
from ncclforensics.views.text_origin import host_of_prompt
from ncclforensics.views.text_reasons import remarks

DENYING = ("that was read", "that were read", "was read", "were read", "was not read", "were not read")
MOST_QUOTED = 2
MOST_BLANK = 4  # lines at the end of a text
MOST_BEHIND = 10  # lines of other kinds behind one that shows how far a program came
UNKNOWN_FORMATS, STATED_BY_PROGRAM = "read-unknown-formats", "stated-by-program"  # rules
LONGEST = 120  # characters of a quoted line


def unread_failures(report: Report, shown: Iterable[Finding | None]) -> list[RenderableType]:
    """Quote lines with words of a failure that no finding cites, where what is shown first denies something.

    So does a report without a finding. `shown`: the findings that are shown beside the first verdict. What such a
    line says in its own words may be what a rule did not find.
    """
    shown = list(shown)
    given = [found for found in shown if found is not None]
    is_of_unknown = bool(given) and all(found.rule == UNKNOWN_FORMATS for found in given)
    is_silent = is_of_unknown or not (report.verdicts or given)  # nothing says what is wrong
    if not is_silent and not any(words in text for text in _main_texts(report, shown) for words in DENYING):
        return []
    rows = _uncited(report)
    if rows.is_empty():
        return []
    quoted = [
        f"{place_of(report, report.cited(source, line))} “{_cut(statement)}”"
        for source, line, statement, _ in rows.head(MOST_QUOTED).iter_rows()
    ]
    more = f"; and {rows.height - MOST_QUOTED} more" if rows.height > MOST_QUOTED else ""
    what = "counts or states" if rows["is_value"].all() else "words"
    source, line, *_ = rows.row(0)
    host = f" below a prompt of {host}" if (host := host_of_prompt(report, source, line)) else ""
    begins = f". The text begins “{_cut(_first_text(report, source))}”" if rows["is_value"].all() else ""
    return [indented(Text(f"Not judged, with {what} of a failure{host}: {'; '.join(quoted)}{more}{begins}."))]


def _first_text(report: Report, source: int) -> str:
    """Return the first line of a text, which mostly is the command, or names the device."""
    report.cite([first := Line(source, 1)])
    return str(report.cited(first.source, first.line)["text"])


def last_lines(report: Report) -> list[RenderableType]:
    """Quote the last line of texts of which nothing else is said: it shows how far a program came."""
    quoted = []
    for source, lines in report.run["source"].head(MOST_QUOTED).select("source", "lines").iter_rows():
        ends = [Line(source, line) for line in range(lines, max(lines - MOST_BLANK, 0), -1)]
        report.cite(ends)
        cited = [report.cited(line.source, line.line) for line in ends]
        last = next((line for line in cited if any(map(str.isalnum, line["text"]))), None)
        quoted += [f"{place_of(report, last)} “{_cut(last['text'])}”"] if last else []
    return [indented(Text(f"The text ends with {', '.join(quoted)}.{_last_part(report)}"))] if quoted else []


def _last_part(report: Report) -> str:
    """Name the part of its work that the program of the first text came to, if one of the last lines names it."""
    run = report.run
    first = run["source"].head(1).select("source", "lines")
    rows = run["last_phase"].join(first, on="source").filter(count_behind() <= MOST_BEHIND)
    later = pl.concat([run[name].select("source", "pos") for name in ("training_step", "progress_bar")])
    if rows.is_empty() or (later.filter(source=rows["source"].item())["pos"] > rows["pos"].item()).any():
        return ""
    report.cite([line := Line(*rows.select("source", "line").row(0))])
    cited = report.cited(line.source, line.line)
    part = PHASES[rows["phase"].item()].place.format(what=rows["what"].item())
    return f" How far it came: {part} ({place_of(report, cited)} “{_cut(cited['text'])}”)."


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
    unread, source = report.run["unread_error"], report.run["source"]
    mild = stated_mildly(unread).sort("pos")
    weak = mild.select("source", "line", statement=text_of("stated_mildly"))
    unknown = source.filter(pl.col("recognised") == 0)["source"]
    values = unread.filter(text_of("form") == "value", pl.col("source").is_in(unknown.implode())).sort("pos")
    values = values.select("source", "line", statement=text_of("stated_value").str.strip_chars())
    weak = weak.filter(topic_of(pl.col("statement"), TOPICS).is_not_null())
    # The screen of a hang lists no notes.
    listed = [f for f in report.findings if not (report.is_about_hang and f.severity is Severity.INFO)]
    cited = places_of(line for found in listed for line in (*found.evidence, *found.about))
    rows = pl.concat(
        [strong.with_columns(is_value=False), weak.with_columns(is_value=False), values.with_columns(is_value=True)]
    )
    rows = rows.unique(["source", "line"], keep="first", maintain_order=True)
    is_cited = pl.Series([place in cited for place in rows.select("source", "line").iter_rows()], dtype=pl.Boolean)
    alike = pl.col("statement").is_in(rows.filter(is_cited)["statement"].implode())
    return rows.filter(~is_cited & ~alike).unique("statement", keep="first", maintain_order=True)


def _cut(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"
