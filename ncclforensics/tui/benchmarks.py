"""The benchmarks screen: benchmark curves with the expected values, machines and counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.console import Group
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.screen import Page

if TYPE_CHECKING:
    from ncclforensics.tui.content.measurements import MeasurementsPart


class Benchmarks(Page):
    """Benchmarks with the expected values, machines and counters."""

    NAME = "benchmarks"
    EMPTY = "no benchmark, no machine description and no counters in these files"
    AUTO_FOCUS = "#measured"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "down", "Down", show=False, tooltip="Scroll down one page"),
    ]

    def compose_body(self) -> Iterable[Widget]:
        """Create one scrollable text."""
        with VerticalScroll(id="measured", can_focus=True):
            yield Static("", id="text", markup=False)

    def draw(self, part: object) -> None:
        """Show the tables and plots of the command line."""
        measurements = cast("MeasurementsPart", part)
        self.query_one("#text", Static).update(Group(*measurements.parts))

    def action_down(self) -> None:
        """Scroll down one page."""
        self.query_one(VerticalScroll).scroll_page_down(animate=False)
