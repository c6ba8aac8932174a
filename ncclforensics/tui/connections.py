"""Who is joined to whom and over what: a matrix of ranks or hosts, rings, and the NICs of each rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.screen import Page
from ncclforensics.tui.virtual_rows import CURSOR, Sheet

if TYPE_CHECKING:
    from ncclforensics.tui.content.connections import Connections as Part
    from ncclforensics.tui.content.connections import Joint, Matrix

STYLES = {"G": "green", "N": "yellow", "P": "cyan", "S": "magenta", "C": "blue"}
LONGEST = 24  # characters of the name of a row


class Table(Sheet):
    """A matrix: who sends stands at the left, who receives on top."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix: Matrix | None = None
        self._label = 0  # characters of a name
        self.lines: list[tuple[str, bool]] = []  # in place of a matrix; true: it stands out

    @property
    def rows(self) -> int:
        """Ends, or lines."""
        return len(self.matrix.ends) if self.matrix else len(self.lines)

    @property
    def fixed(self) -> int:
        """The names of the ends."""
        return self._label + 1 if self.matrix else 0

    def fill(self, matrix: Matrix | None, lines: list[tuple[str, bool]]) -> None:
        """Show a matrix, or lines."""
        self.matrix, self.lines = matrix, lines
        self._label = min(LONGEST, max(map(len, matrix.ends), default=0)) if matrix else 0
        longest = max((len(line) for line, _ in lines), default=0) + 2
        self.renew(self._label + 1 + 2 * len(matrix.ends) if matrix else longest)
        first = min(matrix.joints, key=lambda place: (not matrix.joints[place].is_odd, place)) if matrix else (0, 0)
        self.put(*first)

    def cells(self, row: int) -> list[int]:
        """A mark for each end."""
        return [self._label + 1 + 2 * place for place in range(len(self.matrix.ends))] if self.matrix else []

    @property
    def joint(self) -> Joint | None:
        """What stands under the cursor."""
        return self.matrix.joints.get((self.at_row, self.at_cell)) if self.matrix else None

    def text(self, row: int) -> Text:
        """One end with its marks."""
        text = Text(no_wrap=True, end="")
        if self.matrix is None:
            line, is_odd = self.lines[row]
            style = CURSOR if row == self.at_row else "bold red" if is_odd else ""
            return text.append(f"{'!' if is_odd else ' '} {line}", style)
        name = self.matrix.ends[row]
        text.append(name[-self._label :].ljust(self._label + 1), "bold" if row == self.at_row else "dim")
        first = int(self.scroll_offset.x) // 2  # only what is in view: a row may have thousands of cells
        text.append("  " * first)
        for place in range(first, min(first + self.size.width // 2 + 1, len(self.matrix.ends))):
            joint = self.matrix.joints.get((row, place))
            is_cursor = (row, place) == (self.at_row, self.at_cell)
            mark = joint.mark if joint else "\\" if row == place else "."
            style = "bold red" if joint and joint.is_odd else STYLES.get(mark, "dim")
            text.append(mark, CURSOR if is_cursor else style)
            text.append("!" if joint and joint.is_odd else " ", "bold red")
        return text


class Connections(Page):
    """who is joined to whom and over what, as NCCL decided it; what stands out is marked with !."""

    NAME = "connections"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "View", tooltip="Rank to rank, host to host, rings, NICs of each rank"),
        Binding("n", "odd", "Next odd", tooltip="To the next one that stands out"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._views: list[tuple[str, Matrix | None, list[tuple[str, bool]]]] = []
        self._at = 0

    def body(self) -> Iterable[Widget]:
        """What is shown, and the pair under the cursor."""
        yield Static("", id="title", markup=False)
        yield Table()
        yield Static("", id="detail", markup=False)

    def draw(self, part: object) -> None:
        """All that the logs tell of connections."""
        shown = cast("Part", part)
        self._views = [(matrix.title, matrix, []) for matrix in shown.matrices]
        if shown.rings:
            self._views.append(("rings", None, [(ring, False) for ring in shown.rings]))
        if shown.nics:
            lines = [(f"{rank}: {nics}", is_odd) for rank, nics, is_odd in shown.nics]
            self._views.append(("NICs of each rank", None, lines))
        if not self._views:
            self.trouble("these files show no connection: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,P2P,NET prints them")
        self._at = min(self._at, max(0, len(self._views) - 1))
        self._fill()

    def _fill(self) -> None:
        from ncclforensics.tui.content.connections import MARKS

        table, title = self.query_one(Table), Text()
        if self._views:
            _, matrix, lines = self._views[self._at]
            for number, (name, _, _) in enumerate(self._views):
                title.append(
                    f"[{name}]" if number == self._at else f" {name} ", "bold" if number == self._at else "dim"
                )
            if matrix is not None:
                marks = {joint.mark for joint in matrix.joints.values()}
                title.append("\n" + "   ".join(f"{mark} {means}" for mark, means in MARKS.items() if mark in marks))
                odd = sum(joint.is_odd for joint in matrix.joints.values())
                title.append(f"   ! {odd} not like the others" if odd else "", "bold red")
            table.fill(matrix, lines)
        self.tell("#title", title)

    def on_sheet_moved(self) -> None:
        """Tell of the pair under the cursor."""
        table, text = self.query_one(Table), Text()
        if table.matrix is not None:
            ends, joint = table.matrix.ends, table.joint
            text.append(f"{ends[table.at_row]} → {ends[table.at_cell]}\n", "bold")
            if joint is None:
                text.append("no connection is printed")
            else:
                text.append(", ".join(f"{count} {name}" for name, count in sorted(joint.transports.items())))
                text.append("\nnot like most pairs of this kind" if joint.is_odd else "", "bold red")
        elif table.lines:
            text.append(table.lines[table.at_row][0])
        self.tell("#detail", text)

    def copied(self) -> str:
        """What is told of the pair."""
        table = self.query_one(Table)
        if table.matrix is None:
            return table.lines[table.at_row][0] if table.lines else ""
        ways = table.joint.transports if table.joint else {}
        ends = table.matrix.ends
        told = ", ".join(f"{count} {name}" for name, count in sorted(ways.items()))
        return f"{ends[table.at_row]} → {ends[table.at_cell]}: {told or 'no connection'}"

    def action_view(self) -> None:
        """The next view."""
        if self._views:
            self._at = (self._at + 1) % len(self._views)
            self._fill()

    def action_odd(self) -> None:
        """The next that stands out."""
        table = self.query_one(Table)
        if table.matrix is not None:
            odd = sorted(place for place, joint in table.matrix.joints.items() if joint.is_odd)
        else:
            odd = [(row, 0) for row, (_, is_odd) in enumerate(table.lines) if is_odd]
        if not odd:
            self.notify("nothing stands out here")
            return
        follows = [place for place in odd if place > (table.at_row, table.at_cell)]
        table.put(*(follows or odd)[0], middle=True)
