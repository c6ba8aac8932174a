"""Textual's drivers for a terminal that may be closed at any time, and for a page whose server may be killed."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import IO, Any

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.messages import ExitApp

COLUMNS, ROWS = 80, 24  # of a page that states no size
MOST_COLUMNS, MOST_ROWS = 1000, 500


class _Output:
    """A file that loses without an error what is written after its terminal was closed."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


def _write(file: int, data: bytes) -> int:
    with suppress(BrokenPipeError):
        os.write(file, data)
    return len(data)


def _bounded(columns: object, rows: object) -> tuple[int, int]:
    """The size of a screen as it was asked for, within what a screen may have.

    >>> _bounded(120, 40), _bounded(10**9, "40")
    ((120, 40), (1000, 24))
    """
    width, height = (value if isinstance(value, int) else None for value in (columns, rows))
    return min(max(width or COLUMNS, 1), MOST_COLUMNS), min(max(height or ROWS, 1), MOST_ROWS)


class Terminal(LinuxDriver):
    """The driver of a terminal."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._file: Any = _Output(self._file)

    def run_input_thread(self) -> None:
        """Read keys until the application ends or the terminal is closed."""
        with suppress(OSError):
            super().run_input_thread()


class Page(WebDriver):
    """The driver of a page in a browser, which may ask for any size: each cell takes memory."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._size = _bounded(*self._size) if self._size is not None else None
        self._write = partial(_write, self.fileno)

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Handle what the server passes on from the page."""
        if packet_type == "resize":
            columns, rows = _bounded(payload.get("width"), payload.get("height"))
            payload = {**payload, "width": columns, "height": rows}
        super().on_meta(packet_type, payload)

    def run_input_thread(self) -> None:
        """Read keys until the application or the server ends; without a server, the application ends, too."""
        super().run_input_thread()
        self._app.post_message(ExitApp())


def replacement(driver: type[Driver]) -> type[Driver]:
    """The driver of this module for one of Textual's; any other driver itself."""
    return {LinuxDriver: Terminal, WebDriver: Page}.get(driver, driver)
