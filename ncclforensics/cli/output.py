"""From a report to what is put out, and to the exit code."""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ncclforensics.cli.options import FailOn, Format

if TYPE_CHECKING:
    from ncclforensics.report.build import Report

SERIOUS = {FailOn.ERROR: ["error"], FailOn.WARNING: ["error", "warning"], FailOn.NEVER: []}


class Exit(IntEnum):
    """Exit codes of every command."""

    NOTHING = 0  # nothing at or above the threshold
    FINDINGS = 1
    USAGE = 2  # wrong usage, or no readable input
    UNDECIDABLE = 3  # readable, but not enough to decide
    INTERRUPTED = 130


def show(
    report: Report,
    form: Format,
    output: Path | None,
    *,
    fail_on: FailOn,
    verbose: bool,
    no_color: bool,
    everything: bool = False,
) -> None:
    """Put a report out in the form that was asked for."""

    def drawn() -> bytes:
        if form is Format.JSON:
            from ncclforensics.views import json_report

            return json_report.json(report)
        if form is Format.MARKDOWN:
            from ncclforensics.views import markdown

            return markdown.markdown(report, everything=everything).encode()
        if form in (Format.JUNIT, Format.SARIF):
            from ncclforensics.views import ci_formats

            return ci_formats.junit(report, SERIOUS[fail_on]) if form is Format.JUNIT else ci_formats.sarif(report)
        from ncclforensics.views import text_report

        color = is_colored(output, no_color)
        width = text_report.width_of_terminal()
        return text_report.text(report, width=width, color=color, verbose=verbose, everything=everything).encode()

    put(report.run.briefly(drawn), output)


def is_colored(output: Path | None, no_color: bool) -> bool:
    """Only a terminal gets colours."""
    return output is None and sys.stdout.isatty() and not no_color


def put(data: bytes, output: Path | None) -> None:
    """Into the file, or to stdout where none is named."""
    if output is not None:
        output.write_bytes(data)
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def exit_code(report: Report, fail_on: FailOn, *, is_measured: bool = False) -> Exit:
    """What the report says in one number; `is_measured`: it holds a benchmark."""
    if any(finding.severity in SERIOUS[fail_on] for finding in report.findings):
        return Exit.FINDINGS
    verdicts = {row["verdict"] for row in report.verdicts}
    if is_measured and not verdicts:  # a benchmark alone is not asked who hangs
        return Exit.NOTHING
    return Exit.UNDECIDABLE if not verdicts or "undecidable" in verdicts else Exit.NOTHING
