"""The command `report`: an attachment to a postmortem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.option_groups import Reading, Shown, with_options
from ncclforensics.cli.options import FailOn, FailOnOption, Paths
from ncclforensics.cli.output import Exit, exit_code_of, tell_written, write_bytes
from ncclforensics.cli.output_file import check_writable
from ncclforensics.inputs.remote import without_secrets


@with_options
def report(
    paths: Paths,
    *,
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
    fail_on: FailOnOption = FailOn.NEVER,
    shown: Shown,
    reading: Reading,
) -> None:
    """Write an attachment: an HTML page that opens offline, Markdown, JSON or a card for a chat. Reads every byte.

    Ends with 0 if it was written, whatever it says; --fail-on makes a gate of it.
    """
    from shlex import join

    from ncclforensics.views.attachment import attachment, check_suffix

    check_suffix(output)
    check_writable(output)
    note_text = note.read_text(encoding="utf-8", errors="replace") if note else ""
    loaded = reading.load(paths, shown, hashed=True)
    command = [without_secrets(argument) for argument in sys.argv[1:]]
    if reading.is_redacted:
        from ncclforensics.report.redacted_run import redact_report

        loaded, pseudonyms = redact_report(loaded, reading.redact_map)
        title, note_text = pseudonyms.text(title) if title else None, pseudonyms.text(note_text)
        command = [pseudonyms.argument(argument) for argument in command]
    page = attachment(loaded, output, join(["ncclforensics", *command]), title=title, note=note_text)
    write_bytes(page, output, [loaded])
    if not reading.quiet:
        tell_written(output)
    code = exit_code_of(loaded, fail_on, has_benchmark=loaded.run["benchmark"].height > 0)
    raise typer.Exit(Exit.OK if fail_on is FailOn.NEVER and code is Exit.UNDECIDABLE else code)
