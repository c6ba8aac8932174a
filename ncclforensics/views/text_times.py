"""Whether and when a job stopped, and on which hosts versions differ, as text."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl
from rich.console import RenderableType

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.vocabulary import How, Sign
from ncclforensics.data.names import ranks_text, sentence, some_of
from ncclforensics.frames.columns import lines_behind
from ncclforensics.frames.step_order import goes_on
from ncclforensics.frames.time_range import as_time
from ncclforensics.grammar.values import find_values
from ncclforensics.report.build import Report
from ncclforensics.report.failed_ranks import failed_ranks
from ncclforensics.report.live_files import was_ended
from ncclforensics.rules.finding import Finding, Severity
from ncclforensics.rules.shared.verdict_finding import ranks_with_output
from ncclforensics.views.text_layout import heading, indented, place_of, table_without_header

# What shows that a job stood still or failed (`standstill.by` of the JSON report), as a reader of a screen knows it.
HANGS = {
    "watchdog": "PyTorch's watchdog reported it",
    "timeout": "a call of PyTorch timed out",
    "ras": "two RAS reports show it",
    "stacks": "stacks show ranks that stand still",
    Sign.STALLED: "no rank made progress until the capture ended them",
    Sign.LOOKS: "no rank made a call between the two looks",
}
FAILURES = {
    "failure": "these lines report an error that ends a job",
    "lost-connection": "a rank lost a connection",
    "capture": "the launcher saw a process end",
}
WEAK_SIGNS = {
    "silence": "no call of a rank was read while the logs go on",
    "abort": "some ranks aborted their communicators",
    "stated": "a program says that it makes no progress",
}
SURE = {"certain": "yes", "likely": "likely", "possible": "possibly"}
ENDED_BY_ERROR = {"init-failed": "init ended with an error", "rank-died": "a rank ended"}
TIMED = (  # frames of lines whose prefix may hold a time though calls have none
    "failure", "warning", "ending",
    "work_timeout", "work_status", "watchdog", "watchdog_failure", "recorder_file", "announced_call",
    "monitored_barrier", "gloo_error", "store_error", "c10d_note",
)  # fmt: skip
STEPS = ("training_step", "trainer_progress")  # frames
LINES_OF_STEP = 10
ASSUMED_YEAR = 2000  # of clocks that print none
SHOWN_HOSTS = 4


def hang_text(report: Report, answer: Answer, shown: Finding | None = None) -> str:
    """Say whether it is shown that the job hung or failed, and when its calls and its logs end if lines have times.

    It may stand below a finding that is `shown`.
    """
    is_over = answer.verdict == "no-hang" and answer.certainty != "possible"
    texts = _state_text(report, answer), steps_text(report, shown) * (answer.verdict == "undecidable")
    return "" if is_over else " ".join(filter(None, (*texts, _times_text(report, answer))))


def steps_text(report: Report, shown: Finding | None = None) -> str:
    """Say where the last line of a training step stands, its number, and whether behind the error that is `shown`."""
    run = report.run
    rows = [row for name in STEPS if run.has(name) for row in _last_of_files(run[name]).to_dicts()]
    if not rows:
        return ""
    last = max(rows, key=lambda row: (row.get("step") or -1, row["line"]))
    if over := next((row for row in rows if row.get("form") == "summary" or _is_last_step(row)), None):
        place = place_of(report, report.cited(over["source"], over["line"]))
        return f"A training loop had ended ({place}): the job may be in what its program does then, such as saving."
    in_epoch = next((last[name] for name in ("in_epoch", "epochs_before") if last.get(name) is not None), None)
    epoch = "" if in_epoch is None else f" of epoch {in_epoch:,}"
    ranks = run["last_step"]
    alike = f" of {ranks_text(sorted(ranks['rank']))} alike" * (ranks.height > 1 and ranks["step"].n_unique() == 1)
    number = "" if last.get("step") is None else f"step {last['step']:,}{epoch}{alike}, "
    place = place_of(report, report.cited(last["source"], last["line"]))
    return f"Last training step that was read: {number}{place}{_later_bar(report, last)}.{_of_later_run(report, shown)}"


def _last_of_files(rows: pl.DataFrame) -> pl.DataFrame:
    """The last row of each input, or one with a number closely above it: some lines of a step count nothing."""
    ordered = rows.sort("source", "line")
    if "step" not in rows.columns:
        return ordered.group_by("source", maintain_order=True).last()
    is_near = pl.col("step").is_not_null() & (pl.col("line").max().over("source") - pl.col("line") <= LINES_OF_STEP)
    return ordered.with_columns(is_near=is_near).sort("is_near", maintain_order=True).group_by("source").last()


def _is_last_step(row: dict[str, Any]) -> bool:
    """Whether a line of a step names the last one of the training, and not of an epoch."""
    is_of_epoch = any(row.get(name) is not None for name in ("in_epoch", "epochs_before"))
    return not is_of_epoch and row.get("step") is not None and row["step"] == row.get("total_steps")


def _of_later_run(report: Report, shown: Finding | None) -> str:
    if shown is None or shown.severity is not Severity.ERROR or not is_outlived(report, shown):
        return ""
    return (
        " Steps stand behind the error above: this job or a later one in this file went on, unless the file was put "
        "together from several."
    )


def is_outlived(report: Report, finding: Finding) -> bool:
    """Whether steps stand behind the lines of a finding, in the file of its first one."""
    left, run = lines_left(report, finding), report.run
    return left is not None and goes_on(run["training_step"], run["source"], finding.evidence[0].source, left)


def lines_left(report: Report, finding: Finding) -> int | None:
    """How many lines stand behind the last one that a finding is about, in the file of its first; None without any."""
    if not finding.evidence:
        return None
    number = finding.evidence[0].source
    lengths = report.run["source"].filter(source=number)["lines"]
    lines = [line.line for line in (*finding.evidence, *finding.about) if line.source == number]
    return min(lines_behind(line, lengths[0]) for line in lines) if lengths.len() else None


def _later_bar(report: Report, last: dict[str, Any]) -> str:
    """Say how far a progress bar came behind the last line of a step, in the same file."""
    bars = report.run["progress_bar"].filter(pl.col("source") == last["source"], pl.col("line") > last["line"]).tail(1)
    moments = find_values(bars["bars"].cast(pl.String), "bar_update").tail(1)
    if moments.is_empty():
        return ""
    done, of_all = moments.select("done", "of_all").row(0)
    place = place_of(report, report.cited(last["source"], bars["line"][0]))
    return f", and a progress bar up to {done}/{of_all} ({place})"


def is_suspected(report: Report, answer: Answer) -> bool:
    """Whether the suspects of a job are ranks with output, or with a file of their own: of others the log is absent."""
    with_output = ranks_with_output(answer, *map(report.run.__getitem__, ("rank", "source", "last_word")))
    return bool(answer.suspects) and set(answer.suspects) <= with_output


def open_question(report: Report, answer: Answer, shown: Finding) -> str:
    """Say what is known and what is not of an undecided job, below a finding that is shown above it."""
    is_hang = bool(HANGS.keys() & set(answer.stall_evidence))
    finding = report.finding_of(answer)
    reason = (finding.detail if finding else "") or answer.reason
    is_over = is_suspected(report, answer) or FAILURES.keys() & set(answer.stall_evidence) or was_ended(report.run)
    if is_over and not is_hang:  # the reason says what is not known, and that ranks still wait is not the question
        return sentence(reason)
    known = f"{'that the job hung, and ' * is_hang}the {shown.severity} above"
    open_part = "which rank stopped first" if is_hang else "whether ranks still wait, and in which call"
    return f"Known: {known}. Not known: {open_part}. {sentence(reason)}"


def _state_text(report: Report, answer: Answer) -> str:
    """Say what shows that the job hung or failed; nothing where the verdict says all of it."""
    shown_by = answer.stall_evidence
    for state, texts in (("Hung: yes", HANGS), ("Failed: yes", FAILURES), ("Hung: likely", WEAK_SIGNS)):
        if words := [text for kind, text in texts.items() if kind in shown_by]:
            return f"{state}; {' and '.join(words)}."
    if answer.how == How.COMPARED:
        return "Failed: yes; PyTorch compared the calls and raised an error."
    if answer.verdict in ENDED_BY_ERROR:
        return f"Failed: {SURE[answer.certainty]}; {ENDED_BY_ERROR[answer.verdict]}."
    if answer.verdict in ("no-hang", "undecidable"):
        return ""
    look = report.looks.get(answer.job)
    if look is not None and look.has_moved:
        return f"Hung: no; {look.text}."
    if answer.rests_on_stall and not report.is_about_hang:
        return "Only if the job stands still."
    if answer.rests_on_stall and (ends := report.run["job_end"].filter(form="time_limit")).height:
        place = place_of(report, report.cited(ends["source"][0], ends["line"][0]))
        return f"Assumed, since you ask about a hang: the job stood still until it was ended at a time limit ({place})."
    if answer.rests_on_stall:
        return "Assumed, since you ask about a hang: the job stands still."
    if failed_ranks(report.run, answer):
        return "Failed: yes; ranks stopped with an error."
    return "Not shown: that the job stands still; the verdict holds either way."


def _times_text(report: Report, answer: Answer) -> str:
    times = report.run["last_time"].filter(pl.col("job") == answer.job)
    if times.is_empty():
        last = _last_line(report) if len(report.verdicts) == 1 else None
        return f"Latest report with a time: {_clock(last)}." if last else ""
    called, ended = times["called"].max(), times["ended"].max()
    if not isinstance(called, datetime) or not isinstance(ended, datetime):
        return ""
    seconds = (ended - called).total_seconds()
    later = f"; the logs go on for {_duration(seconds)}" if seconds >= 1 else ", where the logs end"
    return f"Last call that was read at {_clock(called)}{later}."


def _last_line(report: Report) -> datetime | None:
    """Return the last time that a launcher, PyTorch or a warning of NCCL printed, where no call carries one."""
    run = report.run
    columns = [run["source"]["last_time"]]
    for name in (name for name in TIMED if run.has(name)):
        columns += [run[name][clock] for clock in ("moment", "stamp") if clock in run[name].columns]
    printed = pl.concat([column.cast(pl.String).rename("time") for column in columns]).to_frame()
    last = printed.select(as_time(pl.col("time"), ASSUMED_YEAR).max()).item()
    return last if isinstance(last, datetime) else None


def _clock(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S" if moment.year == ASSUMED_YEAR else "%Y-%m-%d %H:%M:%S")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def host_versions(report: Report, answer: Answer) -> list[RenderableType]:
    """Return a table of NCCL's versions and their hosts, if they differ within a job."""
    owners = report.run["rank"].filter(pl.col("job") == answer.job).select("host", "source").unique()
    columns = [pl.col("source"), pl.col("version").cast(pl.String)]
    printed = report.run["version"].select(*columns).unique().join(owners, on="source").drop_nulls("host")
    if printed["version"].n_unique() < 2:
        return []
    table = table_without_header()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    by_version = printed.group_by("version").agg(pl.col("host").cast(pl.String).unique().sort()).sort("version")
    for version, hosts in by_version.iter_rows():
        table.add_row(version, some_of(hosts, SHOWN_HOSTS))
    return [heading("NCCL VERSIONS DIFFER"), indented(table)]
