"""A scrollable view with a cursor that renders only the rows in view."""

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
CACHED_ROWS = 2000  # rendered rows to keep
SIDEWAYS = 20  # columns to scroll at a time, if a row has no cells


class VirtualRows(ScrollView, can_focus=True):
    """Rows with or without cells. Subclasses define `rows`, `text` and, if needed, `cells`."""

    HEAD: ClassVar[int] = 0  # header lines
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("left,h", "sideways(-1)", show=False),
        Binding("right,l", "sideways(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    @dataclass
    class Moved(Message):
        """The cursor has moved."""

        rows: VirtualRows

    @dataclass
    class Opened(Message):
        """Enter was pressed on a row."""

        rows: VirtualRows

    def __init__(self, name: str = "focus") -> None:
        super().__init__(id=name, classes="grid")
        self.cursor_row = 0
        self.cursor_cell = 0
        self._strips: dict[int, Strip] = {}  # rendered rows, without the one under the cursor

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    def text(self, row: int) -> Text:
        """Render a row, with the cursor if it is on this row."""
        raise NotImplementedError

    def head(self, line: int) -> Text:
        """Render a header line."""
        return Text()

    def cells(self, row: int) -> list[int]:
        """Return the first column of each cell; empty if the cursor selects whole rows."""
        return []

    @property
    def fixed(self) -> int:
        """Return the width of the left part that does not scroll sideways."""
        return 0

    def rows_changed(self, width: int) -> None:
        """Render anew after the rows or the width of the widest row have changed."""
        self._strips.clear()
        size = Size(width, self.rows + self.HEAD)
        if self.virtual_size != size:
            self.virtual_size = size
        self.cursor_row = max(0, min(self.cursor_row, self.rows - 1))
        self.cursor_cell = max(0, min(self.cursor_cell, len(self.cells(self.cursor_row)) - 1)) if self.rows else 0
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render one line of the screen."""
        width = self.size.width
        row = int(self.scroll_offset.y) + y - self.HEAD
        if y < self.HEAD:
            strip = self._to_strip(self.head(y))
        elif 0 <= row < self.rows:
            strip = self._strip_of(row)
        else:
            return Strip.blank(width, self.rich_style)
        left, fixed = int(self.scroll_offset.x), min(self.fixed, width)
        shown = strip.crop(fixed + left, left + width)
        if fixed:
            shown = Strip.join([strip.crop(0, fixed).extend_cell_length(fixed), shown])
        return shown.extend_cell_length(width).apply_style(self.rich_style)

    def watch_scroll_x(self, old_value: float, new_value: float) -> None:
        """Discard the rendered rows: other cells are in view."""
        super().watch_scroll_x(old_value, new_value)
        self._strips.clear()

    def _to_strip(self, text: Text) -> Strip:
        return Strip(text.render(self.app.console))

    def _strip_of(self, row: int) -> Strip:
        if row == self.cursor_row:
            return self._to_strip(self.text(row))
        strip = self._strips.get(row)
        if strip is None:
            if len(self._strips) >= CACHED_ROWS:
                self._strips.clear()
            strip = self._strips[row] = self._to_strip(self.text(row))
        return strip

    def put(self, row: int, cell: int = 0, *, middle: bool = False) -> None:
        """Move the cursor and scroll it into view; `middle` centres a row that was out of view."""
        before, offset = self.cursor_row, self.scroll_offset
        self.cursor_row = max(0, min(row, self.rows - 1))
        self.cursor_cell = max(0, min(cell, len(self.cells(self.cursor_row)) - 1))
        self._strips.pop(before, None)
        height = max(1, self.size.height - self.HEAD)
        top = int(self.scroll_offset.y)
        if not top <= self.cursor_row < top + height:
            if middle:
                top = self.cursor_row - height // 2
            else:
                top = self.cursor_row if self.cursor_row < top else self.cursor_row - height + 1
            self.scroll_to(y=max(0, top), animate=False, force=True, immediate=True)
        starts = self.cells(self.cursor_row)
        if starts and self.size.width > self.fixed:
            stops = [*starts[1:], starts[-1] + (starts[-1] - starts[-2] if len(starts) > 1 else 1)]
            left, right = starts[self.cursor_cell] - self.fixed, stops[self.cursor_cell] - self.size.width
            now = int(self.scroll_offset.x)
            if not right <= now <= left:
                self.scroll_to(x=max(0, right if now < right else left), animate=False, force=True, immediate=True)
        if self.scroll_offset == offset:
            top = self.HEAD - int(offset.y)
            self.refresh(*(Region(0, line + top, self.size.width, 1) for line in {before, self.cursor_row}))
        else:
            self.refresh()
        self.post_message(self.Moved(self))

    def scroll_sideways_to(self, start: int, length: int) -> None:
        """Scroll sideways until these characters of a row are in view; a negative start is ignored."""
        left, room = int(self.scroll_offset.x), self.size.width - self.fixed
        if start >= 0 and not left <= start <= left + room - length:
            x = 0 if start + length <= room else start - room // 3
            self.scroll_to(x=max(0, x), animate=False, force=True, immediate=True)

    def action_move(self, by: int) -> None:
        """Move up or down, to the nearest cell."""
        row = max(0, min(self.cursor_row + by, self.rows - 1))
        self.put(row, self._nearest(row))

    def _nearest(self, row: int) -> int:
        starts, new_starts = self.cells(self.cursor_row), self.cells(row)
        if not starts or not new_starts:
            return 0
        x = starts[min(self.cursor_cell, len(starts) - 1)]
        return min(range(len(new_starts)), key=lambda cell: abs(new_starts[cell] - x))

    def action_sideways(self, by: int) -> None:
        """Move to the next cell, or scroll if rows have no cells."""
        if self.cells(self.cursor_row):
            self.put(self.cursor_row, self.cursor_cell + by)
        else:
            self.scroll_relative(x=by * SIDEWAYS, animate=False, force=True, immediate=True)

    def action_page(self, by: int) -> None:
        """Move by one page."""
        self.action_move(by * max(1, self.size.height - self.HEAD - 1))

    def action_edge(self, last: int) -> None:
        """Move to the first or the last row."""
        row = (self.rows - 1) * last
        self.put(row, self._nearest(row) if self.rows else 0)

    def action_open(self) -> None:
        """Open what is under the cursor."""
        self.post_message(self.Opened(self))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the mouse; a click on the cursor opens."""
        row = int(self.scroll_offset.y) + event.y - self.HEAD
        if event.y < self.HEAD or not 0 <= row < self.rows:
            return
        x, starts = event.x + int(self.scroll_offset.x) * (event.x >= self.fixed), self.cells(row)
        cell = max((number for number, start in enumerate(starts) if start <= x), default=0)
        if (row, cell) == (self.cursor_row, self.cursor_cell):
            self.action_open()
        else:
            self.put(row, cell)

    def on_resize(self) -> None:
        """Keep the cursor in view."""
        if self.rows:
            self.put(self.cursor_row, self.cursor_cell)
