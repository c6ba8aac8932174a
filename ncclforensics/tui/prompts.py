"""Dialogs: the list of keys, a choice from a list, and a line of input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from ncclforensics.tui.screen import TITLES, Page

if TYPE_CHECKING:
    from textual.app import App


class Help(ModalScreen[None]):
    """All keys: those of the current screen first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close"),
    ]

    def __init__(self, page: Page, app: App[None]) -> None:
        super().__init__()
        self._page, self._owner = page, app

    def compose(self) -> ComposeResult:
        """Create the tables of keys."""
        with VerticalScroll():
            title = TITLES[self._page.NAME]
            yield Static(Text(f"{title}. {(type(self._page).__doc__ or '').strip()}"), markup=False)
            yield Static(_table(type(self._page).BINDINGS))
            yield Static(Text("\nOn every screen"), markup=False)
            yield Static(_table(type(self._owner).BINDINGS))
            yield Static(_common_keys())


class TextPage(ModalScreen[None]):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Close")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Create the text."""
        with VerticalScroll():
            yield Static(Text(self._text), markup=False)


_NAMES = {
    "question_mark": "?", "slash": "/", "less_than_sign": "<", "greater_than_sign": ">", "colon": ":",
    "left_square_bracket": "[", "right_square_bracket": "]",
}  # fmt: skip


def _table(bindings: Iterable[BindingType]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="bold", min_width=22)
    table.add_column()
    for binding in bindings:
        if isinstance(binding, Binding):
            keys = " ".join(_NAMES.get(key, key) for key in binding.key.split(","))
            table.add_row(Text(keys), Text(binding.tooltip or binding.description))
    return table


def _common_keys() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="bold", min_width=22)
    table.add_column()
    table.add_row("up down left right", "Move; page up, page down, home, end, mouse and wheel work as usual")
    table.add_row("enter", "Open what is under the cursor; evidence opens the log at its line")
    table.add_row("ctrl+p", "Command palette")
    return table


class Choice(ModalScreen[int | None]):
    """Choose an option; the result is its index, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Close")]

    def __init__(self, title: str, options: list[str], chosen: int = 0) -> None:
        super().__init__()
        self._title, self._options, self._chosen = title, options, chosen

    def compose(self) -> ComposeResult:
        """Create the list."""
        with Vertical():
            yield Static(Text(self._title), markup=False)
            yield OptionList(*(Option(Text(option, no_wrap=True)) for option in self._options), markup=False)

    def on_mount(self) -> None:
        """Highlight the current option."""
        self.query_one(OptionList).highlighted = self._chosen if self._options else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the answer."""
        self.dismiss(event.option_index)

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class Ask(ModalScreen[str | None]):
    """Enter one line of text; the result is the text, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Close")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """Create the question and the input line."""
        with Vertical():
            yield Static(Text(self._question), markup=False)
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the answer."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)
