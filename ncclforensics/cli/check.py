"""The command `check`: the summary of a run and the findings of all rules."""

from __future__ import annotations

import typer

from ncclforensics.cli.option_groups import Printing, Reading, Shown, with_options
from ncclforensics.cli.options import Ignore, Paths, Select
from ncclforensics.cli.output import exit_code_of, is_on_terminal, write_report


@with_options
def check(
    paths: Paths, *, printing: Printing, select: Select = None, ignore: Ignore = None, shown: Shown, reading: Reading
) -> None:
    """Summarise a run and list everything that the rules find in it. Reads every byte."""
    report = reading.load(
        paths, shown, select=select or (), ignore=ignore or (), shows_problems=is_on_terminal(printing)
    )
    report = reading.redacted(report)
    write_report(report, printing, everything=True)
    raise typer.Exit(exit_code_of(report, printing.fail_on, has_benchmark=report.run["benchmark"].height > 0))
