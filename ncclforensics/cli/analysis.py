"""Load a report from paths, with a progress bar, and print the problems of the inputs to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from ncclforensics import analyze
from ncclforensics.data.names import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from ncclforensics.report.build import Report

MOST_PROBLEMS = 8  # of one input, on stderr
BAR_DELAY = 0.5  # seconds until a progress bar appears


def load_report(
    paths: list[str], *, quiet: bool, hashed: bool = False, shows_problems: bool = False, **options: Any
) -> Report:
    """Analyse these paths and print the problems of the inputs to stderr, unless `quiet`.

    `hashed` adds the SHA-256 of every input; `shows_problems`: the report will stand on the same terminal and show the
    problems of inputs itself. `options`: those of `analyze`.
    """
    with ProgressBar() if sys.stderr.isatty() and not quiet else nullcontext() as bar:
        progress = bar.update if bar else lambda done, total: None
        report = analyze(paths, progress=progress, **options)
    if hashed:
        report.hash_inputs()
    if not quiet:
        print_problems([] if shows_problems else report.input_problems())
        problems = report.selection.problems(report.run, report.findings + report.not_selected)
        unsuited = report.time_range.problem() if report.time_range else None
        for problem in [*problems, *([unsuited] if unsuited else [])]:
            typer.echo(printable(problem), err=True)
    return report


def print_problems(problems: Iterable[tuple[str, str]]) -> None:
    """Print the path and the problem of inputs to stderr; of many problems of one input, the first ones."""
    for path, found in groupby(problems, key=itemgetter(0)):
        texts = [problem for _, problem in found]
        left = len(texts) - MOST_PROBLEMS
        more = [f"has {left} more problems: --format json lists them"] if left > 0 else []
        for text in [*texts[:MOST_PROBLEMS], *more]:
            typer.echo(printable(f"{path} {text}"), err=True)


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """A progress bar on stderr that appears once the work takes longer than BAR_DELAY."""

    def __init__(self, label: str = "reading", *, of_bytes: bool = True) -> None:
        self._label, self._of_bytes = label, of_bytes
        self._began = monotonic()
        self._progress: Progress | None = None

    def update(self, done: int, total: int, current: str = "") -> None:
        """Show that `done` of `total` units are finished, and what runs now."""
        from ncclforensics.views.progress import progress

        if self._progress is None and monotonic() - self._began > BAR_DELAY:
            self._progress = progress(of_bytes=self._of_bytes)
            self._progress.start()
            self._progress.add_task(self._label, total=total)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=min(done, total))  # compressed files hold more
            self._progress.update(self._progress.task_ids[0], description=f"{self._label} {current}".rstrip())

    def __exit__(self, *exception: object) -> None:
        if self._progress is not None:
            self._progress.stop()
