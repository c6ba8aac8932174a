"""Rows of text drawn as they come into view, with a cursor: what is long is never made as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

CURSOR = "reverse bold"
KEPT = 2000  # rows drawn that are kept
SIDEWAYS = 20  # columns scrolled at once where a row has no cells


class Sheet(ScrollView, can_focus=True):
    """Rows, each with cells or without. Subclasses say how many rows there are and what stands in them."""

    HEAD: ClassVar[int] = 0  # lines that stay on top
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("left,h", "sideways(-1)", show=False),
        Binding("right,l", "sideways(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The cursor stands somewhere else."""

        sheet: Sheet

    @dataclass
    class Opened(Message):
        """Enter was pressed on a row."""

        sheet: Sheet

    def __init__(self, name: str = "focus") -> None:
        super().__init__(id=name, classes="grid")
        self.at_row = 0
        self.at_cell = 0
        self._strips: dict[int, Strip] = {}  # of rows without the cursor

    @property
    def rows(self) -> int:
        """How many rows there are."""
        raise NotImplementedError

    def text(self, row: int) -> Text:
        """What stands in a row; the cursor is drawn by who knows where its cells are."""
        raise NotImplementedError

    def head(self, line: int) -> Text:
        """What stays on top."""
        return Text()

    def cells(self, row: int) -> list[int]:
        """Where the cells of a row begin; none: the cursor stands on the row."""
        return []

    @property
    def fixed(self) -> int:
        """Characters at the left that stay when the rest is scrolled sideways."""
        return 0

    def renew(self, width: int) -> None:
        """The rows have changed, or the width of the widest has."""
        self._strips.clear()
        size = Size(width, self.rows + self.HEAD)
        if self.virtual_size != size:
            self.virtual_size = size
        self.at_row = max(0, min(self.at_row, self.rows - 1))
        self.at_cell = max(0, min(self.at_cell, len(self.cells(self.at_row)) - 1)) if self.rows else 0
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width = self.size.width
        row = int(self.scroll_offset.y) + y - self.HEAD
        if y < self.HEAD:
            strip = self._drawn(self.head(y))
        elif 0 <= row < self.rows:
            strip = self._strip(row)
        else:
            return Strip.blank(width, self.rich_style)
        left, fixed = int(self.scroll_offset.x), min(self.fixed, width)
        shown = strip.crop(fixed + left, left + width)
        if fixed:
            shown = Strip.join([strip.crop(0, fixed).extend_cell_length(fixed), shown])
        return shown.extend_cell_length(width).apply_style(self.rich_style)

    def watch_scroll_x(self, old_value: float, new_value: float) -> None:
        """Other cells come into view."""
        super().watch_scroll_x(old_value, new_value)
        self._strips.clear()

    def _drawn(self, text: Text) -> Strip:
        return Strip(text.render(self.app.console))

    def _strip(self, row: int) -> Strip:
        if row == self.at_row:
            return self._drawn(self.text(row))
        strip = self._strips.get(row)
        if strip is None:
            if len(self._strips) >= KEPT:
                self._strips.clear()
            strip = self._strips[row] = self._drawn(self.text(row))
        return strip

    def put(self, row: int, cell: int = 0, *, middle: bool = False) -> None:
        """Move the cursor, and let it be seen; `middle`: with as much above as below it, where it was out of sight."""
        before, offset = self.at_row, self.scroll_offset
        self.at_row = max(0, min(row, self.rows - 1))
        self.at_cell = max(0, min(cell, len(self.cells(self.at_row)) - 1))
        self._strips.pop(before, None)
        height = max(1, self.size.height - self.HEAD)
        top = int(self.scroll_offset.y)
        if not top <= self.at_row < top + height:
            if middle:
                top = self.at_row - height // 2
            else:
                top = self.at_row if self.at_row < top else self.at_row - height + 1
            self.scroll_to(y=max(0, top), animate=False, force=True, immediate=True)
        starts = self.cells(self.at_row)
        if starts and self.size.width > self.fixed:
            stops = [*starts[1:], starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else 1)]
            left, right = starts[self.at_cell] - self.fixed, stops[self.at_cell] - self.size.width
            now = int(self.scroll_offset.x)
            if not right <= now <= left:
                self.scroll_to(x=max(0, right if now < right else left), animate=False, force=True, immediate=True)
        if self.scroll_offset == offset:
            top = self.HEAD - int(offset.y)
            self.refresh(*(Region(0, line + top, self.size.width, 1) for line in {before, self.at_row}))
        else:
            self.refresh()
        self.post_message(self.Moved(self))

    def action_move(self, by: int) -> None:
        """Up and down; among cells to the nearest."""
        row = max(0, min(self.at_row + by, self.rows - 1))
        self.put(row, self._nearest(row))

    def _nearest(self, row: int) -> int:
        here, there = self.cells(self.at_row), self.cells(row)
        if not here or not there:
            return 0
        x = here[min(self.at_cell, len(here) - 1)]
        return min(range(len(there)), key=lambda cell: abs(there[cell] - x))

    def action_sideways(self, by: int) -> None:
        """From cell to cell; where there are none, scroll."""
        if self.cells(self.at_row):
            self.put(self.at_row, self.at_cell + by)
        else:
            self.scroll_relative(x=by * SIDEWAYS, animate=False, force=True, immediate=True)

    def action_page(self, by: int) -> None:
        """A screenful."""
        self.action_move(by * max(1, self.size.height - self.HEAD - 1))

    def action_edge(self, last: int) -> None:
        """The first row or the last."""
        row = (self.rows - 1) * last
        self.put(row, self._nearest(row) if self.rows else 0)

    def action_open(self) -> None:
        """Open what the cursor stands on."""
        self.post_message(self.Opened(self))

    def on_click(self, event: events.Click) -> None:
        """The mouse puts the cursor; on the cursor it opens."""
        row = int(self.scroll_offset.y) + event.y - self.HEAD
        if event.y < self.HEAD or not 0 <= row < self.rows:
            return
        x, starts = event.x + int(self.scroll_offset.x) * (event.x >= self.fixed), self.cells(row)
        cell = max((number for number, start in enumerate(starts) if start <= x), default=0)
        if (row, cell) == (self.at_row, self.at_cell):
            self.action_open()
        else:
            self.put(row, cell)

    def on_resize(self) -> None:
        """The cursor stays in sight."""
        if self.rows:
            self.put(self.at_row, self.at_cell)
