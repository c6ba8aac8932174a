"""The lines of one file, of which only those in view are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from ncclforensics.report.condensed_lines import LEFT_OUT, time_in_prefix, without_pointers
from ncclforensics.tui.coloured_line import coloured
from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    import polars as pl

    from ncclforensics.inputs.logfile import LogFile

PATTERN = "re:"  # prefix of a search for a regular expression
FULL_LINES = "Show full lines, or those that are too wide without prefix and pointers"


class TextRows(VirtualRows):
    """Rows of lines of files, coloured; those that are too wide are shown without prefix and pointers."""

    def __init__(self) -> None:
        super().__init__()
        self.redact: Callable[[str], str] | None = None  # replaces names by pseudonyms
        self.search_text = ""
        self.shows_full_lines = False  # no line is shortened

    def on_resize(self) -> None:
        """Shorten lines to the new width."""
        self._strips.clear()

    def search(self, text: str) -> None:
        """Mark a text, or nothing for a pattern."""
        self.search_text = text
        self._strips.clear()
        self.refresh()

    def switch_full_lines(self) -> None:
        """Show full lines, or shorten those that are too wide."""
        self.shows_full_lines = not self.shows_full_lines
        self.scroll_to(x=0, animate=False, force=True, immediate=True)
        self._strips.clear()
        self.refresh()

    def line_text(self, row: int) -> str:
        """Return the line of a row, with pseudonyms if the run is redacted."""
        raise NotImplementedError

    def shown_text(self, row: int) -> str:
        """Return what is shown of a line: what is searched is never left out."""
        line = self.line_text(row)
        if self.shows_full_lines or len(line) <= self.size.width - self.fixed:
            return line
        short = without_pointers(line)
        if LEFT_OUT not in short or (self.search_text in line and self.search_text not in short):
            return line
        time = time_in_prefix(line)
        return f"{time} {short}" if time and time not in short else short

    def scroll_to_text(self, text: str) -> None:
        """Scroll sideways until a text on the line under the cursor is in view."""
        self.scroll_sideways_to(self.shown_text(self.cursor_row).find(text) if text else -1, len(text))

    def coloured_row(self, row: int, prefix: str) -> Text:
        """Render a line behind a prefix; the line is not interpreted as markup."""
        is_cursor = row == self.cursor_row
        text = Text(no_wrap=True, end="")
        text.append(f"{'>' if is_cursor else ' '}{prefix} ", CURSOR if is_cursor else "dim")
        text.append(coloured(self.shown_text(row)))
        if self.search_text and not self.search_text.startswith(PATTERN):
            text.highlight_words([self.search_text], "reverse")
        return text


class LogLines(TextRows):
    """The lines of a file, or those that pass the filter."""

    def __init__(self) -> None:
        super().__init__()
        self.file: LogFile | None = None
        self.numbers: pl.Series | None = None  # the line numbers that pass the filter
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

    def scroll_to_text(self, text: str) -> None:
        """Scroll sideways; the row under the cursor may be the widest and not drawn yet."""
        self._widest = max(self._widest, len(self.text(self.cursor_row)))
        self.lines_added()
        super().scroll_to_text(text)

    def line_text(self, row: int) -> str:
        """Return the line of a row, with pseudonyms if the run is redacted."""
        line = self.file.text(self._number(row)) if self.file and self.rows else ""
        return self.redact(line) if self.redact else line

    def text(self, row: int) -> Text:
        """Render a line with its number."""
        text = self.coloured_row(row, f"{self._number(row):>{self._digits}}")
        if len(text) > self._widest:
            self._widest = len(text)
            self.call_later(self.lines_added)
        return text

    @property
    def _digits(self) -> int:
        return len(str(self.file.lines if self.file else 1))

    def go(self, number: int) -> None:
        """Move the cursor to a line, or to the nearest one that passes the filter."""
        row = number - 1
        if self.numbers is not None:
            row = int(self.numbers.search_sorted(number))
        self.put(row, middle=True)
