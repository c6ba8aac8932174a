"""The command `diff`: two runs compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.option_groups import Reading, Shown, with_options
from ncclforensics.cli.options import Bad, DiffFormat, DiffFormatOption, Good, NoColor, Output
from ncclforensics.cli.output import Exit, is_colored, write_bytes

if TYPE_CHECKING:
    from ncclforensics.diff import Comparison


@with_options
def diff(
    good: Good,
    bad: Bad,
    *,
    diff_format: DiffFormatOption = DiffFormat.TEXT,
    output: Output = None,
    shown: Shown,
    reading: Reading,
    no_color: NoColor = False,
) -> None:
    """Compare a good run with a bad one: their results, and the differences that may explain them. Reads every byte.

    The runs may consist of logs, benchmarks and dumps of machines. What only one run contains is listed, but not
    counted as a difference. Exit code 0: no relevant difference, 1: relevant differences, 3: too little in common to
    compare.
    """
    from ncclforensics.diff.compare import compare_reports

    settings = configure(reading.config, quiet=reading.quiet)
    reports = [reading.load([path], shown, settings=settings) for path in (good, bad)]
    if reading.is_redacted:
        from ncclforensics.report.redacted_run import redact_reports

        reports, _ = redact_reports(reports, reading.redact_map)
    comparison = compare_reports(*reports)
    write_bytes(_rendered(comparison, diff_format, color=is_colored(output, no_color)), output, reports)
    defects = [*comparison.good.defects, *comparison.bad.defects]
    if defects:
        report_defects(defects)
    if comparison.matters:
        raise typer.Exit(Exit.FINDINGS)
    if defects:
        raise typer.Exit(Exit.DEFECT)
    if not comparison.is_enough:
        raise typer.Exit(Exit.UNDECIDABLE)


def _rendered(comparison: Comparison, diff_format: DiffFormat, *, color: bool) -> bytes:
    from ncclforensics.views import json_difference, text_difference, text_report

    if diff_format is DiffFormat.JSON:
        return json_difference.json(comparison)
    if diff_format is DiffFormat.MARKDOWN:
        return text_difference.markdown(comparison).encode()
    return text_difference.text(comparison, width=text_report.width_of_terminal(), color=color).encode()
