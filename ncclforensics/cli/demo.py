"""The command `demo`: `hang` on an example that is bundled with the program."""

from __future__ import annotations

from pathlib import Path

import typer

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.option_groups import Printing
from ncclforensics.cli.options import FailOn, Format, FormatOption, NoColor
from ncclforensics.cli.output import exit_code_of, write_report

PACKAGE = Path(__file__).parents[1]
LOGS = (
    PACKAGE / "demo"  # in a wheel
    if (PACKAGE / "demo").is_dir()
    else PACKAGE.parent / "fixtures/incidents/one-rank-stops-before-an-allreduce"
)


def demo(report_format: FormatOption = Format.TEXT, no_color: NoColor = False) -> None:
    """Run `hang` on a bundled example: one rank stops before an AllReduce."""
    report = load_report([str(LOGS / "*.log")], full=False, quiet=True)
    write_report(report, Printing(report_format, no_color=no_color))
    raise typer.Exit(exit_code_of(report, FailOn.WARNING))
