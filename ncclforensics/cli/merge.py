"""The command `merge`: several saved runs as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.options import Config, Quiet
from ncclforensics.cli.output import Exit


def merge(
    output: Annotated[
        Path, typer.Argument(metavar="OUT.ncclf", help="The file to write; it must not exist, so that none is lost.")
    ],
    paths: Annotated[list[str], typer.Argument(metavar="RUN.ncclf", help="Saved runs, or quoted globs of them.")],
    config: Config = None,
    quiet: Quiet = False,
) -> None:
    """Put saved runs together into one, such as those that each node of a job saved of its own logs.

    A damaged one is named on stderr and left out; so is an input that several of them hold.
    """
    from ncclforensics.archive import write
    from ncclforensics.errors import UsageError
    from ncclforensics.inputs.sources import find

    if output.exists():
        raise UsageError(f"{output} exists: the first argument is the file that merge writes")
    for source in find(paths):
        if not source.saved and not source.problem:
            raise UsageError(f"{source.path} is no saved run: `ncclforensics save` makes one of logs")
    report = load_report(
        paths,
        full=True,
        everything=True,
        hashed=True,
        settings=configure(config, quiet=quiet),
        quiet=quiet,
    )
    write.save(report, output)
    if report.defects:
        report_defects(report.defects)
        raise typer.Exit(Exit.DEFECT)
