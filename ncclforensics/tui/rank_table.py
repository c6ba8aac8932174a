"""The table of ranks: one line for each rank, which sorts by any column.

Textual's DataTable measures every cell when rows are added: of 10,000 ranks it took 3 s, and 70 ms for a key. Here only
the rows in view are rendered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from ncclforensics.data.names import known, shortened
from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    from ncclforensics.tui.content.ranks import RankRow

OF_TIME = ("lag", "last call at")  # columns that are left out where lines have no times
LONGEST_CELL = 28  # characters of a host or a state
GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the text of a rank's cell, and the value to sort by."""

    title: str
    text: Callable[[RankRow], str]
    value: Callable[[RankRow], int | float | str | None]
    is_figure: bool = False
    is_descending: bool = False  # the largest is the most interesting


def _state(rank_row: RankRow) -> str:
    return str(rank_row.state).partition(":")[0]


def _time_text(rank_row: RankRow) -> str:
    return "" if rank_row.last_time is None else rank_row.last_time.time().isoformat("milliseconds")


def _moment(rank_row: RankRow) -> str | None:
    return None if rank_row.last_time is None else rank_row.last_time.isoformat()


def _place_of_state(rank_row: RankRow) -> int:
    from ncclforensics.tui.content.ranks import State

    return list(State).index(rank_row.state)


COLUMNS = (
    Column("rank", lambda row: known(row.rank), lambda row: row.rank, is_figure=True),
    Column("host", lambda row: row.host, lambda row: row.host),
    Column("GPU", lambda row: known(row.gpu), lambda row: row.gpu, is_figure=True),
    Column("state", _state, _place_of_state),
    Column(
        "calls behind", lambda row: known(row.missing_calls), lambda row: row.missing_calls,
        is_figure=True, is_descending=True,
    ),
    Column(
        "lag", lambda row: "" if row.lag is None else f"{row.lag:+.3f} s", lambda row: row.lag,
        is_figure=True, is_descending=True,
    ),
    Column(
        "warnings", lambda row: str(row.warnings or ""), lambda row: row.warnings,
        is_figure=True, is_descending=True,
    ),
    Column("last call at", _time_text, _moment),
    Column("last call", lambda row: row.last_call, lambda row: row.last_call),
)  # fmt: skip


class RankTable(VirtualRows):
    """A line for each rank, in the order of a column."""

    HEAD = 1

    def __init__(self) -> None:
        super().__init__("table")
        self.rank_rows: list[RankRow] = []
        self.columns: list[Column] = list(COLUMNS)
        self.sorted_by = 0
        self.is_reversed = False
        self._widths: list[int] = []

    @property
    def rows(self) -> int:
        """Return the number of ranks."""
        return len(self.rank_rows)

    @property
    def rank_row(self) -> RankRow | None:
        """Return the rank under the cursor."""
        return self.rank_rows[self.cursor_row] if self.cursor_row < self.rows else None

    def fill(self, rank_rows: list[RankRow]) -> None:
        """Show these ranks; a column of times that is empty for all of them is left out."""
        current, title = self.rank_row, self.columns[self.sorted_by].title
        self.columns = [column for column in COLUMNS if column.title not in OF_TIME or any(map(column.text, rank_rows))]
        self.sorted_by = next((i for i, column in enumerate(self.columns) if column.title == title), 0)
        self._widths = [
            min(LONGEST_CELL, max([len(column.title) + 1, *(len(column.text(row)) for row in rank_rows)]))
            for column in self.columns[:-1]
        ]
        self.rank_rows = list(rank_rows)
        self._sort(current)

    def sort(self, by: int) -> None:
        """Sort by the column that is so many further on; by 0, reverse the order."""
        self.is_reversed = by == 0 and not self.is_reversed
        self.sorted_by = (self.sorted_by + by) % len(self.columns)
        self._sort(self.rank_row)

    def _sort(self, current: RankRow | None) -> None:
        column = self.columns[self.sorted_by]
        is_descending = column.is_descending != self.is_reversed
        known_rows = [row for row in self.rank_rows if column.value(row) is not None]
        known_rows.sort(key=column.value, reverse=is_descending)  # type: ignore[arg-type]  # None was left out
        self.rank_rows = known_rows + [row for row in self.rank_rows if column.value(row) is None]
        self.rows_changed(sum(self._widths) + len(GAP) * len(self.columns) + 80)
        if current is not None:
            self.find_rank_row(current)

    def find_rank_row(self, wanted: RankRow) -> None:
        """Move the cursor to this rank."""
        places = (place for place, rank_row in enumerate(self.rank_rows) if rank_row.key == wanted.key)
        if (place := next(places, None)) is not None:
            self.put(place, middle=True)

    def head(self, line: int) -> Text:
        """Render the titles; an arrow marks the column that sorts."""
        text = Text(no_wrap=True, end="")
        arrow = "↓" if self.columns[self.sorted_by].is_descending != self.is_reversed else "↑"
        for number, column in enumerate(self.columns):
            title = column.title + arrow * (number == self.sorted_by)
            text.append(self._fit(title, number), "bold underline" if number == self.sorted_by else "bold")
        return text

    def text(self, row: int) -> Text:
        """Render the line of a rank."""
        from ncclforensics.tui.content.ranks import STYLES, SYMBOLS

        rank_row = self.rank_rows[row]
        is_cursor = row == self.cursor_row
        text = Text(no_wrap=True, end="")
        for number, column in enumerate(self.columns):
            is_state = column.title == "state"
            style = CURSOR if is_cursor else STYLES[SYMBOLS[rank_row.state]] if is_state else ""
            text.append(self._fit(column.text(rank_row), number), style)
        return text

    def _fit(self, cell: str, number: int) -> str:
        if number >= len(self._widths):
            return cell
        width = self._widths[number]
        cut = shortened(cell, width)
        return (cut.rjust(width) if self.columns[number].is_figure else cut.ljust(width)) + GAP
