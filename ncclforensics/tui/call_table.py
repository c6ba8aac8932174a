"""The table of calls: a row for each position in a communicator's sequence, or for a fold of equal ones."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from ncclforensics.data.names import count_of
from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    from ncclforensics.tui.content.call_rows import CallRows, Segment
    from ncclforensics.tui.content.calls import Calls, Cell, Column, Communicator

NARROWEST, WIDEST = 26, 48  # characters of a column
GUTTER = 10
TIME, EXACT_TIME = len("11:04:57 "), len("11:04:57.034 ")
ROOM_FOR_EXACT = 100  # characters of a screen with exact times


class CallTable(VirtualRows):
    """A table with a row for each position in the sequence, or for a fold, and a column for each group of ranks."""

    HEAD = 1

    def __init__(self) -> None:
        super().__init__()
        self.calls: Calls | None = None
        self.communicator: Communicator | None = None
        self.columns: list[Column] = []
        self._call_rows: CallRows | None = None
        self._opened: set[int] = set()  # the first positions of stretches that are not folded
        self._folds = True

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self._call_rows.count if self._call_rows else 0

    @property
    def _time_width(self) -> int:
        if self.calls is None or not self.calls.has_times:
            return 0
        return EXACT_TIME if self.size.width >= ROOM_FOR_EXACT else TIME

    @property
    def fixed(self) -> int:
        """Return the width of the position numbers and times."""
        return GUTTER + self._time_width

    @property
    def _width(self) -> int:
        room = (self.size.width - self.fixed) // max(1, len(self.columns))
        return max(NARROWEST, min(WIDEST, room))

    def fill(self, calls: Calls, communicator: Communicator, columns: list[Column]) -> None:
        """Show the calls of a communicator in these columns."""
        if self.communicator is None or self.communicator.key != communicator.key:
            self._opened.clear()
        self.calls, self.communicator, self.columns = calls, communicator, columns
        self._lay_out()

    def _lay_out(self) -> None:
        from ncclforensics.tui.content.call_rows import CallRows

        stretches = self.communicator.stretches if self.communicator else []
        opened = self._opened if self._folds else {stretch.first for stretch in stretches}
        self._call_rows = CallRows(stretches, opened)
        self.rows_changed(self.fixed + self._width * len(self.columns))

    @property
    def position(self) -> int:
        """Return the position under the cursor; on a fold its first."""
        return self._call_rows.position(self.cursor_row) if self._call_rows and self.rows else 0

    @property
    def fold(self) -> Segment | None:
        """Return the fold under the cursor, if it is on one."""
        return self._fold(self.cursor_row) if self.rows else None

    def _fold(self, row: int) -> Segment | None:
        return self._call_rows.fold(row) if self._call_rows else None

    def put_position(self, position: int, cell: int = 0) -> None:
        """Move the cursor to a position, whose fold is opened."""
        if self._call_rows is None or not self.rows:
            return
        if fold := self._fold(self._call_rows.row(position)):
            self._open(fold)
        self.put(self._call_rows.row(position), cell, middle=True)

    def open_fold(self) -> None:
        """Show the positions of the fold under the cursor."""
        if fold := self.fold:
            self._open(fold)
            self.put(self.cursor_row, self.cursor_cell)

    def _open(self, fold: Segment) -> None:
        if fold.fold is not None:
            self._opened.add(fold.fold.first)
            self._lay_out()

    def switch_folds(self) -> None:
        """Show all positions, or fold those far from a change; the cursor stays on its position."""
        position = self.position
        self._folds = not self._folds
        self._opened.clear()
        self._lay_out()
        if self._call_rows is not None and self.rows:
            self.put(self._call_rows.row(position), self.cursor_cell, middle=True)

    def cells(self, row: int) -> list[int]:
        """Return the first character of each column."""
        width = self._width  # which asks for the size of the screen
        return [self.fixed + number * width for number in range(len(self.columns))]

    def _row(self, row: int, columns: list[Column]) -> tuple[list[Cell], bool]:
        if self.calls is None or self.communicator is None or self._call_rows is None:
            return [], False
        return self.calls.row(self.communicator, self._call_rows.position(row), columns)

    @property
    def cell(self) -> Cell | None:
        """Return the cell under the cursor; none on a fold."""
        columns = self.columns[self.cursor_cell : self.cursor_cell + 1]
        cells = self._row(self.cursor_row, columns)[0] if self.rows and not self.fold else []
        return cells[0] if cells else None

    @property
    def _columns_in_view(self) -> range:
        first = int(self.scroll_offset.x) // self._width
        return range(first, min(len(self.columns), first + self.size.width // self._width + 2))

    def head(self, line: int) -> Text:
        """Render the titles of the columns."""
        text = Text("position  ", "bold", no_wrap=True, end="")
        text.append("time".ljust(self._time_width) if self._time_width else "")
        in_view = self._columns_in_view
        text.append(" " * self._width * in_view.start)
        for column in self.columns[in_view.start : in_view.stop]:
            text.append(_fit(column.title, self._width), "bold underline")
        return text

    def text(self, row: int) -> Text:
        """Render the calls at one position, or a fold."""
        if self._call_rows is None or self.communicator is None:
            return Text()
        position = self._call_rows.position(row)
        if fold := self._fold(row):
            return self._fold_text(fold, self.communicator, is_cursor=row == self.cursor_row)
        in_view = self._columns_in_view
        cells, has_difference = self._row(row, self.columns[in_view.start : in_view.stop])
        text = Text(no_wrap=True, end="")
        text.append(f"{'≠' if has_difference else ' '}{position:>8} ", "bold red" if has_difference else "dim")
        text.append(self._time_text(position), "dim")
        text.append(" " * self._width * in_view.start)
        for number, cell in zip(in_view, cells, strict=True):
            is_cursor = (row, number) == (self.cursor_row, self.cursor_cell)
            style = CURSOR if is_cursor else "bold red" if cell.differs else ""
            text.append(_fit(cell.text or ("(no call)" if cell.differs else "·"), self._width), style)
        return text

    def _fold_text(self, fold: Segment, communicator: Communicator, *, is_cursor: bool) -> Text:
        ranks, members = fold.fold.ranks if fold.fold else 0, len(communicator.numbers)
        callers = f"all {members}" if ranks == members else f"{ranks} of {members}"
        what = f"{callers} ranks made the same calls" if ranks else "these lines are not in the logs, or not read yet"
        first, last = (self._time(position) for position in (fold.first, fold.last))
        span = f" in {(last - first).total_seconds():,.3g} s" if first is not None and last is not None else ""
        text = Text(no_wrap=True, end="")
        text.append(f"{'≠' if ranks < members else ' '}{'⋮':>8} ", "dim")
        text.append(self._time_text(fold.first), "dim")
        words = f"{fold.first:,} to {fold.last:,}: {count_of(fold.last - fold.first + 1, 'position')}{span}, {what}"
        text.append(words, CURSOR if is_cursor else "dim")
        return text

    def _time(self, position: int) -> datetime | None:
        return self.calls.time(self.communicator, position) if self.calls and self.communicator else None

    def _time_text(self, position: int) -> str:
        time, width = self._time(position), self._time_width
        return "".ljust(width) if time is None else clock_text(time)[: width - 1].ljust(width)


def clock_text(time: datetime) -> str:
    """Return the time of day with milliseconds."""
    return time.time().isoformat("milliseconds")


def _fit(text: str, width: int) -> str:
    return text[: width - 2].ljust(width) if len(text) <= width - 2 else f"{text[: width - 3]}… "
