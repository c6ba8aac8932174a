"""Which finding stands above a verdict that decides nothing, or in its place."""

from __future__ import annotations

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.frames.step_order import LINES_OF_END
from ncclforensics.report.build import Report
from ncclforensics.report.without_job import health, reason_without_job
from ncclforensics.rules.finding import Category, Finding, Role, Severity, places_of
from ncclforensics.views.text_report import leading_findings
from ncclforensics.views.text_times import is_outlived, lines_left
from ncclforensics.views.text_unread import STATED_BY_PROGRAM

OPEN = ("undecidable", "no-hang")  # verdicts that name no fault
BEGUN_AGAIN = "app-launched-again"  # a note that stands below an open answer, not in its place
ENDS = ("job-ended-by-scheduler", "app-interrupted")  # rules on who ended a job, whatever it did


def main_finding(report: Report, *, everything: bool) -> Finding | None:
    """Return the finding that stands above the verdict: what is sure where the verdict decides nothing.

    Where no line of NCCL was read, there is no verdict, and whatever was found says more.
    """
    jobs = report.verdicts
    if jobs and jobs[0].verdict not in OPEN:
        return None
    findings = other_findings(report)
    well = "" if jobs or everything else health(report.run, report.findings)
    if well:  # that the program came to its end says more than what is only possible
        findings = [finding for finding in findings if finding.certainty != "possible"]
    elif not (jobs or everything):
        # Then also what is no fault, such as an end that was asked for; what happened before what was given.
        # Of files of no known kind, what a program states is all that is known.
        beside = (BEGUN_AGAIN, STATED_BY_PROGRAM) if report.run.kinds else (BEGUN_AGAIN,)
        notes = [f for f in report.findings if f.severity is Severity.INFO and f.rule not in beside and f.evidence]
        notes.sort(key=lambda note: note.category is Category.INCOMPLETE_EVIDENCE)
        reason = reason_without_job(report.run, report.findings)
        findings += [note for note in notes if note.title != reason and not _is_past(report, note)]
    if not (jobs or findings or report.run.kinds):
        stated = [f for f in report.findings if f.rule == STATED_BY_PROGRAM and not report.run.has("kernel_line")]
        findings = [finding for finding in stated if not _is_past(report, finding)]
    shows_nothing = not jobs or rests_on_nothing(report, jobs[0])
    if jobs and shows_nothing and not everything and not findings:  # then also what follows from a failure
        following = [f for f in report.findings if f.role is Role.CONSEQUENCE and f.job is None and f.evidence]
        findings = [f for f in following if f.severity is not Severity.INFO or f.certainty != "possible"]
    leading = leading_findings(jobs, findings)
    if not (everything or shows_nothing):  # what says more of the lines that a verdict cites which knows no rank
        is_known = jobs[0].suspects or jobs[0].victims
        findings = [finding for finding in findings if not is_known and repeats(report, finding, None)]
    if jobs and not (leading or findings or everything) and _names_none(jobs[0]):
        findings = [f for f in report.findings if f.rule in ENDS and not is_outlived(report, f)]
    return next(iter(leading or findings), None)


def _is_past(report: Report, note: Finding) -> bool:
    """Whether the program outlived what a note says, or another run did: steps stand behind it, or many lines.

    Many lines alone tell so of what is only possible, and of words that no grammar knows.
    """
    if is_outlived(report, note):
        return True
    is_doubtful = note.certainty == "possible" or note.rule == STATED_BY_PROGRAM
    return is_doubtful and (lines_left(report, note) or 0) > LINES_OF_END


def _names_none(answer: Answer) -> bool:
    """Whether a verdict decides nothing, and knows neither a suspect nor a rank that waits."""
    return answer.verdict == "undecidable" and not (answer.suspects or answer.victims)


def rests_on_nothing(report: Report, answer: Answer) -> bool:
    """Whether an undecided verdict says only that the logs show no communicator and no call."""
    finding = report.finding_of(answer)
    has_lines = finding is not None and bool(finding.evidence)
    return _names_none(answer) and not has_lines


def measures_alone(report: Report, answer: Answer) -> bool:
    """Whether lines of a benchmark say all that is known of a job: that it hung is then no question."""
    return _names_none(answer) and not answer.stall_evidence and report.run.has("measurement")


def other_findings(report: Report) -> list[Finding]:
    """Return the errors and warnings that are no verdict of a job, and concern one."""
    verdicts = [id(report.finding_of(row)) for row in report.verdicts]
    findings = [finding for finding in report.findings if not finding.is_elsewhere]
    return [f for f in findings if id(f) not in verdicts and f.severity is not Severity.INFO]


def repeats(report: Report, finding: Finding, cause: Finding | None) -> bool:
    """Whether a finding says less of the same.

    It says of ranks that they ended, which the cause or the verdict names; or no cause, and only by lines that the
    verdict cites.
    """
    jobs = report.verdicts
    if cause is not None and finding.rule == cause.rule:
        return not finding.ranks or set(finding.ranks) <= set(cause.ranks)
    stated = report.finding_of(jobs[0]) if jobs else None
    if stated is not None and finding.role is not Role.CAUSE and finding.evidence:
        return places_of(finding.evidence) <= places_of(stated.evidence)
    has_died = bool(jobs) and jobs[0].verdict == "rank-died" and finding.role is Role.CAUSE
    verdict = report.finding_of(jobs[0]) if has_died else None
    return verdict is not None and bool(finding.ranks) and set(finding.ranks) <= set(verdict.ranks)
