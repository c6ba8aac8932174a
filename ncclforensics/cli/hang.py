"""The command `hang`: the verdict on a hung job."""

from __future__ import annotations

import typer

from ncclforensics.cli.option_groups import Printing, Reading, Shown, with_options
from ncclforensics.cli.options import Full, Paths, SinceLook
from ncclforensics.cli.output import exit_code_of, is_on_terminal, write_report


@with_options
def hang(
    paths: Paths,
    *,
    printing: Printing,
    full: Full = False,
    since_look: SinceLook = None,
    shown: Shown,
    reading: Reading,
) -> None:
    """Find the ranks that block a hung job: the verdict, culprits, victims and the log lines that prove it."""
    report = reading.load(
        paths, shown, full=full, everything=False, since_look=since_look, shows_problems=is_on_terminal(printing)
    )
    report = reading.redacted(report)
    write_report(report, printing)
    raise typer.Exit(exit_code_of(report, printing.fail_on, asks_for_hang=True))
