"""The calls of all ranks of a communicator side by side, aligned by their place; what differs is marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.prompts import Ask, Choice
from ncclforensics.tui.screen import At, Page, Place
from ncclforensics.tui.virtual_rows import CURSOR, Sheet

if TYPE_CHECKING:
    from ncclforensics.tui.content.calls import Calls, Cell, Column, Communicator

NARROWEST, WIDEST = 26, 48  # characters of a column
GUTTER = 10


class Sequence(Sheet):
    """A row for each place in the sequence, a column for each group of ranks."""

    HEAD = 1

    def __init__(self) -> None:
        super().__init__()
        self.calls: Calls | None = None
        self.communicator: Communicator | None = None
        self.columns: list[Column] = []

    @property
    def rows(self) -> int:
        """Places in the sequence."""
        return self.communicator.places if self.communicator else 0

    @property
    def fixed(self) -> int:
        """The places."""
        return GUTTER

    @property
    def _width(self) -> int:
        room = (self.size.width - GUTTER) // max(1, len(self.columns))
        return max(NARROWEST, min(WIDEST, room))

    def fill(self, calls: Calls, communicator: Communicator, columns: list[Column]) -> None:
        """Show a communicator."""
        self.calls, self.communicator, self.columns = calls, communicator, columns
        self.renew(GUTTER + self._width * len(columns))

    def cells(self, row: int) -> list[int]:
        """Where the columns begin."""
        return [GUTTER + number * self._width for number in range(len(self.columns))]

    def _row(self, row: int) -> list[Cell]:
        if self.calls is None or self.communicator is None:
            return []
        return self.calls.row(self.communicator, row, self.columns)

    @property
    def cell(self) -> Cell | None:
        """The cell under the cursor."""
        cells = self._row(self.at_row) if self.rows else []
        return cells[self.at_cell] if self.at_cell < len(cells) else None

    def head(self, line: int) -> Text:
        """The ranks."""
        text = Text("   place  ", "bold", no_wrap=True, end="")
        for column in self.columns:
            text.append(_fit(column.title, self._width), "bold underline")
        return text

    def text(self, row: int) -> Text:
        """The calls at one place, side by side."""
        cells = self._row(row)
        is_odd = any(cell.differs for cell in cells)
        text = Text(no_wrap=True, end="")
        text.append(f"{'≠' if is_odd else ' '}{row:>8} ", "bold red" if is_odd else "dim")
        for number, cell in enumerate(cells):
            is_cursor = (row, number) == (self.at_row, self.at_cell)
            style = CURSOR if is_cursor else "bold red" if cell.differs else ""
            text.append(_fit(cell.text or ("(no call)" if cell.differs else "·"), self._width), style)
        return text


def _fit(text: str, width: int) -> str:
    return text[: width - 2].ljust(width) if len(text) <= width - 2 else f"{text[: width - 3]}… "


class Operations(Page):
    """the calls of all ranks, aligned by their place in the sequence of a communicator."""

    NAME = "operations"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "communicators", "Communicators", tooltip="Choose a communicator"),
        Binding("d", "difference", "Difference", tooltip="To the first place where ranks called different things"),
        Binding("l", "last", "Last call", tooltip="To the last call of the ranks under the cursor"),
        Binding("u", "apart", "Apart", tooltip="Every rank in a column of its own, or ranks that are alike together"),
        Binding("colon,g", "place", "Place", show=False, tooltip="To a place by its number"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._calls: Calls | None = None
        self._is_apart = False

    def body(self) -> Iterable[Widget]:
        """Which communicator, its calls, and the one under the cursor in full."""
        yield Static("", id="title", markup=False)
        yield Sequence()
        yield Static("", id="detail", markup=False)

    @property
    def _sheet(self) -> Sequence:
        return self.query_one(Sequence)

    def draw(self, part: object) -> None:
        """The communicator that was shown, or the first."""
        self._calls = cast("Calls", part)
        shown = self._sheet.communicator
        known = {one.key: one for one in self._calls.communicators}
        if not known:
            self.trouble("these files show no call: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL prints them")
        elif shown is not None and shown.key in known:
            self._choose(known[shown.key], at=self._sheet.at_row)
        else:
            self._choose(self._calls.communicators[0])

    def _choose(self, one: Communicator, at: int | None = None) -> None:
        if self._calls is None:
            return
        columns = self._calls.apart(one) if self._is_apart else self._calls.together(one)
        self._sheet.fill(self._calls, one, columns)
        first = one.differs_at if one.differs_at is not None else one.stops_at
        place = at if at is not None else first if first is not None else one.places - 1
        self.call_after_refresh(self._sheet.put, place, self._sheet.at_cell, middle=True)

    def on_sheet_moved(self) -> None:
        """Tell of the call under the cursor."""
        sheet, one = self._sheet, self._sheet.communicator
        if one is None or self._calls is None or not sheet.columns:
            return
        title = Text()
        title.append(one.key, "bold cyan")
        title.append(f"  {one.nranks} ranks, {one.places:,} {'collectives' if one.by == 'nth' else 'messages'}")
        if one.differs_at is not None:
            title.append(f"  ≠ first difference at {one.differs_at:,}", "bold red")
        elif one.stops_at is not None:
            title.append(f"  stopped at {one.stops_at:,}", "bold red")
        if one.messages:
            title.append(f"  ({one.messages:,} sends and receives have no place here)", "dim")
        if one.unplaced:
            title.append(f"\n{one.unplaced:,} calls behind the unread middle are placed once every byte is read", "dim")
        self.tell("#title", title)
        column, cell = sheet.columns[min(sheet.at_cell, len(sheet.columns) - 1)], sheet.cell
        text = Text()
        text.append(f"{column.title} ", "bold")
        text.append(f"at {sheet.at_row:,}: {self._calls.told(one, sheet.at_row, column)}")
        text.append(f"\n{cell.at.place}" if cell and cell.at else "", "cyan")
        self.tell("#detail", text)

    def on_sheet_opened(self) -> None:
        """Open the call in the log."""
        cell = self._sheet.cell
        if cell is not None and cell.at is not None:
            self.forensics.go(Place("log", (cell.at.source, cell.at.line)))

    def show(self, at: At) -> None:
        """A communicator and a place in it; or the communicator of a rank's last call."""
        if self._calls is None:
            return
        known = {one.key: one for one in self._calls.communicators}
        if len(at) == 2 and at[0] == "":
            self._show_last(cast("int", at[1]))
        elif at[0] in known:
            one = known[at[0]]
            self._choose(one, cast("int", at[1]) if len(at) > 1 else None)

    def _show_last(self, rank_id: int) -> None:
        """The communicator that a rank called last, at that call."""
        if self._calls is None:
            return
        one = self._calls.last_of(rank_id)
        if one is None:
            self.forensics.complain("no call of this rank is seen")
            return
        self._choose(one, one.last.get(rank_id, one.places - 1))
        for number, column in enumerate(self._sheet.columns):
            if rank_id in column.rank_ids:
                self._sheet.at_cell = number

    def here(self) -> At:
        """The communicator and the place."""
        one = self._sheet.communicator
        return (one.key, self._sheet.at_row) if one else ()

    def copied(self) -> str:
        """The call under the cursor."""
        one, sheet = self._sheet.communicator, self._sheet
        if one is None or self._calls is None or not sheet.columns:
            return ""
        column = sheet.columns[sheet.at_cell]
        return f"{column.title}: {self._calls.told(one, sheet.at_row, column)} of {one.key}"

    def action_communicators(self) -> None:
        """Choose one."""
        calls = self._calls
        if calls is None or not calls.communicators:
            return
        options = [
            f"{'≠' if one.differs_at is not None else ' '} {one.key}  {one.nranks} ranks, {one.places:,} calls"
            for one in calls.communicators
        ]

        def take(number: int | None) -> None:
            if number is not None:
                self._choose(calls.communicators[number])

        self.app.push_screen(Choice("Which communicator?", options), take)

    def action_difference(self) -> None:
        """The first difference, here or in another communicator."""
        one = self._sheet.communicator
        if one is None or self._calls is None:
            return
        differing = [each for each in self._calls.communicators if each.differs_at is not None]
        if one in differing:
            self._choose(one, one.differs_at)
        elif differing:
            self._choose(differing[0], differing[0].differs_at)
        elif one.stops_at is not None:
            self._choose(one, one.stops_at)
        else:
            self.notify("all ranks called the same things, as far as they are seen")

    def action_last(self) -> None:
        """The last call of the ranks under the cursor."""
        one, sheet = self._sheet.communicator, self._sheet
        if one is not None and sheet.columns:
            rank_ids = sheet.columns[sheet.at_cell].rank_ids
            sheet.put(max((one.last.get(rank_id, 0) for rank_id in rank_ids), default=0), sheet.at_cell, middle=True)

    def action_apart(self) -> None:
        """Each rank in a column, or not."""
        one = self._sheet.communicator
        self._is_apart = not self._is_apart
        if one is not None:
            self._sheet.at_cell = 0
            self._choose(one, self._sheet.at_row)

    def action_place(self) -> None:
        """Ask for a number."""

        def take(typed: str | None) -> None:
            if typed and typed.isdecimal() and len(typed) < 19:
                self._sheet.put(int(typed), self._sheet.at_cell, middle=True)
            elif typed:
                self.forensics.complain(f"{typed}: not the number of a place")

        self.app.push_screen(Ask("To which place?"), take)
