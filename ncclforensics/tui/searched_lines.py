"""What the screens of lines share: searching, going to warnings, and showing full lines."""

from __future__ import annotations

from threading import Event
from typing import ClassVar

from textual.binding import Binding, BindingType

from ncclforensics.tui.coloured_line import WARNING
from ncclforensics.tui.log_lines import FULL_LINES, PATTERN, TextRows
from ncclforensics.tui.prompts import Ask
from ncclforensics.tui.screen import Page


class SearchedLines(Page):
    """A page of lines that can be searched. Subclasses define the methods that raise NotImplementedError."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", key_display="/", tooltip=f"Search a text, or {PATTERN} and a pattern"),
        Binding("n", "next(1)", "Next", tooltip="Go to the next match"),
        Binding("N", "next(-1)", "Previous", show=False, tooltip="Go to the previous match"),
        Binding("w", "warning(1)", "WARN", tooltip="Go to the next line with NCCL WARN"),
        Binding("W", "warning(-1)", "WARN back", show=False, tooltip="Go to the previous line with NCCL WARN"),
        Binding("z", "full_lines", "Full lines", show=False, tooltip=FULL_LINES),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._filter = ""  # as the user typed it
        self._activity = ""
        self._stop = Event()  # ends background work

    @property
    def _text_rows(self) -> TextRows:
        raise NotImplementedError

    def _show_title(self) -> None:
        raise NotImplementedError

    def _find(self, text: str, by: int) -> None:
        """Go to the next line with a text, or the previous one, in the background."""
        raise NotImplementedError

    def on_unmount(self) -> None:
        """End background work."""
        self._stop.set()

    def on_virtual_rows_moved(self) -> None:
        """Show where the line under the cursor stands."""
        self._show_title()

    def action_full_lines(self) -> None:
        """Show full lines, or shorten those that are too wide."""
        self._text_rows.switch_full_lines()
        self._show_title()

    def action_search(self) -> None:
        """Ask for a text and search it."""

        def take(typed: str | None) -> None:
            if typed:
                self._text_rows.search(typed)
                self._find(typed, 1)

        self.app.push_screen(Ask(f"Search which text (or {PATTERN}REGEX)?", self._text_rows.search_text), take)

    def action_next(self, by: int) -> None:
        """Go to the next match."""
        if self._text_rows.search_text:
            self._find(self._text_rows.search_text, by)
        else:
            self.action_search()

    def action_warning(self, by: int) -> None:
        """Go to the next warning of NCCL."""
        self._find(WARNING, by)
