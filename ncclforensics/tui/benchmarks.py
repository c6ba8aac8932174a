"""What was measured, with curves against what is expected; machines; counters."""

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
    from ncclforensics.tui.content.measurements import Measured


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
        if not shown.parts:
            self.trouble("these files hold no benchmark, no dump of a machine and no counters")
        self.query_one("#told", Static).update(Group(*shown.parts))

    def action_down(self) -> None:
        """Down."""
        self.query_one(VerticalScroll).scroll_page_down(animate=False)
