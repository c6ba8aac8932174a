"""How far a long work is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress(doing: str, *, of_bytes: bool) -> Progress:
    """A bar on stderr that goes away when the work is done."""
    amount = DownloadColumn() if of_bytes else MofNCompleteColumn()
    columns = (TextColumn(doing), BarColumn(), amount, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
