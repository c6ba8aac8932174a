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
    from ncclforensics.tui.content.ranks import Seat

ORDERS = ("host", "state", "last call")
LONGEST = 34  # characters of a label
STYLES = {
    "D": "bold red", "X": "bold red", "?": "bold magenta", "d": "red", "·": "yellow", "-": "", "+": "green",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cell:
    x: int
    seat: Seat


@dataclass(slots=True)
class _Line:
    labels: list[tuple[int, str]]
    cells: list[_Cell]


class Grid(Sheet):
    """Groups of ranks, as dense as they have to be to fit."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[tuple[str, list[Seat]]] = []
        self._lines: list[_Line] = []

    @property
    def rows(self) -> int:
        """Lines of the grid."""
        return len(self._lines)

    def fill(self, groups: list[tuple[str, list[Seat]]]) -> None:
        """Lay out the groups; the cursor stays on its rank."""
        self._groups = groups
        here = self.seat
        self._lines = _laid(groups, max(20, self.size.width), max(1, self.size.height))
        self.renew(max((line.cells[-1].x + 1 for line in self._lines if line.cells), default=0))
        if here is not None:
            self.find_seat(here) if here.actor is None else self.find(here.actor)

    def on_resize(self) -> None:
        """Another density may fit."""
        self.fill(self._groups)

    @property
    def seat(self) -> Seat | None:
        """The rank under the cursor."""
        cells = self._lines[self.at_row].cells if self.at_row < len(self._lines) else []
        return cells[self.at_cell].seat if self.at_cell < len(cells) else None

    @property
    def seats(self) -> list[Seat]:
        """All ranks that are shown, in their order."""
        return [cell.seat for line in self._lines for cell in line.cells]

    def find(self, actor: object) -> None:
        """Put the cursor on a rank."""
        self._put(lambda seat: seat.actor == actor)

    def find_seat(self, wanted: Seat) -> None:
        """The same; also on one that no log shows."""
        self._put(lambda seat: seat is wanted)

    def _put(self, is_it: Callable[[Seat], bool]) -> None:
        for row, line in enumerate(self._lines):
            for cell, one in enumerate(line.cells):
                if is_it(one.seat):
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
            mark = MARKS[cell.seat.state]
            is_cursor = (row, number) == (self.at_row, self.at_cell)
            pieces.append((cell.x, mark, CURSOR if is_cursor else STYLES[mark]))
        text = Text(no_wrap=True)
        for x, piece, style in sorted(pieces):
            text.append(" " * (x - len(text)))
            text.append(piece, style)
        return text


def _laid(groups: list[tuple[str, list[Seat]]], width: int, height: int) -> list[_Line]:
    """With labels, in as many columns as are needed; without labels if that does not fit."""
    if not groups:
        return []
    label = min(LONGEST, max(len(name) for name, _ in groups))
    marks = max(len(seats) for _, seats in groups)
    wide = label + 1 + marks + 2
    columns = max(1, width // wide)
    if wide <= width and len(groups) <= columns * height:
        needed = -(-len(groups) // height)
        lines = [_Line([], []) for _ in range(-(-len(groups) // needed))]
        for number, (name, seats) in enumerate(groups):
            column, row = divmod(number, len(lines))
            left = column * wide
            lines[row].labels.append((left, name[:label]))
            lines[row].cells += [_Cell(left + label + 1 + place, seat) for place, seat in enumerate(seats)]
        return lines
    if marks + label + 1 > width:  # groups longer than a line
        return _flowing(groups, width)
    lines, x = [_Line([], [])], 0
    for _, seats in groups:
        if x + len(seats) > width and lines[-1].cells:
            lines.append(_Line([], []))
            x = 0
        lines[-1].cells += [_Cell(x + place, seat) for place, seat in enumerate(seats)]
        x += len(seats) + 1
    return lines


def _flowing(groups: list[tuple[str, list[Seat]]], width: int) -> list[_Line]:
    """A line with the name of each group, and its marks below it."""
    lines = []
    for name, seats in groups:
        for start in range(0, len(seats), width - 2):
            part = seats[start : start + width - 2]
            labels = [(0, f"{name} ({len(seats)})"[: width - 1])] if start == 0 else []
            if labels:
                lines.append(_Line(labels, []))
            lines.append(_Line([], [_Cell(2 + place, seat) for place, seat in enumerate(part)]))
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
        self._seats: list[Seat] = []
        self._order = 0
        self._filter = ""

    def body(self) -> Iterable[Widget]:
        """Legend, grid, and the rank under the cursor."""
        yield Static("", id="title", markup=False)
        yield Grid()
        yield Static("", id="detail", markup=False)

    def draw(self, part: object) -> None:
        """All ranks."""
        self._seats = cast("list[Seat]", part)
        self._fill()
        if not self._seats:
            self.trouble("these files show no rank of an NCCL job")

    def _fill(self) -> None:
        from ncclforensics.tui.content.ranks import MARKS, State

        shown = [seat for seat in self._seats if _fits(seat, MARKS[seat.state], self._filter)]
        groups: dict[str, list[Seat]] = {}
        for seat in shown:
            groups.setdefault(_group(seat, ORDERS[self._order]), []).append(seat)
        ordered = list(groups.items())
        if ORDERS[self._order] == "state":
            ordered.sort(key=lambda item: list(State).index(item[1][0].state))
        elif ORDERS[self._order] == "last call":
            ordered.sort(key=lambda item: len(item[1]))
        counts = Counter(seat.state for seat in shown)
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
        seat = self.query_one(Grid).seat
        if seat is not None and seat.at is not None:
            self.forensics.go(Place("log", (seat.at.source, seat.at.line)))

    def _tell(self) -> None:
        seat = self.query_one(Grid).seat
        text = Text()
        if seat is not None:
            where = f"GPU {known(seat.gpu)}, pid {known(seat.pid)}" if seat.actor is not None else ""
            text.append(f"{seat.name} ", "bold")
            text.append(f"{seat.host} {where}  ")
            text.append(seat.at.place if seat.at else "", "cyan")
            text.append(f"\n{seat.state}" + (f" · {seat.said}" if seat.said else ""))
            text.append(f"\nlast call: {seat.last or 'none seen'}")
        self.tell("#detail", text)

    def show(self, at: At) -> None:
        """Put the cursor on a rank."""
        self.call_after_refresh(self.query_one(Grid).find, at[0])

    def here(self) -> At:
        """The rank under the cursor."""
        seat = self.query_one(Grid).seat
        return (seat.actor,) if seat and seat.actor is not None else ()

    def copied(self) -> str:
        """The rank and its last call."""
        seat = self.query_one(Grid).seat
        return f"{seat.name} on {seat.host}: {seat.last}" if seat else ""

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
        odd = [seat for seat in grid.seats if seat.state in (State.DIED_FIRST, State.CULPRIT, State.MISSING)]
        if odd:
            here = grid.seat
            follows = [seat for seat in odd if here is not None and grid.seats.index(seat) > grid.seats.index(here)]
            grid.find_seat((follows or odd)[0])

    def action_operations(self) -> None:
        """Its last call."""
        seat = self.query_one(Grid).seat
        if seat is not None and seat.actor is not None:
            self.forensics.go(Place("operations", ("", seat.actor)))

    def action_waiting(self) -> None:
        """Who waits for whom."""
        self.forensics.go(Place("waiting"))


def _group(seat: Seat, order: str) -> str:
    if order == "host":
        return seat.host
    return str(seat.state).partition(":")[0] if order == "state" else seat.last or "none seen"


def _fits(seat: Seat, mark: str, typed: str) -> bool:
    """Whether a rank is among those asked for."""
    if not typed or typed == mark:
        return True
    if typed[0].isdecimal():
        from ncclforensics.errors import UsageError
        from ncclforensics.report.selection import ranks

        try:
            return seat.rank in ranks(typed)
        except UsageError:
            pass
    return typed in seat.host
