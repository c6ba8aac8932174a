"""All ranks on one screen: a mark for each, by host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.data.names import known
from ncclforensics.tui.prompts import Ask
from ncclforensics.tui.screen import At, Page, Place
from ncclforensics.tui.virtual_rows import CURSOR, Sheet

if TYPE_CHECKING:
    from ncclforensics.tui.content.ranks import RankRow

ORDERS = ("host", "state", "last call")
LONGEST = 34  # characters of a label
STYLES = {
    "D": "bold red", "X": "bold red", "?": "bold magenta", "d": "red", "·": "yellow", "-": "", "+": "green",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cell:
    x: int
    rank_row: RankRow


@dataclass(slots=True)
class _Line:
    labels: list[tuple[int, str]]
    cells: list[_Cell]


class Grid(Sheet):
    """Groups of ranks, as dense as they have to be to fit."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[tuple[str, list[RankRow]]] = []
        self._lines: list[_Line] = []

    @property
    def rows(self) -> int:
        """Lines of the grid."""
        return len(self._lines)

    def fill(self, groups: list[tuple[str, list[RankRow]]]) -> None:
        """Lay out the groups; the cursor stays on its rank."""
        self._groups = groups
        here = self.rank_row
        self._lines = _laid(groups, max(20, self.size.width), max(1, self.size.height))
        self.renew(max((line.cells[-1].x + 1 for line in self._lines if line.cells), default=0))
        if here is not None:
            self.find_rank_row(here) if here.rank_id is None else self.find(here.rank_id)

    def on_resize(self) -> None:
        """Another density may fit."""
        self.fill(self._groups)

    @property
    def rank_row(self) -> RankRow | None:
        """The rank under the cursor."""
        cells = self._lines[self.at_row].cells if self.at_row < len(self._lines) else []
        return cells[self.at_cell].rank_row if self.at_cell < len(cells) else None

    @property
    def rank_rows(self) -> list[RankRow]:
        """All ranks that are shown, in their order."""
        return [cell.rank_row for line in self._lines for cell in line.cells]

    def find(self, rank_id: object) -> None:
        """Put the cursor on a rank."""
        self._put(lambda rank_row: rank_row.rank_id == rank_id)

    def find_rank_row(self, wanted: RankRow) -> None:
        """The same; also on one that no log shows."""
        self._put(lambda rank_row: rank_row is wanted)

    def _put(self, is_it: Callable[[RankRow], bool]) -> None:
        for row, line in enumerate(self._lines):
            for cell, one in enumerate(line.cells):
                if is_it(one.rank_row):
                    self.put(row, cell, middle=True)
                    return

    def cells(self, row: int) -> list[int]:
        """Where the marks stand."""
        return [cell.x for cell in self._lines[row].cells] if row < len(self._lines) else []

    def text(self, row: int) -> Text:
        """Labels and marks."""
        from ncclforensics.tui.content.ranks import MARKS

        line = self._lines[row]
        pieces = [(x, label, "dim") for x, label in line.labels]
        for number, cell in enumerate(line.cells):
            mark = MARKS[cell.rank_row.state]
            is_cursor = (row, number) == (self.at_row, self.at_cell)
            pieces.append((cell.x, mark, CURSOR if is_cursor else STYLES[mark]))
        text = Text(no_wrap=True)
        for x, piece, style in sorted(pieces):
            text.append(" " * (x - len(text)))
            text.append(piece, style)
        return text


def _laid(groups: list[tuple[str, list[RankRow]]], width: int, height: int) -> list[_Line]:
    """With labels, in as many columns as are needed; without labels if that does not fit."""
    if not groups:
        return []
    label = min(LONGEST, max(len(name) for name, _ in groups))
    marks = max(len(rank_rows) for _, rank_rows in groups)
    wide = label + 1 + marks + 2
    columns = max(1, width // wide)
    if wide <= width and len(groups) <= columns * height:
        needed = -(-len(groups) // height)
        lines = [_Line([], []) for _ in range(-(-len(groups) // needed))]
        for number, (name, rank_rows) in enumerate(groups):
            column, row = divmod(number, len(lines))
            left = column * wide
            lines[row].labels.append((left, name[:label]))
            lines[row].cells += [_Cell(left + label + 1 + place, rank_row) for place, rank_row in enumerate(rank_rows)]
        return lines
    if marks + label + 1 > width:  # groups longer than a line
        return _flowing(groups, width)
    lines, x = [_Line([], [])], 0
    for _, rank_rows in groups:
        if x + len(rank_rows) > width and lines[-1].cells:
            lines.append(_Line([], []))
            x = 0
        lines[-1].cells += [_Cell(x + place, rank_row) for place, rank_row in enumerate(rank_rows)]
        x += len(rank_rows) + 1
    return lines


def _flowing(groups: list[tuple[str, list[RankRow]]], width: int) -> list[_Line]:
    """A line with the name of each group, and its marks below it."""
    lines = []
    for name, rank_rows in groups:
        for start in range(0, len(rank_rows), width - 2):
            part = rank_rows[start : start + width - 2]
            labels = [(0, f"{name} ({len(rank_rows)})"[: width - 1])] if start == 0 else []
            if labels:
                lines.append(_Line(labels, []))
            lines.append(_Line([], [_Cell(2 + place, rank_row) for place, rank_row in enumerate(part)]))
    return lines


class Ranks(Page):
    """every rank and what became of it; odd ones out stand out."""

    NAME = "ranks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort", tooltip="Group by host, by state, by last call (the rarest first)"),
        Binding("f", "filter", "Filter", tooltip="Show only some: ranks 0-7,12, part of a host's name, or a mark"),
        Binding("n", "next", "Next odd", tooltip="To the next rank that died, is to blame or is missing"),
        Binding("o", "operations", "Operations", tooltip="Its last call among those of the others"),
        Binding("w", "waiting", "Waiting", show=False, tooltip="Who waits for whom"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._seats: list[RankRow] = []
        self._order = 0
        self._filter = ""

    def body(self) -> Iterable[Widget]:
        """Legend, grid, and the rank under the cursor."""
        yield Static("", id="title", markup=False)
        yield Grid()
        yield Static("", id="detail", markup=False)

    def draw(self, part: object) -> None:
        """All ranks."""
        self._seats = cast("list[RankRow]", part)
        self._fill()
        if not self._seats:
            self.trouble("these files show no rank of an NCCL job")

    def _fill(self) -> None:
        from ncclforensics.tui.content.ranks import MARKS, State

        shown = [rank_row for rank_row in self._seats if _fits(rank_row, MARKS[rank_row.state], self._filter)]
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
        for state, mark in MARKS.items():
            if counts[state]:
                title.append(mark, STYLES[mark])
                title.append(f" {counts[state]} {str(state).partition(':')[0]}   ")
        title.append(f"by {ORDERS[self._order]}", "dim")
        title.append(f", only {self._filter}" if self._filter else "", "bold")
        self.tell("#title", title)
        self.query_one(Grid).fill(ordered)
        self.call_after_refresh(self._tell)

    def on_sheet_moved(self) -> None:
        """Tell of the rank under the cursor."""
        self._tell()

    def on_sheet_opened(self) -> None:
        """Open its last call in the log."""
        rank_row = self.query_one(Grid).rank_row
        if rank_row is not None and rank_row.at is not None:
            self.forensics.go(Place("log", (rank_row.at.source, rank_row.at.line)))

    def _tell(self) -> None:
        rank_row = self.query_one(Grid).rank_row
        text = Text()
        if rank_row is not None:
            where = f"GPU {known(rank_row.gpu)}, pid {known(rank_row.pid)}" if rank_row.rank_id is not None else ""
            text.append(f"{rank_row.name} ", "bold")
            text.append(f"{rank_row.host} {where}  ")
            text.append(rank_row.at.place if rank_row.at else "", "cyan")
            text.append(f"\n{rank_row.state}" + (f" · {rank_row.said}" if rank_row.said else ""))
            text.append(f"\nlast call: {rank_row.last or 'none seen'}")
        self.tell("#detail", text)

    def show(self, at: At) -> None:
        """Put the cursor on a rank."""
        self.call_after_refresh(self.query_one(Grid).find, at[0])

    def here(self) -> At:
        """The rank under the cursor."""
        rank_row = self.query_one(Grid).rank_row
        return (rank_row.rank_id,) if rank_row and rank_row.rank_id is not None else ()

    def copied(self) -> str:
        """The rank and its last call."""
        rank_row = self.query_one(Grid).rank_row
        return f"{rank_row.name} on {rank_row.host}: {rank_row.last}" if rank_row else ""

    def action_sort(self) -> None:
        """The next order."""
        self._order = (self._order + 1) % len(ORDERS)
        self._fill()

    def action_filter(self) -> None:
        """Ask what is to be shown."""

        def take(typed: str | None) -> None:
            if typed is not None:
                self._filter = typed
                self._fill()

        self.app.push_screen(
            Ask("Only which ranks? 0-7,12, part of a host's name, or a mark such as X", self._filter), take
        )

    def action_next(self) -> None:
        """To the next rank that is not as it should be."""
        from ncclforensics.tui.content.ranks import State

        grid = self.query_one(Grid)
        odd = [
            rank_row
            for rank_row in grid.rank_rows
            if rank_row.state in (State.DIED_FIRST, State.CULPRIT, State.MISSING)
        ]
        if odd:
            here = grid.rank_row
            follows = [
                rank_row
                for rank_row in odd
                if here is not None and grid.rank_rows.index(rank_row) > grid.rank_rows.index(here)
            ]
            grid.find_rank_row((follows or odd)[0])

    def action_operations(self) -> None:
        """Its last call."""
        rank_row = self.query_one(Grid).rank_row
        if rank_row is not None and rank_row.rank_id is not None:
            self.forensics.go(Place("operations", ("", rank_row.rank_id)))

    def action_waiting(self) -> None:
        """Who waits for whom."""
        self.forensics.go(Place("waiting"))


def _group(rank_row: RankRow, order: str) -> str:
    if order == "host":
        return rank_row.host
    return str(rank_row.state).partition(":")[0] if order == "state" else rank_row.last or "none seen"


def _fits(rank_row: RankRow, mark: str, typed: str) -> bool:
    """Whether a rank is among those asked for."""
    if not typed or typed == mark:
        return True
    if typed[0].isdecimal():
        from ncclforensics.errors import UsageError
        from ncclforensics.report.selection import ranks

        try:
            return rank_row.rank in ranks(typed)
        except UsageError:
            pass
    return typed in rank_row.host
