"""A report as a file to attach or to post; the suffix sets the format."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ncclforensics.data.installation import install_command
from ncclforensics.errors import UsageError
from ncclforensics.report.build import Report
from ncclforensics.views.author_note import Cover
from ncclforensics.views.headline import headline

SUFFIXES = (".html", ".md", ".json", ".svg", ".png")


def check_suffix(path: Path) -> None:
    """Raise UsageError if no format has the suffix of this file."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: unknown suffix; use one of {', '.join(SUFFIXES)}")


def attachment(report: Report, path: Path, command: str, *, title: str | None = None, note: str = "") -> bytes:
    """Render a report in the format of a file's suffix: a page, Markdown, JSON, or a card as SVG or PNG.

    `command`: the one that made it. `title`: instead of what happened. `note`: the author's, in Markdown. Raises
    UsageError if the suffix is unknown or a library of the extra `report` is not installed.
    """
    check_suffix(path)
    cover = Cover(title or headline(report), note, command, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    if path.suffix == ".json":
        from ncclforensics.views import json_report

        return json_report.json(report)
    if path.suffix == ".md":
        from ncclforensics.views import markdown

        return markdown.postmortem(report, cover).encode()
    try:
        if path.suffix == ".html":
            from ncclforensics.views import postmortem

            return postmortem.html(report, cover)
        from ncclforensics.views import card
    except ModuleNotFoundError as missing:
        install = f"{missing.name} is not installed; for {path.suffix} run {install_command('report')}"
        raise UsageError(f"{install}, or write .md or .json") from missing
    return card.png(report, cover) if path.suffix == ".png" else card.svg(report, cover)
