"""From paths to a report, with a progress bar; what is wrong with the inputs goes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from ncclforensics import analyze
from ncclforensics.data.names import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from ncclforensics.report.build import Report
    from ncclforensics.report.redaction import Pseudonyms

SOON = 0.5  # seconds until a progress bar appears


def analyzed(paths: list[str], *, full: bool, quiet: bool, **more: Any) -> Report:
    """What `read` returns, for commands that read once: no copy of a pipe is left behind."""
    from ncclforensics.inputs.sources import forget_spooled

    try:
        return read(paths, full=full, quiet=quiet, **more)
    finally:
        forget_spooled()


def read(
    paths: list[str],
    *,
    full: bool,
    quiet: bool,
    everything: bool = False,
    hashed: bool = False,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    rank_from: str | None = None,
    ranks: str | None = None,
    host: str | None = None,
    comm: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> Report:
    """The report on these paths; what is wrong with them goes to stderr."""
    from ncclforensics.report import selection

    shown = selection.Selection(selection.ranks(ranks) if ranks else frozenset(), host, comm)
    with Bar() if sys.stderr.isatty() and not quiet else nullcontext() as bar:
        report = analyze(
            paths,
            whole=full,
            everything=everything,
            select=select,
            ignore=ignore,
            rank_from=rank_from,
            selection=shown,
            since=since,
            until=until,
            progress=bar.tell if bar else lambda done, total: None,
        )
    if hashed:
        report.hash_inputs()
    if not quiet:
        for path, problem in report.input_problems():
            typer.echo(f"{printable(path)} {problem}", err=True)
    return report


class Bar(AbstractContextManager["Bar"]):
    """A progress bar on stderr, from the moment on that reading takes longer than SOON."""

    def __init__(self, doing: str = "reading", *, of_bytes: bool = True) -> None:
        self._doing, self._of_bytes = doing, of_bytes
        self._began = monotonic()
        self._progress: Progress | None = None

    def tell(self, done: int, total: int) -> None:
        """How far it has come."""
        from ncclforensics.views.progress import progress

        if self._progress is None and monotonic() - self._began > SOON:
            self._progress = progress(self._doing, of_bytes=self._of_bytes)
            self._progress.start()
            self._progress.add_task(self._doing, total=total)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done)

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def redacted(report: Report, mapping: Path | None) -> tuple[Report, Pseudonyms]:
    """The report under pseudonyms, and these; `mapping`: the file that keeps them."""
    from ncclforensics.report import redaction

    known = redaction.pseudonyms(report.run, mapping)
    without_names = redaction.redacted(report, known)
    if mapping is not None:
        redaction.write(known, mapping)
    return without_names, known
