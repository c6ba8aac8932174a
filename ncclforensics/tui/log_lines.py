"""The lines of one file, of which only those in view are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    import polars as pl

    from ncclforensics.inputs.logfile import LogFile

PATTERN = "re:"  # prefix of a search for a regular expression
WARNING = "NCCL WARN"  # as NCCL prints it


class LogLines(VirtualRows):
    """The lines of a file, or those that pass the filter."""

    def __init__(self) -> None:
        super().__init__()
        self.file: LogFile | None = None
        self.numbers: pl.Series | None = None  # the line numbers that pass the filter
        self.search_text = ""
        self.redact: Callable[[str], str] | None = None  # replaces names by pseudonyms
        self._widest = 1

    @property
    def rows(self) -> int:
        """Return the number of lines known so far."""
        if self.numbers is not None:
            return self.numbers.len()
        return self.file.lines if self.file else 0

    @property
    def fixed(self) -> int:
        """Return the width of the line numbers."""
        return self._digits + 2

    @property
    def number(self) -> int:
        """Return the number of the line under the cursor."""
        return self._number(self.cursor_row) if self.rows else 0

    def _number(self, row: int) -> int:
        return row + 1 if self.numbers is None else int(self.numbers[row])

    def on_unmount(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()

    def lines_added(self) -> None:
        """Show lines that have been added."""
        self.rows_changed(self._widest)

    def line_text(self, number: int) -> str:
        """Return a line, with pseudonyms if the run is redacted."""
        line = self.file.text(number) if self.file else ""
        return self.redact(line) if self.redact else line

    def text(self, row: int) -> Text:
        """Render a line with its number; the line is not interpreted as markup."""
        number = self._number(row)
        line = self.line_text(number)
        is_cursor = row == self.cursor_row
        text = Text(no_wrap=True, end="")
        text.append(f"{'>' if is_cursor else ' '}{number:>{self._digits}} ", CURSOR if is_cursor else "dim")
        text.append(line, "bold yellow" if WARNING in line else "")
        if self.search_text and not self.search_text.startswith(PATTERN):
            text.highlight_words([self.search_text], "reverse")
        if len(text) > self._widest:
            self._widest = len(text)
            self.call_later(self.lines_added)
        return text

    @property
    def _digits(self) -> int:
        return len(str(self.file.lines if self.file else 1))

    def scroll_to_text(self, text: str) -> None:
        """Scroll sideways until a text on the line under the cursor is in view."""
        self.scroll_sideways_to(self.line_text(self.number).find(text), len(text))

    def go(self, number: int) -> None:
        """Move the cursor to a line, or to the nearest one that passes the filter."""
        row = number - 1
        if self.numbers is not None:
            row = int(self.numbers.search_sorted(number))
        self.put(row, middle=True)
