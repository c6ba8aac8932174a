"""Write a report in the requested format, and derive the exit code."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.options import FailOn, Format
from ncclforensics.data.names import bytes_text, printable
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.cli.option_groups import Printing
    from ncclforensics.report.build import Report
    from ncclforensics.rules.finding import Finding

FAILING_SEVERITIES = {FailOn.ERROR: ["error"], FailOn.WARNING: ["error", "warning"], FailOn.NEVER: []}


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0  # nothing at or above the threshold
    FINDINGS = 1
    USAGE = 2  # wrong usage, or no readable input
    UNDECIDABLE = 3  # readable, but not enough to decide
    DEFECT = 4  # the program itself failed
    INTERRUPTED = 130


def write_report(report: Report, printing: Printing, *, everything: bool = False) -> None:
    """Write a report to a file, or to stdout."""
    from ncclforensics.frames.run import limit_threads

    report_format, output = printing.report_format, printing.output

    def render() -> bytes:
        if report_format in (Format.JSON, Format.JSONL):
            from ncclforensics.views import json_report

            return json_report.json(report) if report_format is Format.JSON else json_report.json_lines(report)
        if report_format is Format.MARKDOWN:
            if report.is_about_slow:
                from ncclforensics.views import markdown_slow

                return markdown_slow.markdown(report).encode()
            from ncclforensics.views import markdown

            return markdown.markdown(report, everything=everything).encode()
        if report_format in (Format.JUNIT, Format.SARIF):
            from ncclforensics.views import ci_formats

            if report_format is Format.JUNIT:
                return ci_formats.junit(report, FAILING_SEVERITIES[printing.fail_on])
            return ci_formats.sarif(report)
        from ncclforensics.views import text_report, text_screen

        color = is_colored(output, printing.no_color)
        width = text_report.width_of_terminal()
        height = math.inf if output is not None or printing.verbose else text_report.height_of_terminal()
        if report.is_about_slow:
            from ncclforensics.views import text_slow

            return text_slow.screen(report, width=width, height=height, color=color).encode()
        if not printing.verbose:
            return text_screen.screen(report, width=width, height=height, color=color, everything=everything).encode()
        return text_report.text(
            report, width=width, color=color, verbose=printing.verbose, everything=everything
        ).encode()

    write_bytes(limit_threads(report.run, render), output, [report])


def is_on_terminal(printing: Printing) -> bool:
    """Whether a report is printed as text on the terminal that also shows stderr."""
    is_text = printing.report_format is Format.TEXT and printing.output is None
    return is_text and sys.stdout.isatty() and sys.stderr.isatty()


def is_colored(output: Path | None, no_color: bool) -> bool:
    """Whether to use colours: only on a terminal, and unless the option or any value of NO_COLOR switches them off."""
    return output is None and sys.stdout.isatty() and not (no_color or os.environ.get("NO_COLOR"))


def refuse_to_overwrite(output: Path, reports: Iterable[Report]) -> None:
    """Raise UsageError if the file to write is an input of one of these reports."""
    if not output.exists():
        return
    for reading in (reading for report in reports for reading in report.run.inputs):
        file = reading.source.archive or reading.source.file
        if file.exists() and output.samefile(file):
            raise UsageError(f"{output} is an input; write the report to another file")


def tell_written(output: Path) -> None:
    """Name on stderr the file that was written, and its size."""
    if output.is_file():
        print(f"wrote {printable(str(output))} ({bytes_text(output.stat().st_size)})", file=sys.stderr)


def write_bytes(data: bytes, output: Path | None, reports: Iterable[Report]) -> None:
    """Write what was made of these reports to the file, or to stdout if `output` is None.

    The file is complete or as it was before. Raises UsageError if it is an input, OSError if it cannot be written.
    """
    from ncclforensics.archive.atomic_write import replacing

    if output is not None:
        refuse_to_overwrite(output, reports)
        with replacing(output) as file:
            file.write(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def exit_code_of_slow(report: Report, fail_on: FailOn) -> Exit:
    """Return the exit code for what makes a job slow, and name on stderr what failed in the program."""
    from ncclforensics.report.slow import slow_answer

    if report.defects:
        report_defects(report.defects)
    answer = slow_answer(report)
    if answer is None or answer.verdict == "undecidable":
        return Exit.DEFECT if report.defects else Exit.UNDECIDABLE
    if answer.is_actionable and "warning" in FAILING_SEVERITIES[fail_on]:
        return Exit.FINDINGS
    return Exit.DEFECT if report.defects else Exit.OK


def _is_judged(report: Report, findings: Sequence[Finding]) -> bool:
    """Whether the files hold what rules on machines judge, and no rule found that too much is absent."""
    from ncclforensics.frames.protocol import has_rows
    from ncclforensics.rules.finding import Category

    is_incomplete = any(finding.category == Category.INCOMPLETE_EVIDENCE for finding in findings)
    judging = (rule for rule in report.rules if rule.of and rule.category is not Category.INCOMPLETE_EVIDENCE)
    return not is_incomplete and any(has_rows(report.run, rule) for rule in judging)


def exit_code_of(report: Report, fail_on: FailOn, *, has_benchmark: bool = False, asks_for_hang: bool = False) -> Exit:
    """Return the exit code for a report, whatever is selected, and name on stderr what failed in the program.

    Findings stand though another part of the program failed; that nothing was found does not. A benchmark without any
    communicator log needs no verdict to succeed, but one that did not end, or was not judged, decides nothing; so it is
    with the state of machines. Whoever asks for a hang has no answer where the logs end in calls that completed, or in
    which all ranks hang.
    """
    from ncclforensics.report.without_job import verdict_without_job
    from ncclforensics.rules.finding import Category

    verdicts = {answer.verdict for answer in report.verdicts} or {verdict_without_job(report.run)}
    if report.defects:
        report_defects(report.defects)
    findings = report.findings + report.not_selected
    if any(finding.severity in FAILING_SEVERITIES[fail_on] for finding in findings):
        return Exit.FINDINGS
    if report.defects:
        return Exit.DEFECT
    if has_benchmark and verdicts <= {"undecidable"}:  # whether a job hangs is no question of a test that ended
        is_judged = not any(finding.category == Category.INCOMPLETE_EVIDENCE for finding in findings)
        return Exit.OK if is_judged and report.run["benchmark"]["is_complete"].all() else Exit.UNDECIDABLE
    if not report.verdicts and not asks_for_hang and _is_judged(report, findings):  # no job, but machines
        return Exit.OK
    is_open = asks_for_hang and any(answer.certainty == "possible" for answer in report.verdicts)
    return Exit.UNDECIDABLE if "undecidable" in verdicts or is_open else Exit.OK
