"""What a file system says of a file at one moment: by this, a log that a job writes to is told from a copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import Any, NamedTuple


class FileState(NamedTuple):
    """Times of a file, in seconds since the epoch; all but `observed` are by the clock of the file server."""

    observed: float  # when these were asked for
    modified: float  # when it was last written to, or what a program that copied it has set
    changed: float  # when it was last written to, or its times, its owner or its name were set
    folder_modified: float  # when a file of its folder was last created, renamed or removed
    inode: int


def state_of(path: Path) -> FileState | None:
    """Return the state of a file; None if the file system does not give it."""
    try:
        file, folder = path.stat(), path.parent.stat()
    except OSError:
        return None
    return FileState(time(), file.st_mtime, file.st_ctime, folder.st_mtime, file.st_ino)


def state_in(entry: Mapping[str, Any]) -> FileState | None:
    """Return the state of a file that a saved run was made of; None if its manifest does not say it."""
    values = {name: entry[name] for name in FileState._fields}
    return None if None in values.values() else FileState(**values)
