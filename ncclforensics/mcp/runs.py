"""The runs that a server may read: paths below its folders, and the last reports, read again if a file has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ncclforensics import analyze
from ncclforensics.data.paths import STDIN
from ncclforensics.data.settings import Settings
from ncclforensics.errors import UsageError
from ncclforensics.inputs import sources
from ncclforensics.report.build import Report

MOST_REPORTS = 4  # kept in memory
Key = tuple[object, ...]


class Runs:
    """Reports on paths below some folders. Raises UsageError for another path, NoInputError if nothing is readable."""

    def __init__(self, folders: Iterable[Path], settings: Settings | None = None) -> None:
        self._settings = settings
        self._folders = [folder.resolve() for folder in folders]
        self._reports: OrderedDict[Key, Report] = OrderedDict()

    def report(self, paths: Iterable[str], *, everything: bool = False) -> Report:
        """Return the report of `hang` on these paths, or with `everything` that of `check`."""
        allowed = [self.allowed(path) for path in paths]
        key = (everything, *self._state(allowed))
        if key in self._reports:
            self._reports.move_to_end(key)
        else:
            self._reports[key] = analyze(allowed, full=everything, everything=everything, settings=self._settings)
        while len(self._reports) > MOST_REPORTS:
            self._reports.popitem(last=False)
        return self._reports[key]

    def source(self, path: str) -> sources.Source:
        """Return the one file of this path."""
        (found, *others) = sources.find([self.allowed(path)])
        if others:
            raise UsageError(f"{path}: is several files; name one")
        return found

    def allowed(self, path: str) -> str:
        """Return the path if it lies below one of the folders; symbolic links are followed first."""
        if path == STDIN:
            raise UsageError("standard input belongs to the protocol; name a file or a folder")
        given = Path(path)
        absolute = given if given.is_absolute() else self._folders[0] / given
        try:
            real = absolute.resolve()
        except (ValueError, RuntimeError) as error:  # a NUL, half of a character, a loop of links
            raise UsageError(f"{path}: no path: {error}") from error
        if not any(real.is_relative_to(folder) for folder in self._folders):
            folders = ", ".join(str(folder) for folder in self._folders)
            raise UsageError(f"{path}: outside of the folders that this server reads: {folders}")
        return str(absolute)

    @staticmethod
    def _state(paths: list[str]) -> Iterable[tuple[str, int, int]]:
        """Name, size and time of every file of the paths."""
        for source in sources.find(paths):
            with suppress(OSError):
                status = source.file.stat()
                yield source.path, status.st_size, status.st_mtime_ns
