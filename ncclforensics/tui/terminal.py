"""Run the screens in this terminal, until the user quits or the terminal is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from textual.constants import DRIVER
from textual.driver import Driver

from ncclforensics.archive.atomic_write import temporary_prefix
from ncclforensics.data.paths import STDIN
from ncclforensics.data.settings import Settings
from ncclforensics.errors import Terminated, UsageError
from ncclforensics.inputs import sources
from ncclforensics.tui.app import Forensics, Request
from ncclforensics.tui.drivers import replacement

LOOK_INTERVAL = 1.0  # seconds between two looks at whether the terminal is still there


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
        app = _InTerminal(Request(files, rank_from, settings, redact=redact, redact_map=redact_map))
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, app.end_by_signal)
        app.run()
        return app.return_code or 0


class _InTerminal(Forensics):
    """The application, which ends in order when it is told to or its terminal is closed."""

    def get_driver_class(self) -> type[Driver]:
        """Return a driver that outlives its terminal or its server."""
        return replacement(super().get_driver_class())

    def on_mount(self) -> None:
        """Look now and then whether the terminal is still there: not every process hears of its end by a signal."""
        if not DRIVER:
            self.set_interval(LOOK_INTERVAL, self._end_without_terminal)

    def _end_without_terminal(self) -> None:
        if not sys.stdin.isatty():
            self.exit(return_code=128 + signal.SIGHUP)

    def end_by_signal(self, number: int, _: object) -> None:
        """Leave the screens, and the program with the exit code of this signal."""
        signal.signal(signal.SIGCONT, signal.SIG_DFL)  # follows SIGHUP, and Textual would show the screens again
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the application has not begun, or has ended
            raise Terminated(128 + number) from None
        loop.call_soon_threadsafe(partial(self.exit, return_code=128 + number))


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
