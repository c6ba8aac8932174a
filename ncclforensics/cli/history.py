"""The command `history`: verdicts and facts of many runs, kept in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.options import (
    Config,
    DiffFormat,
    FailOn,
    FailOnOption,
    HistoryFormatOption,
    NoColor,
    Output,
    Quiet,
    RankFrom,
    Redact,
    RedactMap,
)
from ncclforensics.cli.output import Exit, is_colored, write_bytes
from ncclforensics.data.names import printable
from ncclforensics.errors import Defect, NoInputError, UsageError

if TYPE_CHECKING:
    from ncclforensics.history.overview import Overview
    from ncclforensics.history.tables import Record

history = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Keep the verdicts and facts of many runs in one file, and name what returns. `add` records runs; `show` "
    "names hosts, GPUs and NIC ports that return in verdicts, starts that failed, benchmarks outside their usual "
    "band, and findings that came with another version.",
)
File = Annotated[
    Path,
    typer.Option("--db", metavar="FILE", envvar="NCCLFORENSICS_HISTORY", help="The history, an SQLite file."),
]


@history.command()
def add(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="One run each: a folder, a file, a quoted glob or a saved run."),
    ],
    file: File,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="When the runs took place; taken from their logs or files without."),
    ] = None,
    rank_from: RankFrom = None,
    config: Config = None,
    quiet: Quiet = False,
) -> None:
    """Record runs, each PATH as one. Reads every byte. A run that is known counts once, whatever it is called.

    Several jobs of one cluster may add to the same file at the same time.
    """
    from ncclforensics.frames.time_range import parse_date
    from ncclforensics.history import store
    from ncclforensics.history.record import record_of

    moment = parse_date(at, "--at")
    settings = configure(config, quiet=quiet)
    records: list[Record] = []
    defects: list[Defect] = []
    for path in paths:
        try:
            report = load_report(
                [path], full=True, everything=True, hashed=True, rank_from=rank_from, settings=settings, quiet=quiet
            )
            record = record_of(report, path, at=moment)
            _refuse_part(record, records)
            records.append(record)
            defects += report.defects
        except NoInputError as error:
            typer.echo(f"ncclforensics: {printable(str(error))}", err=True)
    for record in records:
        added = store.add(file, record)
        if not quiet:
            typer.echo(f"run {added.run}  {added.outcome.value}  {printable(record.path)}")
    if defects:
        report_defects(defects)
        raise typer.Exit(Exit.DEFECT)
    if not records:
        raise typer.Exit(Exit.USAGE)


def _refuse_part(record: Record, others: list[Record]) -> None:
    """Raise UsageError if another path holds other logs of the same job: each would count as a run."""
    for other in others:
        if record.identity != other.identity and not set(record.communicators).isdisjoint(other.communicators):
            raise UsageError(
                f"{other.path} and {record.path} are logs of the same job, and each PATH is one run: give their "
                "folder or a quoted glob; nothing was recorded"
            )


@history.command()
def show(
    file: File,
    history_format: HistoryFormatOption = DiffFormat.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only runs from this time on.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only runs up to this time.")] = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    config: Config = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="List all runs with their numbers.")] = False,
    no_color: NoColor = False,
) -> None:
    """Show suspects, failed starts, slow benchmarks, and new findings.

    Exit code 0: nothing returns, 1: a suspect, or a benchmark below its band, 3: too few runs to tell.
    """
    from ncclforensics.frames.time_range import parse_date
    from ncclforensics.history import store
    from ncclforensics.history.overview import Overview, within

    if output is not None and output.exists() and file.exists() and output.samefile(file):
        raise UsageError(f"{output} is the history; write the report to another file")
    runs = within(store.read(file), parse_date(since, "--since"), parse_date(until, "--until"))
    if redact or redact_map:
        from ncclforensics.history.redaction import redact as redacted

        runs = redacted(runs, redact_map, configure(config, quiet=True).redact_words)
    overview = Overview(runs)
    rendered = _rendered(overview, history_format, color=is_colored(output, no_color), verbose=verbose)
    write_bytes(rendered, output, [])
    if overview.is_alarming and fail_on is FailOn.WARNING:
        raise typer.Exit(Exit.FINDINGS)
    if not overview.is_enough:
        raise typer.Exit(Exit.UNDECIDABLE)


def _rendered(overview: Overview, history_format: DiffFormat, *, color: bool, verbose: bool) -> bytes:
    from ncclforensics.views import json_history, text_history, text_report

    if history_format is DiffFormat.JSON:
        return json_history.json(overview)
    if history_format is DiffFormat.MARKDOWN:
        return text_history.markdown(overview).encode()
    width = text_report.width_of_terminal()
    return text_history.text(overview, width=width, color=color, verbose=verbose).encode()


@history.command()
def forget(
    runs: Annotated[list[int], typer.Argument(metavar="RUN", min=1, help="Numbers of runs, as `show -v` lists them.")],
    file: File,
) -> None:
    """Remove runs that do not belong there, such as those of a test."""
    from ncclforensics.history import store

    for run in runs:
        store.forget(file, run)
