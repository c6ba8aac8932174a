"""The command `save`: a parsed run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.analysis import load_report, print_problems
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.options import Config, On, Paths, Quiet, RankFrom, Redact, RedactMap
from ncclforensics.cli.output import Exit, refuse_to_overwrite


def save(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="NAME.ncclf", help="The file to write; every command accepts it as PATH."
        ),
    ],
    tables: Annotated[
        bool, typer.Option("--tables", help="Add tables with names instead of codes, for DuckDB, Polars and others.")
    ] = False,
    rank_from: RankFrom = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    on: On = None,
    config: Config = None,
    quiet: Quiet = False,
) -> None:
    """Parse a run once and save it as one file, which every command accepts as PATH. Reads every byte."""
    from ncclforensics.archive import write

    report = load_report(
        paths,
        full=True,
        everything=True,
        hashed=True,
        rank_from=rank_from,
        on=on,
        settings=configure(config, quiet=quiet),
        quiet=quiet,
    )
    if redact or redact_map:
        from ncclforensics.report.redacted_run import redact_report

        report, _ = redact_report(report, redact_map)
    refuse_to_overwrite(output, [report])
    known = report.input_problems()
    write.save(report, output, with_tables=tables)
    if not quiet:  # saving reads lines again, to quote them
        print_problems(problem for problem in report.input_problems() if problem not in known)
    if report.defects:
        report_defects(report.defects)
        raise typer.Exit(Exit.DEFECT)
