"""How the screens come up in this terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from textual.constants import DRIVER

from ncclforensics.data.paths import STDIN
from ncclforensics.errors import UsageError
from ncclforensics.tui.app import Forensics, Request


def show(paths: list[str], *, rank_from: str | None) -> None:
    """Show the screens until the user leaves them. Raises UsageError where there is no terminal."""
    with tempfile.TemporaryDirectory(prefix="ncclforensics-") as folder:
        named = tuple(_kept(folder) if path == STDIN else path for path in paths)
        is_shown = DRIVER or (sys.stdin.isatty() and sys.stdout.isatty())
        if not is_shown:
            raise UsageError("the screens need a terminal; `check` prints what they show, --serve needs a browser")
        Forensics(Request(named, rank_from)).run()


def _kept(folder: str) -> str:
    """What comes in through standard input, as a file; then the keyboard takes its place."""
    copy = Path(folder, "stdin")
    with open(copy, "wb") as file:
        while data := sys.stdin.buffer.read(1 << 20):
            file.write(data)
    try:
        keyboard = os.open("/dev/tty", os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"- was read, but there is no keyboard to go on with: {error.strerror}") from error
    os.dup2(keyboard, sys.stdin.fileno())
    os.close(keyboard)
    return str(copy)
