"""Write a file so that it is complete or as it was: to a temporary file beside it, which then takes its place.

A process that is killed leaves its temporary files; the next one that needs such a file removes them.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

ABANDONED_AFTER = 3600  # seconds; a younger temporary file may belong to a process on another host


def temporary_prefix() -> str:
    """Return the beginning of the names of this process's files in the folder for temporary files.

    Files and folders there that a killed process left are removed.
    """
    remove_abandoned(Path(tempfile.gettempdir()), "ncclforensics-", "-*")
    return f"ncclforensics-{os.getpid()}-"


def remove_abandoned(folder: Path, prefix: str, suffix: str = "") -> None:
    """Remove what processes that have ended left in a folder under this prefix, their pid, and this suffix."""
    for path in folder.glob(f"{escape(prefix)}[1-9]*{suffix}"):
        pid = path.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):
            if pid.isdecimal() and path.lstat().st_mtime < time.time() - ABANDONED_AFTER and not _is_alive(int(pid)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Yield a file for the new content of `path`; after an error, `path` holds what it held before.

    A symbolic link is replaced, not followed. What is no regular file (`/dev/stdout`, a pipe) is written to directly.
    `mode`: permissions of a new file, of which the umask takes some away; an existing file keeps its own.
    Raises OSError.
    """
    try:
        before: os.stat_result | None = path.lstat()
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode) and not _leads_to_a_file(path):
        with open(path, "wb") as file:
            yield file
        return
    remove_abandoned(path.parent, f".{path.name}.")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if before is not None and stat.S_ISREG(before.st_mode) and mode == 0o666:
                new.chmod(stat.S_IMODE(before.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)  # the temporary name would tell the user nothing
        raise
    finally:
        with suppress(FileNotFoundError):
            new.unlink()


def write_file(path: Path, data: bytes) -> None:
    """Write a file so that it is complete or as it was before. Raises OSError."""
    with replacing(path) as file:
        file.write(data)


def _leads_to_a_file(path: Path) -> bool:
    """Whether a symbolic link leads to a regular file, or nowhere."""
    return path.is_symlink() and (path.is_file() or not path.exists())
