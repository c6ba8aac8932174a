"""What was measured, with curves against what is expected; machines; counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.page import Page

if TYPE_CHECKING:
    from ncclforensics.tui.facts.measured import Measured
    from ncclforensics.tui.facts.measured import Table as Counters


class Benchmarks(Page):
    """what was measured against what is expected, how machines are built, and counters."""

    NAME = "benchmarks"
    AUTO_FOCUS = "#measured"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "down", "Down", show=False, tooltip="A screenful down"),
    ]

    def body(self) -> Iterable[Widget]:
        """One long page."""
        with VerticalScroll(id="measured", can_focus=True):
            yield Static("", id="told", markup=False)

    def draw(self, part: object) -> None:
        """Everything, as the command line draws it."""
        shown = cast("Measured", part)
        parts: list[RenderableType] = [*shown.parts]
        for counters in shown.counters:
            parts += [Text(f"\n{counters.title}", "bold"), Padding(_table(counters), (0, 0, 0, 2))]
        if not parts:
            self.trouble("these files hold no benchmark, no dump of a machine and no counters")
        self.query_one("#told", Static).update(Group(*parts))

    def action_down(self) -> None:
        """Down."""
        self.query_one(VerticalScroll).scroll_page_down(animate=False)


def _table(counters: Counters) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    for column in counters.columns:
        table.add_column(column, overflow="fold")
    for row in counters.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
