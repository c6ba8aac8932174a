"""The slow screen: the verdict on a slow job, the times of its steps, and a heat map of late ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.screen import Page
from ncclforensics.tui.virtual_rows import CURSOR, VirtualRows

if TYPE_CHECKING:
    from ncclforensics.frames.columns import Row
    from ncclforensics.tui.content.slow import Cells, SlowJob

# Share of a usual step, the mark of a rank that is later by as much or more, and its style.
MARKS = ((0.2, "█", "bold red"), (0.1, "▓", "red"), (0.05, "▒", "yellow"), (0.02, "░", "yellow"), (0.0, "·", "dim"))
BARS = " ▁▂▃▄▅▆▇█"
BAR_ROWS = 3  # lines of the step times
WIDEST_CELL = 3  # characters
LONGEST_LABEL = 18
LEGEND = "Step times; below: █ ▓ ▒ ░ later than the median by 20, 10, 5, 2 % of a step."


class HeatMap(VirtualRows):
    """A row for each rank, or for neighbouring ranks; a column for each step, or for neighbouring steps."""

    HEAD = BAR_ROWS + 2

    def __init__(self) -> None:
        super().__init__()
        self._job: SlowJob | None = None
        self._cells: Cells | None = None
        self._since: int | None = None  # step from which on the job, or a rank, is slow
        self._width = 1  # of a cell
        self._label = 0  # width of the labels
        self.is_grouped = True

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self._cells.rows) if self._cells is not None else 0

    @property
    def fixed(self) -> int:
        """Return the width of the labels."""
        return self._label

    @property
    def cell(self) -> Row | None:
        """Return the cell under the cursor."""
        cells = self._cells.of_row(self.cursor_row) if self._cells is not None else []
        return cells[self.cursor_cell] if self.cursor_cell < len(cells) else None

    def fill(self, job: SlowJob) -> None:
        """Lay out the cells for the size of the screen; the cursor stays on its rank and step."""
        self._job, current = job, self.cell
        self._since = job.answer.since_step if job.answer is not None else None
        height = max(1, self.size.height - self.HEAD) if self.is_grouped else job.late.height
        room = max(20, self.size.width - LONGEST_LABEL)
        self._cells = job.cells(height, room)
        self._label = 1 + max(len(job.label(row)) for row in self._cells.rows) if self.rows else 0
        columns = len(self._cells.columns)
        self._width = max(1, min(WIDEST_CELL, room // max(columns, 1)))
        self.rows_changed(self._label + columns * self._width)
        if current is not None:
            self.find(current["latest"], current["step"])

    def on_resize(self) -> None:
        """Lay out the cells for the new size."""
        if self._job is not None:
            self.fill(self._job)

    def find(self, rank: int, step: int) -> None:
        """Move the cursor to a rank and a step."""
        for number, row in enumerate(self._cells.rows if self._cells is not None else []):
            if self._cells is not None and row["rank"] <= rank <= row["last_rank"]:
                before = [place for place, cell in enumerate(self._cells.of_row(number)) if cell["step"] <= step]
                self.put(number, before[-1] if before else 0, middle=True)

    def cells(self, row: int) -> list[int]:
        """Return the column of each cell."""
        cells = self._cells.of_row(row) if self._cells is not None else []
        return [self._place(cell) for cell in cells]

    def _place(self, cell: Row) -> int:
        return self._label + int(cell["column"]) * self._width

    def head(self, line: int) -> Text:
        """Render a line of the step times, the steps below them with the change marked, or what the marks mean."""
        columns = self._cells.columns if self._cells is not None else []
        if not columns:
            return Text()
        if line == BAR_ROWS:
            return self._axis(columns)
        if line > BAR_ROWS:
            return Text(LEGEND, "dim", no_wrap=True)
        longest = max(column["length_us"] for column in columns)
        text = Text((f"{longest / 1e6:.3g} s" if line == 0 else "").ljust(self._label), "dim")
        for column in columns:
            full = len(BARS) - 1
            level = round(column["length_us"] / longest * BAR_ROWS * full) - (BAR_ROWS - 1 - line) * full
            is_slow = self._since is not None and column["last_step"] >= self._since
            text.append(BARS[max(0, min(level, full))] * self._width, "yellow" if is_slow else "cyan")
        return text

    def _axis(self, columns: list[Row]) -> Text:
        """The first and the last step, and between them the one since which steps are slower."""
        first, last = columns[0]["step"], columns[-1]["last_step"]
        width = self._place(columns[-1]) + self._width
        line = f"{'step':<{self._label}}{first}".ljust(width - len(str(last))) + str(last)
        if self._since is None or not first < self._since <= last:
            return Text(line, "dim")
        place = next(self._place(column) for column in columns if column["last_step"] >= self._since)
        words = f"since step {self._since}"
        is_left = place + len(words) + len(str(last)) > width
        mark, start = (f"{words} ▲", place - len(words) - 1) if is_left else (f"▲ {words}", place)
        text = Text(line[:start], "dim")
        text.append(mark, "bold yellow")
        text.append(line[start + len(mark) :], "dim")
        return text

    def text(self, row: int) -> Text:
        """Render the cells of a row."""
        job, cells = self._job, self._cells.of_row(row) if self._cells is not None else []
        text = Text(no_wrap=True)
        if job is None or not cells:
            return text
        named = job.answer.ranks if job.answer is not None and job.shows_ranks else ()
        ends = self._cells.rows[row] if self._cells is not None else {}
        is_named = any(ends["rank"] <= rank <= ends["last_rank"] for rank in named)
        text.append(job.label(ends).ljust(self._label), "bold" if is_named else "dim")
        for number, cell in enumerate(cells):
            text.append(" " * (self._place(cell) - len(text)))
            mark, style = next((mark, style) for least, mark, style in MARKS if job.share(cell) >= least)
            is_cursor = (row, number) == (self.cursor_row, self.cursor_cell)
            text.append(mark * self._width, CURSOR if is_cursor else style)
        return text


class Slow(Page):
    """The verdict on a slow job, how long its steps take, and which ranks work longer than the others in them."""

    NAME = "slow"
    EMPTY = "no profiler trace and no step line in these files"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view", "Each rank", tooltip="Show a row for each rank, or as many as fit on the screen"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._job: SlowJob | None = None
        self._is_placed = False

    def compose_body(self) -> Iterable[Widget]:
        """Create the verdict, the heat map and the details."""
        yield Static("", id="verdict", markup=False)
        yield HeatMap()
        yield Static("", id="detail", markup=False)

    def draw(self, part: object) -> None:
        """Show the verdict and the cells; the cursor begins where a named rank, or the job, becomes slow."""
        self._job = job = cast("SlowJob", part)
        self.query_one("#verdict", Static).update(Text(job.title))
        grid = self.query_one(HeatMap)
        grid.fill(job)
        answer = job.answer
        if answer is not None and not self._is_placed:
            self._is_placed = True
            rank = answer.ranks[0] if answer.ranks and job.shows_ranks else 0
            self.call_after_refresh(grid.find, rank, answer.since_step or 0)
        self.call_after_refresh(self._show_details)

    def on_virtual_rows_moved(self) -> None:
        """Show what the cell under the cursor says."""
        self._show_details()

    def on_virtual_rows_opened(self) -> None:
        """Show the single ranks of a row, or of all rows as many as fit."""
        self.action_view()

    def _show_details(self) -> None:
        self.set_text("#detail", Text(self.clipboard_text()))

    def clipboard_text(self) -> str:
        """Return what the cell under the cursor says."""
        cell = self.query_one(HeatMap).cell
        return self._job.detail(cell) if self._job is not None and cell is not None else ""

    def action_view(self) -> None:
        """Show a row for each rank, or only as many rows as fit."""
        grid = self.query_one(HeatMap)
        grid.is_grouped = not grid.is_grouped
        if self._job is not None:
            grid.fill(self._job)
