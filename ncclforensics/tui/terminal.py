"""Run the screens in this terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from textual.constants import DRIVER

from ncclforensics.archive.atomic_write import temporary_prefix
from ncclforensics.data.paths import STDIN
from ncclforensics.data.settings import Settings
from ncclforensics.errors import UsageError
from ncclforensics.inputs import sources
from ncclforensics.tui.app import Forensics, Request


def show(paths: list[str], *, rank_from: str | None, settings: Settings, redact: bool, redact_map: Path | None) -> int:
    """Show the screens until the user quits, and return the exit code.

    Raises UsageError if there is no terminal, NoInputError if nothing can be read.
    """
    with tempfile.TemporaryDirectory(prefix=temporary_prefix()) as folder:
        files = tuple(_copy_stdin(folder) if path == STDIN else path for path in paths)
        has_terminal = DRIVER or (sys.stdin.isatty() and sys.stdout.isatty())
        if not has_terminal:
            raise UsageError("`tui` needs a terminal; use `check` to print the findings, or --serve for a browser")
        sources.find(files, rank_from or sources.RANK_IN_NAME)
        app = Forensics(Request(files, rank_from, settings, redact=redact, redact_map=redact_map))
        app.run()
        return app.return_code or 0


def _copy_stdin(folder: str) -> str:
    """Copy standard input to a file, reconnect it to the keyboard, and return the path of the copy."""
    copy = Path(folder, "stdin")
    with open(copy, "wb") as file:
        while data := sys.stdin.buffer.read(1 << 20):
            file.write(data)
    try:
        keyboard = os.open("/dev/tty", os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"cannot open the keyboard after reading standard input: {error.strerror}") from error
    os.dup2(keyboard, sys.stdin.fileno())
    os.close(keyboard)
    return str(copy)
