"""The command `slow`: what makes a job slow that runs."""

from __future__ import annotations

from dataclasses import replace

import typer

from ncclforensics.cli.option_groups import Printing, Reading, Shown, with_options
from ncclforensics.cli.options import Paths
from ncclforensics.cli.output import exit_code_of_slow, is_on_terminal, write_report


@with_options
def slow(paths: Paths, *, printing: Printing, shown: Shown, reading: Reading) -> None:
    """Find what makes a running job slow: whom the others wait for, since when, and what it costs.

    From profiler traces, tables, step lines, Inspector records and Flight Recorder dumps; reads every byte.
    """
    report = reading.load(paths, shown, everything=True, shows_problems=is_on_terminal(printing))
    report = replace(reading.redacted(report), is_about_slow=True)
    write_report(report, printing)
    raise typer.Exit(exit_code_of_slow(report, printing.fail_on))
