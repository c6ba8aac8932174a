"""The journal of one rank: it writes a line before every call, so that the last line shows where the rank stopped.

The format of the lines is described in `grammars/journal.lark`.
"""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

LONGEST_ERROR = 300  # characters
# Replace characters that JSON would escape, so that every line has one simple format.
PLAIN = str.maketrans({'"': "'", "\\": "/"})


class Journal:
    """A file of lines, appended with single unbuffered writes, so that no line is lost when the process ends."""

    def __init__(self, path: Path, **common_fields: Any) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._common_fields = common_fields

    def write(self, **fields: Any) -> None:
        """Append a line. Raises OSError if the disk is full."""
        line = json.dumps({"journal": 1, "time": now(), **self._common_fields, **fields}, separators=(",", ":")) + "\n"
        os.write(self._file, line.encode("ascii"))


def now() -> str:
    """Return the local time without a zone, as NCCL prints it, in microseconds."""
    return datetime.now().isoformat(sep=" ", timespec="microseconds")


def host() -> str:
    """Return the host name as NCCL prints it: up to its first dot, restricted to the characters of a host name."""
    name = socket.gethostname().partition(".")[0]
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name) or "localhost"


def plain(error: BaseException) -> str:
    """Return the error as one line without quotes."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:LONGEST_ERROR].translate(PLAIN)
