"""The progress bar."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress(label: str, *, of_bytes: bool) -> Progress:
    """Return a progress bar on stderr that disappears at the end."""
    amount = DownloadColumn() if of_bytes else MofNCompleteColumn()
    columns = (TextColumn(label), BarColumn(), amount, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
