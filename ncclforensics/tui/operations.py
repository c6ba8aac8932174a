"""The calls screen: the calls of all ranks of a communicator side by side, aligned by position, with their times.

Positions far from any change, at which all ranks made the same calls, are folded into one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType

from ncclforensics.tui.call_table import CallTable, clock_text
from ncclforensics.tui.prompts import Ask, Choice
from ncclforensics.tui.screen import Page, Place, Position

if TYPE_CHECKING:
    from ncclforensics.tui.content.calls import Calls, Communicator


class Operations(Page):
    """The calls of all ranks, aligned by their position in the sequence of a communicator."""

    NAME = "operations"
    EMPTY = "no calls in these logs; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL prints them"
    BODY = (CallTable,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "communicators", "Communicators", tooltip="Choose a communicator"),
        Binding("d", "difference", "Difference", tooltip="Go to the first different call"),
        Binding("l", "last", "Last call", tooltip="Go to the last call of the ranks under the cursor"),
        Binding("f", "fold", "Fold", tooltip="Show all positions, or fold those without a change"),
        Binding("u", "ungroup", "Ungroup", tooltip="One column per rank, or per group of ranks with the same calls"),
        Binding("colon", "position", "Position", show=False, tooltip="Go to a position by its number"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._calls: Calls | None = None
        self._is_ungrouped = False

    @property
    def _table(self) -> CallTable:
        return self.query_one(CallTable)

    def draw(self, part: object) -> None:
        """Show the same communicator as before, or the first."""
        self._calls = cast("Calls", part)
        shown = self._table.communicator
        by_key = {communicator.key: communicator for communicator in self._calls.communicators}
        if shown is not None and shown.key in by_key:
            self._choose(by_key[shown.key], position=self._table.position)
        else:
            self._choose(self._calls.communicators[0])

    def _choose(self, communicator: Communicator, position: int | None = None) -> None:
        if self._calls is None:
            return
        columns = (
            self._calls.single_columns(communicator)
            if self._is_ungrouped
            else self._calls.grouped_columns(communicator)
        )
        self._table.fill(self._calls, communicator, columns)
        first = communicator.differs_at if communicator.differs_at is not None else communicator.stops_at
        if position is None:
            position = first if first is not None else communicator.length - 1
        self.call_after_refresh(self._table.put_position, position, self._table.cursor_cell)

    def on_virtual_rows_moved(self) -> None:
        """Show the communicator, and the call under the cursor."""
        table, communicator = self._table, self._table.communicator
        if communicator is None or self._calls is None or not table.columns:
            return
        self.set_text("#title", _title(communicator))
        column, cell = table.columns[min(table.cursor_cell, len(table.columns) - 1)], table.cell
        text = Text()
        text.append(f"{column.title} ", "bold")
        if table.fold:
            text.append("at all these positions: enter shows them")
        else:
            text.append(f"at {table.position:,}: {cell.description if cell else ''}")
        if cell and cell.time:
            first = self._calls.time(communicator, table.position) or cell.time
            lag = (cell.time - first).total_seconds()
            text.append(f"  {clock_text(cell.time)}" + (f", {lag:,.3g} s after the first rank" if lag else ""), "dim")
        text.append(f"\n{cell.cited.location}" if cell and cell.cited else "", "cyan")
        self.set_text("#detail", text)

    def on_virtual_rows_opened(self) -> None:
        """Open the log at the call under the cursor, or the fold under it."""
        table, cell = self._table, self._table.cell
        if table.fold is not None:
            table.open_fold()
        elif cell is not None and cell.cited is not None:
            self.controller.go(Place("log", (cell.cited.source, cell.cited.line)))

    def go_to(self, position: Position) -> None:
        """Go to (communicator key, position), or to the last call of a rank: ("", rank_id)."""
        if self._calls is None:
            return
        by_key = {communicator.key: communicator for communicator in self._calls.communicators}
        if len(position) == 2 and position[0] == "":
            self._show_last(cast("int", position[1]))
        elif position[0] in by_key:
            communicator = by_key[position[0]]
            self._choose(communicator, cast("int", position[1]) if len(position) > 1 else None)

    def _show_last(self, rank_id: int) -> None:
        """Show the last call of a rank, on its communicator."""
        if self._calls is None:
            return
        communicator = self._calls.last_of(rank_id)
        if communicator is None:
            self.controller.show_error("no call of this rank in these logs")
            return
        self._choose(communicator, communicator.last.get(rank_id, communicator.length - 1))
        for number, column in enumerate(self._table.columns):
            if rank_id in column.rank_ids:
                self._table.cursor_cell = number

    def cursor_position(self) -> Position:
        """Return the key of the communicator and the position in its sequence."""
        communicator = self._table.communicator
        return (communicator.key, self._table.position) if communicator else ()

    def clipboard_text(self) -> str:
        """Return the call under the cursor."""
        communicator, table = self._table.communicator, self._table
        cell = table.cell
        if communicator is None or cell is None:
            return ""
        return f"{table.columns[table.cursor_cell].title}: {cell.description} of {communicator.key}"

    def action_communicators(self) -> None:
        """Ask for a communicator and show it."""
        calls = self._calls
        if calls is None or not calls.communicators:
            return
        options = [
            f"{'≠' if communicator.differs_at is not None else ' '} {communicator.key}  "
            f"{communicator.nranks} ranks, {communicator.length:,} calls"
            for communicator in calls.communicators
        ]

        def choose(number: int | None) -> None:
            if number is not None:
                self._choose(calls.communicators[number])

        self.app.push_screen(Choice("Which communicator?", options), choose)

    def action_difference(self) -> None:
        """Go to the first difference, on this communicator or on another one."""
        communicator = self._table.communicator
        if communicator is None or self._calls is None:
            return
        differing = [candidate for candidate in self._calls.communicators if candidate.differs_at is not None]
        if communicator in differing:
            self._choose(communicator, communicator.differs_at)
        elif differing:
            self._choose(differing[0], differing[0].differs_at)
        elif communicator.stops_at is not None:
            self._choose(communicator, communicator.stops_at)
        else:
            self.notify("no difference: all ranks made the same calls, as far as these logs show")

    def action_last(self) -> None:
        """Go to the last call of the ranks under the cursor."""
        communicator, table = self._table.communicator, self._table
        if communicator is not None and table.columns:
            rank_ids = table.columns[table.cursor_cell].rank_ids
            last = max((communicator.last.get(rank_id, 0) for rank_id in rank_ids), default=0)
            table.put_position(last, table.cursor_cell)

    def action_fold(self) -> None:
        """Show all positions, or fold those far from a change."""
        self._table.switch_folds()

    def action_ungroup(self) -> None:
        """Switch between a column per rank and a column per group of ranks."""
        communicator = self._table.communicator
        self._is_ungrouped = not self._is_ungrouped
        if communicator is not None:
            self._table.cursor_cell = 0
            self._choose(communicator, self._table.position)

    def action_position(self) -> None:
        """Ask for a position and go to it."""

        def go(typed: str | None) -> None:
            if typed and typed.isdecimal() and len(typed) < 19:
                self._table.put_position(int(typed), self._table.cursor_cell)
            elif typed:
                self.controller.show_error(f"{typed}: not a position; type a number")

        self.app.push_screen(Ask("Go to which position?"), go)


def _title(communicator: Communicator) -> Text:
    kind = "collectives" if communicator.position_column == "nth" else "sends and receives"
    title = Text()
    title.append(communicator.key, "bold cyan")
    title.append(f"  {communicator.nranks} ranks, {communicator.length:,} {kind}")
    if communicator.differs_at is not None:
        title.append(f"  ≠ first difference at {communicator.differs_at:,}", "bold red")
    elif communicator.stops_at is not None:
        title.append(f"  stopped at {communicator.stops_at:,}", "bold red")
    if communicator.p2p_calls:
        title.append(f"  ({communicator.p2p_calls:,} sends and receives not shown)", "dim")
    if communicator.calls_without_position:
        title.append(
            f"\n{communicator.calls_without_position:,} calls not shown until the whole file has been read", "dim"
        )
    return title
