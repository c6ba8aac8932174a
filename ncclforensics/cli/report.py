"""The command `report`: an attachment to a postmortem."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.cli.analysis import load_single_report, redact_report
from ncclforensics.cli.options import (
    Comm,
    FailOn,
    FailOnOption,
    Host,
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
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.report.build import Report
    from ncclforensics.views.author_note import Cover


def report(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write, with the suffix .html, .md or .json.",
        ),
    ],
    title: Annotated[str | None, typer.Option("--title", help="Use this title instead of the verdict.")] = None,
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
    quiet: Quiet = False,
) -> None:
    """Write an attachment to a postmortem: HTML in one file that opens offline, Markdown or JSON. Reads every byte."""
    renderer = _RENDERERS.get(output.suffix)
    if renderer is None:
        raise UsageError(f"{output}: unknown suffix; use one of {', '.join(_RENDERERS)}")
    note_text = note.read_text(encoding="utf-8", errors="replace") if note else ""
    loaded = load_single_report(
        paths,
        full=True,
        everything=True,
        hashed=True,
        rank_from=rank_from,
        quiet=quiet,
        ranks=ranks,
        host=host,
        comm=comm,
        since=since,
        until=until,
    )
    command = sys.argv[1:]
    if redact or redact_map:
        loaded, pseudonyms = redact_report(loaded, redact_map)
        title, note_text = pseudonyms.text(title) if title else None, pseudonyms.text(note_text)
        command = [pseudonyms.argument(argument) for argument in command]
    write_bytes(renderer(loaded, title, note_text, command), output, [loaded])
    raise typer.Exit(exit_code_of(loaded, fail_on, has_benchmark=loaded.run["benchmark"].height > 0))


def _html(loaded: Report, title: str | None, note: str, command: list[str]) -> bytes:
    try:
        from ncclforensics.views import postmortem
    except ModuleNotFoundError as missing:
        install = f"{missing.name} is not installed; for HTML run pip install 'ncclforensics[report]'"
        raise UsageError(f"{install}, or write .md or .json") from missing
    return postmortem.html(loaded, _cover(loaded, title, note, command))


def _markdown(loaded: Report, title: str | None, note: str, command: list[str]) -> bytes:
    from ncclforensics.views import markdown

    return markdown.postmortem(loaded, _cover(loaded, title, note, command)).encode()


def _json(loaded: Report, title: str | None, note: str, command: list[str]) -> bytes:
    from ncclforensics.views import json_report

    return json_report.json(loaded)


_RENDERERS = {".html": _html, ".md": _markdown, ".json": _json}


def _cover(loaded: Report, title: str | None, note: str, command: list[str]) -> Cover:
    from shlex import join

    from ncclforensics.views import markdown
    from ncclforensics.views.author_note import Cover

    return Cover(title or markdown.headline(loaded), note, join(["ncclforensics", *command]))
