"""The command `report`: an attachment to a postmortem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import (
    Comm,
    Config,
    FailOn,
    FailOnOption,
    Host,
    On,
    Paths,
    Quiet,
    RankFrom,
    Ranks,
    Redact,
    RedactMap,
    Since,
    Until,
)
from ncclforensics.cli.output import exit_code_of, write_bytes
from ncclforensics.inputs.remote import without_secrets


def report(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write: .html, .md, .json, or a card for a chat as .svg or .png.",
        ),
    ],
    title: Annotated[
        str | None, typer.Option("--title", help="Use this title instead of what happened and when.")
    ] = None,
    note: Annotated[
        Path | None,
        typer.Option("--note", metavar="FILE.md", help="Put this Markdown text before the report."),
    ] = None,
    fail_on: FailOnOption = FailOn.WARNING,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    on: On = None,
    config: Config = None,
    quiet: Quiet = False,
) -> None:
    """Write an attachment: an HTML page that opens offline, Markdown, JSON or a card for a chat. Reads every byte."""
    from shlex import join

    from ncclforensics.views.attachment import attachment, check_suffix

    check_suffix(output)
    note_text = note.read_text(encoding="utf-8", errors="replace") if note else ""
    loaded = load_report(
        paths,
        full=True,
        everything=True,
        hashed=True,
        rank_from=rank_from,
        on=on,
        settings=configure(config, quiet=quiet),
        quiet=quiet,
        ranks=ranks,
        host=host,
        comm=comm,
        since=since,
        until=until,
    )
    command = [without_secrets(argument) for argument in sys.argv[1:]]
    if redact or redact_map:
        from ncclforensics.report.redacted_run import redact_report

        loaded, pseudonyms = redact_report(loaded, redact_map)
        title, note_text = pseudonyms.text(title) if title else None, pseudonyms.text(note_text)
        command = [pseudonyms.argument(argument) for argument in command]
    page = attachment(loaded, output, join(["ncclforensics", *command]), title=title, note=note_text)
    write_bytes(page, output, [loaded])
    raise typer.Exit(exit_code_of(loaded, fail_on, has_benchmark=loaded.run["benchmark"].height > 0))
