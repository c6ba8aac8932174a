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

    def report(self, paths: str | Iterable[str], *, everything: bool = False) -> Report:
        """Return the report of `hang` on these paths or this one, or with `everything` that of `check`."""
        allowed = [file for path in ([paths] if isinstance(paths, str) else paths) for file in self.allowed(path)]
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
        (found, *others) = sources.find(self.allowed(path))
        if others:
            raise UsageError(f"{path}: is several files; name one")
        return found

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """Return the names and sizes of the files in a folder, sorted; of the folders in it without a size.

        Without a path, those of the first folder of this server.
        """
        folder = self._folders[0] / path  # an absolute path stays as it is
        if not self._is_inside(folder):
            raise UsageError(f"{path}: outside of the folders that this server reads: {self._folders_text()}")
        if not folder.is_dir():
            raise UsageError(f"{path} is not a folder; `verdict` reads files, too")
        inside = sorted(entry for entry in folder.iterdir() if not self._leads_out(entry))
        return [(entry.name, None) if entry.is_dir() else (entry.name, entry.stat().st_size) for entry in inside]

    def _folders_text(self) -> str:
        return ", ".join(map(str, self._folders))

    def allowed(self, path: str) -> list[str]:
        """Return the path if all that it names lies below the folders; otherwise the files that do.

        Symbolic links are followed first: also those in a folder, and those that a pattern matches.
        """
        if path == STDIN:
            raise UsageError("standard input belongs to the protocol; name a file or a folder")
        given = Path(path)
        absolute = given if given.is_absolute() else self._folders[0] / given
        try:
            is_inside = self._is_inside(absolute)
        except (ValueError, RuntimeError) as error:  # a NUL, half of a character, a loop of links
            raise UsageError(f"{path}: no path: {error}") from error
        files = [file for file, _ in sources.files_at(str(absolute))] if is_inside else []
        if is_inside and not any(map(self._leads_out, files)):
            return [str(absolute)]
        inside = [str(file) for file in files if not self._leads_out(file) and file.is_file()]
        if not inside:
            raise UsageError(f"{path}: outside of the folders that this server reads: {self._folders_text()}")
        return inside

    def _is_inside(self, path: Path) -> bool:
        """Whether a path lies below one of the folders. Raises ValueError and RuntimeError for one that is none."""
        real = path.resolve()
        return any(real.is_relative_to(folder) for folder in self._folders)

    def _leads_out(self, file: Path) -> bool:
        """Whether a file lies outside of the folders, once links are followed; a loop of links leads nowhere."""
        with suppress(RuntimeError):
            return not self._is_inside(file)
        return False

    @staticmethod
    def _state(paths: list[str]) -> Iterable[tuple[str, int, int]]:
        """Name, size and time of every file of the paths."""
        for source in sources.find(paths):
            with suppress(OSError):
                status = source.file.stat()
                yield source.path, status.st_size, status.st_mtime_ns
