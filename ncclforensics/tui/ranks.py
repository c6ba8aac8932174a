"""The ranks screen: a grid with a mark for each rank, grouped by host."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType

from ncclforensics.data.names import known, ranks_text, some_of
from ncclforensics.tui.prompts import Ask
from ncclforensics.tui.rank_table import RankTable
from ncclforensics.tui.screen import Page, Place, Position
from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    from ncclforensics.tui.content.ranks import RankRow

ORDERS = ("host", "state", "last call")
LONGEST = 34  # characters of a group label
MOST_HOSTS = 4  # named in a message


@dataclass(frozen=True, slots=True)
class _Cell:
    x: int
    rank_row: RankRow


@dataclass(slots=True)
class _Line:
    labels: list[tuple[int, str]]
    cells: list[_Cell]


class RankGrid(VirtualRows):
    """A grid of groups of ranks; the layout becomes denser until everything fits."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[tuple[str, list[RankRow]]] = []
        self._lines: list[_Line] = []

    @property
    def rows(self) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def fill(self, groups: list[tuple[str, list[RankRow]]]) -> None:
        """Lay out the groups; the cursor stays on its rank."""
        self._groups = groups
        current = self.rank_row
        self._lines = _layout(groups, max(20, self.size.width), max(1, self.size.height))
        self.rows_changed(max((line.cells[-1].x + 1 for line in self._lines if line.cells), default=0))
        if current is not None:
            self.find_rank_row(current)

    def on_resize(self) -> None:
        """Lay out the groups for the new size."""
        self.fill(self._groups)

    @property
    def rank_row(self) -> RankRow | None:
        """Return the rank under the cursor."""
        cells = self._lines[self.cursor_row].cells if self.cursor_row < len(self._lines) else []
        return cells[self.cursor_cell].rank_row if self.cursor_cell < len(cells) else None

    @property
    def rank_rows(self) -> list[RankRow]:
        """Return all ranks of the grid, in order."""
        return [cell.rank_row for line in self._lines for cell in line.cells]

    def find_rank_row(self, wanted: RankRow) -> None:
        """Move the cursor to this rank."""
        for row, line in enumerate(self._lines):
            for index, cell in enumerate(line.cells):
                if cell.rank_row.key == wanted.key:
                    self.put(row, index, middle=True)
                    return

    def cells(self, row: int) -> list[int]:
        """Return the column of each mark."""
        return [cell.x for cell in self._lines[row].cells] if row < len(self._lines) else []

    def text(self, row: int) -> Text:
        """Render the labels and marks of a line."""
        from ncclforensics.tui.content.ranks import STYLES, SYMBOLS

        line = self._lines[row]
        pieces = [(x, label, "dim") for x, label in line.labels]
        for number, cell in enumerate(line.cells):
            mark = SYMBOLS[cell.rank_row.state]
            is_cursor = (row, number) == (self.cursor_row, self.cursor_cell)
            pieces.append((cell.x, mark, CURSOR if is_cursor else STYLES[mark]))
        text = Text(no_wrap=True)
        for x, piece, style in sorted(pieces):
            text.append(" " * (x - len(text)))
            text.append(piece, style)
        return text


def _layout(groups: list[tuple[str, list[RankRow]]], width: int, height: int) -> list[_Line]:
    """Lay out groups with labels in as many columns as needed, or without labels if that does not fit."""
    if not groups:
        return []
    label_width = min(LONGEST, max(len(name) for name, _ in groups))
    marks = max(len(rank_rows) for _, rank_rows in groups)
    column_width = label_width + 1 + marks + 2
    columns = max(1, width // column_width)
    if column_width <= width and len(groups) <= columns * height:
        needed = -(-len(groups) // height)
        lines = [_Line([], []) for _ in range(-(-len(groups) // needed))]
        for number, (name, rank_rows) in enumerate(groups):
            column, row = divmod(number, len(lines))
            left = column * column_width
            lines[row].labels.append((left, name[:label_width]))
            lines[row].cells += [
                _Cell(left + label_width + 1 + index, rank_row) for index, rank_row in enumerate(rank_rows)
            ]
        return lines
    if marks + label_width + 1 > width:  # the largest group is longer than a line
        return _layout_long_groups(groups, width)
    lines, x = [_Line([], [])], 0
    for _, rank_rows in groups:
        if x + len(rank_rows) > width and lines[-1].cells:
            lines.append(_Line([], []))
            x = 0
        lines[-1].cells += [_Cell(x + index, rank_row) for index, rank_row in enumerate(rank_rows)]
        x += len(rank_rows) + 1
    return lines


def _layout_long_groups(groups: list[tuple[str, list[RankRow]]], width: int) -> list[_Line]:
    """Lay out each group as a line with its name and lines with its marks."""
    lines = []
    for name, rank_rows in groups:
        for start in range(0, len(rank_rows), width - 2):
            part = rank_rows[start : start + width - 2]
            labels = [(0, f"{name} ({len(rank_rows)})"[: width - 1])] if start == 0 else []
            if labels:
                lines.append(_Line(labels, []))
            lines.append(_Line([], [_Cell(2 + index, rank_row) for index, rank_row in enumerate(part)]))
    return lines


class Ranks(Page):
    """Every rank with its state; marks distinguish culprits, waiting ranks and dead ranks."""

    NAME = "ranks"
    EMPTY = "no rank of an NCCL job in these files"
    BODY = (RankGrid, RankTable)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "Table", tooltip="Show a table instead of the grid, or the grid instead of the table"),
        Binding("s", "sort(1)", "Sort", tooltip="Grid: group by host, state or last call. Table: sort by next column"),
        Binding("S", "sort(0)", "Reverse", show=False, tooltip="Table: reverse the order"),
        Binding(
            "f", "filter", "Filter", tooltip="Show only some ranks: 0-7,12, part of a host or last call, state or mark"
        ),
        Binding("n", "next(1)", "Next culprit", tooltip="Go to the next rank that is a culprit or missing"),
        Binding("N", "next(-1)", "Previous culprit", show=False, tooltip="Go to the previous one"),
        Binding("o", "operations", "Calls", tooltip="Compare its last call with the calls of other ranks"),
        Binding("w", "waiting", "Waiting", show=False, tooltip="Go to the waiting screen"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rank_rows: list[RankRow] = []
        self._order = 0
        self._filter = ""
        self._is_table = False
        self._is_placed = False  # the cursor has been put on a culprit

    @property
    def _view(self) -> RankGrid | RankTable:
        return self.query_one(RankTable) if self._is_table else self.query_one(RankGrid)

    def draw(self, part: object) -> None:
        """Show all ranks; the cursor begins on a culprit."""
        self._rank_rows = cast("list[RankRow]", part)
        self._fill()
        culprit = next(filter(_is_culprit, self._rank_rows), None)
        if culprit is not None and not self._is_placed:
            self._is_placed = True
            self.call_after_refresh(self.query_one(RankGrid).find_rank_row, culprit)

    def _fill(self) -> None:
        from ncclforensics.tui.content.ranks import STYLES, SYMBOLS, State

        shown = [rank_row for rank_row in self._rank_rows if _passes(rank_row, SYMBOLS[rank_row.state], self._filter)]
        if not shown and self._filter:
            self._refuse_filter()
            return
        groups: dict[str, list[RankRow]] = {}
        for rank_row in shown:
            groups.setdefault(_group(rank_row, ORDERS[self._order]), []).append(rank_row)
        ordered = list(groups.items())
        if ORDERS[self._order] == "state":
            ordered.sort(key=lambda item: list(State).index(item[1][0].state))
        elif ORDERS[self._order] == "last call":
            ordered.sort(key=lambda item: len(item[1]))
        counts = Counter(rank_row.state for rank_row in shown)
        title = Text()
        for state, mark in SYMBOLS.items():
            if counts[state]:
                title.append(mark, STYLES[mark])
                title.append(f" {counts[state]} {str(state).partition(':')[0]}   ")
        table = self.query_one(RankTable)
        table.fill(shown)
        order = table.columns[table.sorted_by].title if self._is_table else ORDERS[self._order]
        title.append(f"by {order}", "dim")
        title.append(f", only {self._filter}" if self._filter else "", "bold")
        self.set_text("#title", title)
        self.query_one(RankGrid).fill(ordered)
        self.call_after_refresh(self._show_details)

    def _refuse_filter(self) -> None:
        """Say what exists where a filter leaves no rank, and show all."""
        hosts = sorted({rank_row.host for rank_row in self._rank_rows})
        numbers = ranks_text(rank_row.rank for rank_row in self._rank_rows if rank_row.rank is not None)
        some = some_of(hosts, MOST_HOSTS)
        self.notify(f"no rank passes the filter {self._filter}; there are {numbers} on {some}", markup=False)
        self._filter = ""
        self._fill()

    def on_virtual_rows_moved(self) -> None:
        """Show the details of the rank under the cursor."""
        self._show_details()

    def on_virtual_rows_opened(self) -> None:
        """Open the log at the last call of the rank."""
        rank_row = self._view.rank_row
        if rank_row is not None and rank_row.cited is not None:
            self.controller.go(Place("log", (rank_row.cited.source, rank_row.cited.line)))

    def _show_details(self) -> None:
        rank_row = self._view.rank_row
        text = Text()
        if rank_row is not None:
            process = f"GPU {known(rank_row.gpu)}, pid {known(rank_row.pid)}" if rank_row.rank_id is not None else ""
            text.append(f"{rank_row.name} ", "bold")
            text.append(f"{rank_row.host} {process}  ")
            text.append(rank_row.cited.location if rank_row.cited else "", "cyan")
            text.append(f"\n{rank_row.state}" + (f" · {rank_row.exit_text}" if rank_row.exit_text else ""))
            text.append(f"\nlast call: {rank_row.last_call or 'none seen'}")
        self.set_text("#detail", text)

    def go_to(self, position: Position) -> None:
        """Move the cursor to a rank."""
        self._is_placed = True
        wanted = next((rank_row for rank_row in self._rank_rows if rank_row.rank_id == position[0]), None)
        if wanted is not None:
            self.call_after_refresh(self._view.find_rank_row, wanted)

    def cursor_position(self) -> Position:
        """Return the id of the rank under the cursor."""
        rank_row = self._view.rank_row
        return (rank_row.rank_id,) if rank_row and rank_row.rank_id is not None else ()

    def clipboard_text(self) -> str:
        """Return the rank and its last call."""
        rank_row = self._view.rank_row
        return f"{rank_row.name} on {rank_row.host}: {rank_row.last_call}" if rank_row else ""

    def action_view(self) -> None:
        """Show the ranks as a table instead of a grid, or as a grid."""
        current = self._view.rank_row
        self._is_table = not self._is_table
        self.query_one(RankGrid).display = not self._is_table
        self.query_one(RankTable).display = self._is_table
        self._fill()
        self._view.focus()
        if current is not None:
            self.call_after_refresh(self._view.find_rank_row, current)

    def action_sort(self, by: int) -> None:
        """Group by the next criterion, or sort the table by the next column; by 0, reverse the table."""
        if self._is_table:
            self.query_one(RankTable).sort(by)
        else:
            self._order = (self._order + by) % len(ORDERS)
        self._fill()

    def action_filter(self) -> None:
        """Ask which ranks to show."""

        def set_filter(typed: str | None) -> None:
            if typed is not None:
                self._filter = typed
                self._fill()

        self.app.push_screen(
            Ask("Show which ranks: 0-7,12, part of a host or of a last call, or a state? Empty: all", self._filter),
            set_filter,
        )

    def action_next(self, by: int) -> None:
        """Go to the next culprit or missing rank; from the last one, to the first."""
        view = self._view
        rank_rows = view.rank_rows
        current = next((place for place, row in enumerate(rank_rows) if row is view.rank_row), 0)
        suspects = [place for place, row in enumerate(rank_rows) if _is_culprit(row) or _is_missing(row)]
        later = [place for place in suspects[::by] if (place - current) * by > 0]
        if suspects:
            view.find_rank_row(rank_rows[(later or suspects[::by])[0]])

    def action_operations(self) -> None:
        """Go to the last call of the rank."""
        rank_row = self._view.rank_row
        if rank_row is not None and rank_row.rank_id is not None:
            self.controller.go(Place("operations", ("", rank_row.rank_id)))

    def action_waiting(self) -> None:
        """Go to the waiting screen."""
        self.controller.go(Place("waiting"))


def _group(rank_row: RankRow, order: str) -> str:
    if order == "host":
        return rank_row.host
    return str(rank_row.state).partition(":")[0] if order == "state" else rank_row.last_call or "none seen"


def _passes(rank_row: RankRow, mark: str, typed: str) -> bool:
    """Whether a rank passes the filter."""
    if not typed or typed == mark:
        return True
    if typed[0].isdecimal():
        from ncclforensics.errors import UsageError
        from ncclforensics.report.selection import parse_ranks

        try:
            return rank_row.rank in parse_ranks(typed)
        except UsageError:
            pass
    return any(typed in text for text in (rank_row.host, str(rank_row.state).partition(":")[0], rank_row.last_call))


def _is_culprit(rank_row: RankRow) -> bool:
    from ncclforensics.tui.content.ranks import State

    return rank_row.state in (State.CULPRIT_DIED, State.CULPRIT)


def _is_missing(rank_row: RankRow) -> bool:
    from ncclforensics.tui.content.ranks import State

    return rank_row.state is State.MISSING
