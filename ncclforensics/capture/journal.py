"""The journal of one rank: a line before every call, so that the last one shows where it stopped.

The shape of its lines is described in `grammars/journal.lark`.
"""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

SHOWN = 300  # characters of an error's text
# What would need an escape in JSON stands as something else: a line has one shape.
PLAIN = str.maketrans({'"': "'", "\\": "/"})


class Journal:
    """One file, which whole lines are appended to: what is written is there, however the process ends."""

    def __init__(self, path: Path, **head: Any) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._head = head

    def write(self, **told: Any) -> None:
        """Append a line. Raises OSError if the disk is full."""
        line = json.dumps({"journal": 1, "time": now(), **self._head, **told}, separators=(",", ":")) + "\n"
        os.write(self._file, line.encode("ascii"))


def now() -> str:
    """Local time without a zone, as NCCL prints it, to the microsecond."""
    return datetime.now().isoformat(sep=" ", timespec="microseconds")


def host() -> str:
    """This host's name, of the characters that NCCL's lines may have there."""
    name = socket.gethostname()
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name) or "localhost"


def plain(error: BaseException) -> str:
    """An error as one line without quotes."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:SHOWN].translate(PLAIN)
