"""The command `save`: a parsed run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.analysis import print_problems
from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.option_groups import Reading, with_options
from ncclforensics.cli.options import Paths
from ncclforensics.cli.output import Exit, refuse_to_overwrite, tell_written
from ncclforensics.cli.output_file import check_writable


@with_options
def save(
    paths: Paths,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="NAME.ncclf", help="The file to write; every command accepts it as PATH."
        ),
    ],
    tables: Annotated[
        bool, typer.Option("--tables", help="Add tables with names instead of codes, for DuckDB, Polars and others.")
    ] = False,
    reading: Reading,
) -> None:
    """Parse a run once and save it as one file, which every command accepts as PATH. Reads every byte."""
    from ncclforensics.archive import write

    check_writable(output)
    report = reading.redacted(reading.load(paths, hashed=True))
    refuse_to_overwrite(output, [report])
    known = report.input_problems()
    write.save(report, output, with_tables=tables)
    if not reading.quiet:  # saving reads lines again, to quote them
        print_problems(problem for problem in report.input_problems() if problem not in known)
        tell_written(output)
    if report.defects:
        report_defects(report.defects)
        raise typer.Exit(Exit.DEFECT)
