"""The connections screen: a matrix of transports between ranks or hosts, rings, and the NICs of each rank."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType

from ncclforensics.tui.screen import Page
from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    from ncclforensics.tui.content.connections import Connections as Part
    from ncclforensics.tui.content.connections import Matrix, PairTransports

STYLES = {"G": "green", "N": "yellow", "P": "cyan", "S": "magenta", "C": "blue"}
LONGEST = 24  # characters of a row label


class MatrixTable(VirtualRows):
    """A matrix with senders as rows and receivers as columns, or a list of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix: Matrix | None = None
        self._label = 0  # width of the row labels
        self.lines: list[tuple[str, bool]] = []  # text and whether it is unusual; used instead of a matrix

    @property
    def rows(self) -> int:
        """Return the number of senders, or of lines."""
        return len(self.matrix.ends) if self.matrix else len(self.lines)

    @property
    def fixed(self) -> int:
        """Return the width of the row labels."""
        return self._label + 1 if self.matrix else 0

    def fill(self, matrix: Matrix | None, lines: list[tuple[str, bool]]) -> None:
        """Show a matrix, or lines."""
        self.matrix, self.lines = matrix, lines
        self._label = min(LONGEST, max(map(len, matrix.ends), default=0)) if matrix else 0
        longest = max((len(line) for line, _ in lines), default=0) + 2
        self.rows_changed(self._label + 1 + 2 * len(matrix.ends) if matrix else longest)
        first = min(matrix.pairs, key=lambda place: (not matrix.pairs[place].is_unusual, place)) if matrix else (0, 0)
        self.put(*first)

    def cells(self, row: int) -> list[int]:
        """Return the column of each receiver."""
        return [self._label + 1 + 2 * column for column in range(len(self.matrix.ends))] if self.matrix else []

    @property
    def pair(self) -> PairTransports | None:
        """Return the pair under the cursor, if the logs show a connection."""
        return self.matrix.pairs.get((self.cursor_row, self.cursor_cell)) if self.matrix else None

    def text(self, row: int) -> Text:
        """Render a row of the matrix, or a line."""
        text = Text(no_wrap=True, end="")
        if self.matrix is None:
            line, is_unusual = self.lines[row]
            style = CURSOR if row == self.cursor_row else "bold red" if is_unusual else ""
            return text.append(f"{'!' if is_unusual else ' '} {line}", style)
        name = self.matrix.ends[row]
        text.append(name[-self._label :].ljust(self._label + 1), "bold" if row == self.cursor_row else "dim")
        first = int(self.scroll_offset.x) // 2  # render only the cells in view: a row may have thousands
        text.append("  " * first)
        in_view = range(first, min(first + self.size.width // 2 + 1, len(self.matrix.ends)))
        # Neighbours of one style are appended together: a style costs more than its characters.
        for style, marks in groupby((mark for column in in_view for mark in self._marks(row, column)), itemgetter(0)):
            text.append("".join(mark for _, mark in marks), style)
        return text

    def _marks(self, row: int, column: int) -> list[tuple[str, str]]:
        """Return the mark of a pair, and what is behind it, each with its style."""
        assert self.matrix is not None
        pair = self.matrix.pairs.get((row, column))
        is_unusual = pair is not None and pair.is_unusual
        mark = pair.mark if pair else "\\" if row == column else "."
        style = "bold red" if is_unusual else STYLES.get(mark, "dim")
        is_cursor = (row, column) == (self.cursor_row, self.cursor_cell)
        return [(CURSOR if is_cursor else style, mark), (style, "!" if is_unusual else " ")]


class Connections(Page):
    """The transports that NCCL chose between ranks and hosts; unusual ones are marked with !."""

    NAME = "connections"
    EMPTY = "no connections in these logs; NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,P2P,NET prints them"
    BODY = (MatrixTable,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "View", tooltip="Next view: rank to rank, host to host, rings, NICs of each rank"),
        Binding("n", "unusual", "Next unusual", tooltip="Go to the next unusual pair"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._views: list[tuple[str, Matrix | None, list[tuple[str, bool]]]] = []
        self._view = 0

    def draw(self, part: object) -> None:
        """Build the list of views."""
        connections = cast("Part", part)
        self._views = [(matrix.title, matrix, []) for matrix in connections.matrices]
        if connections.rings:
            self._views.append(("rings", None, [(ring, False) for ring in connections.rings]))
        if connections.nics:
            lines = [(f"{rank}: {nics}", is_unusual) for rank, nics, is_unusual in connections.nics]
            self._views.append(("NICs of each rank", None, lines))
        self._view = min(self._view, max(0, len(self._views) - 1))
        self._fill()

    def _fill(self) -> None:
        from ncclforensics.tui.content.connections import MEDIA

        table, title = self.query_one(MatrixTable), Text()
        if self._views:
            _, matrix, lines = self._views[self._view]
            for number, (name, _, _) in enumerate(self._views):
                title.append(
                    f"[{name}]" if number == self._view else f" {name} ", "bold" if number == self._view else "dim"
                )
            if matrix is not None:
                marks = {pair.mark for pair in matrix.pairs.values()}
                title.append("\n" + "   ".join(f"{mark} {meaning}" for mark, meaning in MEDIA.items() if mark in marks))
                unusual = sum(pair.is_unusual for pair in matrix.pairs.values())
                title.append(f"   ! {unusual} unusual" if unusual else "", "bold red")
            table.fill(matrix, lines)
        self.set_text("#title", title)

    def on_virtual_rows_moved(self) -> None:
        """Show the transports of the pair under the cursor."""
        table, text = self.query_one(MatrixTable), Text()
        if table.matrix is not None:
            ends, pair = table.matrix.ends, table.pair
            text.append(f"{ends[table.cursor_row]} → {ends[table.cursor_cell]}\n", "bold")
            if pair is None:
                text.append("no connection in these logs")
            else:
                text.append(", ".join(f"{count} {name}" for name, count in sorted(pair.transports.items())))
                text.append(
                    "\nunusual: most pairs of this kind use other transports" if pair.is_unusual else "", "bold red"
                )
        elif table.lines:
            text.append(table.lines[table.cursor_row][0])
        self.set_text("#detail", text)

    def clipboard_text(self) -> str:
        """Return the pair under the cursor and its transports."""
        table = self.query_one(MatrixTable)
        if table.matrix is None:
            return table.lines[table.cursor_row][0] if table.lines else ""
        transports = table.pair.transports if table.pair else {}
        ends = table.matrix.ends
        transport_text = ", ".join(f"{count} {name}" for name, count in sorted(transports.items()))
        return f"{ends[table.cursor_row]} → {ends[table.cursor_cell]}: {transport_text or 'no connection'}"

    def action_view(self) -> None:
        """Show the next view."""
        if self._views:
            self._view = (self._view + 1) % len(self._views)
            self._fill()

    def action_unusual(self) -> None:
        """Go to the next unusual pair or line."""
        table = self.query_one(MatrixTable)
        if table.matrix is not None:
            unusual = sorted(place for place, pair in table.matrix.pairs.items() if pair.is_unusual)
        else:
            unusual = [(row, 0) for row, (_, is_unusual) in enumerate(table.lines) if is_unusual]
        if not unusual:
            self.notify("no unusual pairs in this view")
            return
        later = [place for place in unusual if place > (table.cursor_row, table.cursor_cell)]
        table.put(*(later or unusual)[0], middle=True)
