"""What is handed on: an attachment to a postmortem, a run that is kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.cli.analysis import analyzed, redacted
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
from ncclforensics.cli.output import exit_code
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.report.build import Report
    from ncclforensics.views.author_note import Cover


def report(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write it; its suffix is .html, .md or .json."),
    ],
    title: Annotated[str | None, typer.Option("--title", help="The title, in place of the verdict.")] = None,
    note: Annotated[
        Path | None, typer.Option("--note", metavar="FILE.md", help="Your own words, in Markdown, to stand in front.")
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
    """An attachment to a postmortem: HTML in one file that opens offline, Markdown, or JSON. Reads every byte."""
    written = _WRITTEN_AS.get(output.suffix)
    if written is None:
        raise UsageError(f"{output}: the suffix says what to write: {', '.join(_WRITTEN_AS)}")
    words = note.read_text(encoding="utf-8", errors="replace") if note else ""
    answer = analyzed(
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
        answer, known = redacted(answer, redact_map)
        title, words = known.text(title) if title else None, known.text(words)
        command = [known.argument(each) for each in command]
    output.write_bytes(written(answer, title, words, command))
    raise typer.Exit(exit_code(answer, fail_on, is_measured=answer.run["benchmark"].height > 0))


def _html(answer: Report, title: str | None, note: str, command: list[str]) -> bytes:
    try:
        from ncclforensics.views import postmortem
    except ModuleNotFoundError as missing:
        wanted = f"{missing.name} is not installed; for HTML: pip install 'ncclforensics[report]'"
        raise UsageError(f"{wanted}; .md and .json need nothing more") from missing
    return postmortem.html(answer, _cover(answer, title, note, command))


def _markdown(answer: Report, title: str | None, note: str, command: list[str]) -> bytes:
    from ncclforensics.views import markdown

    return markdown.postmortem(answer, _cover(answer, title, note, command)).encode()


def _json(answer: Report, title: str | None, note: str, command: list[str]) -> bytes:
    from ncclforensics.views import json_report

    return json_report.json(answer)


_WRITTEN_AS = {".html": _html, ".md": _markdown, ".json": _json}


def _cover(answer: Report, title: str | None, note: str, command: list[str]) -> Cover:
    from shlex import join

    from ncclforensics.views import markdown
    from ncclforensics.views.author_note import Cover

    return Cover(title or markdown.headline(answer), note, join(["ncclforensics", *command]))


def save(
    paths: Paths,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="NAME.ncclf", help="Where to keep the run; other commands take it as PATH."
        ),
    ],
    rank_from: RankFrom = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
) -> None:
    """Parse once and keep the run: one file that is accepted wherever PATH is. Reads every byte."""
    from ncclforensics.archive import write

    answer = analyzed(paths, full=True, everything=True, hashed=True, rank_from=rank_from, quiet=quiet)
    if redact or redact_map:
        answer, _ = redacted(answer, redact_map)
    write.save(answer, output)
