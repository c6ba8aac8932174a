"""What happened, where and when, as one line: the title of a page, a Markdown report and a card."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import ranks_text, sentence, short_ranks, some_of
from ncclforensics.report.build import Report
from ncclforensics.report.causes import Cause
from ncclforensics.report.failed_ranks import share_of_job
from ncclforensics.rules.finding import Severity
from ncclforensics.views.text_times import hang_text

ASSUMED_YEAR = 2000  # of clocks that print none
MOST_HOSTS = 3  # named in a title


def shown_verdicts(report: Report) -> list[Answer]:
    """Return the verdicts, without undecidable ones if the run is a benchmark."""
    is_measured = report.run["benchmark"].height > 0
    return [job for job in report.verdicts if not (is_measured and job.verdict == "undecidable")]


def headline(report: Report) -> str:
    """Return the default title, such as `rank 3 on node-1 never called AllReduce #7, 2026-03-02 11:04`."""
    return ", ".join(part for part in (_event(report), place(report), moment(report)) if part)


def _event(report: Report) -> str:
    """Return the title of the worst job's verdict; where it names no rank, behind the condition that explains it."""
    found, title = cause(report), _title(report)
    if found is None or not found.is_condition or shown_verdicts(report)[0].culprits:
        return title
    return f"{found.title}: {title}"


def _title(report: Report) -> str:
    """Return the title of the worst job's verdict or of the first finding."""
    rows = shown_verdicts(report)
    titles = [finding.title for finding in report.findings if finding.severity is not Severity.INFO]
    if titles and {row.verdict for row in rows} <= {"no-hang", "undecidable"}:
        return titles[0]
    if not rows:
        return "no findings"
    finding = report.finding_of(rows[0])
    title = finding.title if finding else rows[0].reason
    return f"{title}, the worst of {len(rows)} jobs" if len(rows) > 1 else str(title)


def place(report: Report) -> str:
    """Return the hosts of the culprits, or how many ranks on how many hosts; empty if the event names its host."""
    rows = shown_verdicts(report)
    if not rows:
        return ""
    ranks = report.run["rank"].filter(pl.col("job") == rows[0].job)
    at_fault = ranks.filter(pl.col("rank_id").is_in(rows[0].culprits))
    hosts = at_fault.sort("rank")["host"].drop_nulls().cast(pl.String).unique(maintain_order=True).to_list()
    event = _event(report)
    known = ranks["host"].drop_nulls().cast(pl.String).unique()
    if any(host in event for host in known):
        return ""
    if 0 < len(hosts) <= MOST_HOSTS:
        return f"on {', '.join(hosts)}"
    if hosts:
        return f"on {len(hosts)} hosts"
    return f"{ranks.height} ranks on {len(known)} host{'s' * (len(known) != 1)}" if len(known) else ""


def moment(report: Report) -> str:
    """Return when the last call of the worst job was made, to the minute; empty if its lines have no times."""
    rows = shown_verdicts(report)
    if not rows:
        return ""
    called = report.run["last_time"].filter(pl.col("job") == rows[0].job)["called"].max()
    if not isinstance(called, datetime):
        return ""
    return called.strftime("%H:%M:%S" if called.year == ASSUMED_YEAR else "%Y-%m-%d %H:%M")


def cause(report: Report) -> Cause | None:
    """Return what is likely or certain to have caused the failure of the worst job."""
    rows = shown_verdicts(report)
    found = report.cause_of(rows[0]) if rows else None
    return None if found is None or found.title == _title(report) else found


def story(report: Report) -> list[tuple[str, str]]:
    """Return what failed, why, where, since when, who waited and what to do first: a label and a sentence each."""
    jobs = shown_verdicts(report)
    others = [finding for finding in report.findings if finding.job is None and finding.severity is not Severity.INFO]
    if not jobs:
        first = next(iter(others), None)
        what = first.title if first else "nothing wrong was found in what was read"
        facts = [("What", what), ("Why", first.detail if first else ""), ("Do first", first.remedy if first else "")]
        return [(label, sentence(text)) for label, text in facts if text]
    answer, finding, began = jobs[0], report.finding_of(jobs[0]), cause(report)
    detail = finding.detail if finding else ""
    commands = [f"on {step.where}: {step.line}" for step in report.run_now(answer)]
    steps = [*commands, *report.other_steps(answer)]
    facts = [
        ("What", sentence(report.title_of(answer))),
        (
            began.label(answer) if began else "Why",
            sentence(began.text if began else detail) if began or detail else "",
        ),
        ("Where", _culprits(report, answer)),
        ("State", hang_text(report, answer)),
        ("Waiting", _waiting(report, answer)),
        ("Do first", steps[0] if steps else ""),
        ("Jobs", f"This is the worst of {len(jobs)} jobs." if len(jobs) > 1 else ""),
    ]
    return [(label, text) for label, text in facts if text]


def _culprits(report: Report, answer: Answer) -> str:
    """Name the ranks at fault and their hosts, and the ranks without a log."""
    ranks = report.run["rank"].filter(pl.col("rank_id").is_in(list(answer.culprits))).sort("rank")
    hosts = ranks["host"].drop_nulls().cast(pl.String).unique(maintain_order=True).to_list()
    numbers = short_ranks(ranks["rank"].drop_nulls().to_list()) if ranks["rank"].drop_nulls().len() else ""
    on_hosts = f"on {some_of(hosts, MOST_HOSTS)}" if hosts else ""
    without_log = f"{ranks_text(answer.missing)} without a log" if answer.missing else ""
    return ", ".join(filter(None, (f"{numbers} {on_hosts}".strip(), without_log)))


def _waiting(report: Report, answer: Answer) -> str:
    """Count the ranks that waited, and name them."""
    numbers = report.numbers(answer.victims)
    share = f"{share_of_job(report.run, answer, answer.victims)} ranks"
    return "" if not answer.victims else f"{share}: {short_ranks(numbers)}" if numbers else share
