"""What all screens share: the bar of screens on top, the state of reading below, and where one stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.data.names import printable

if TYPE_CHECKING:
    from ncclforensics.tui.app import Forensics
    from ncclforensics.tui.content import Facts

TITLES = {
    "incident": "Incident",
    "ranks": "Ranks",
    "operations": "Operations",
    "waiting": "Waiting",
    "connections": "Connections",
    "benchmarks": "Benchmarks",
    "log": "Log",
}
At = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A screen, and what its cursor stands on; each screen says what that is."""

    page: str
    at: At = ()


class Bar(Static):
    """The screens by their keys; the one that is shown stands in brackets."""

    def __init__(self, name: str) -> None:
        self._ends: list[tuple[int, str]] = []
        text = Text(no_wrap=True)
        for number, (page, title) in enumerate(TITLES.items(), 1):
            text.append(" " if number > 1 else "")
            text.append(f"[{number} {title}]" if page == name else f"{number} {title}", "bold" * (page == name))
            self._ends.append((len(text), page))
        super().__init__(text, id="bar")

    def on_click(self, event: Click) -> None:
        """Go to the screen under the mouse."""
        page = next((page for end, page in self._ends if event.x < end), None)
        if page is not None:
            cast("Forensics", self.app).go(Place(page))


class Keys(Static):
    """The keys of a screen, each of which the mouse may press; Textual's own line of keys is made anew ten times."""

    def __init__(self, bindings: Iterable[BindingType]) -> None:
        self._ends: list[tuple[int, str]] = []
        text = Text(no_wrap=True)
        for binding in bindings:
            if isinstance(binding, Binding) and binding.show:
                key = binding.key.split(",")[0]
                if key not in (known for _, known in self._ends):
                    text.append(f" {binding.key_display or key}", "bold")
                    text.append(f" {binding.description} ")
                    self._ends.append((len(text), key))
        super().__init__(text, id="keys")

    def on_click(self, event: Click) -> None:
        """Press the key under the mouse."""
        key = next((key for end, key in self._ends if event.x < end), None)
        if key is not None:
            self.app.simulate_key(key)


class Page(Screen[None]):
    """One screen: `body` says what it is made of, `draw` fills it, `show` moves its cursor to a place."""

    NAME: ClassVar[str]
    AUTO_FOCUS = "#focus"

    def __init__(self) -> None:
        super().__init__()
        self._drawn: object = None
        self._wanted: At | None = None
        self._told: dict[str, str] = {}

    @property
    def forensics(self) -> Forensics:
        """The program."""
        return cast("Forensics", self.app)

    def compose(self) -> ComposeResult:
        """Bar, body, state, keys."""
        yield Bar(self.NAME)
        yield from self.body()
        yield Static("", id="trouble", markup=False)
        yield Static("", id="state", markup=False)
        everywhere = type(self.forensics).BINDINGS
        helping = [each for each in everywhere if isinstance(each, Binding) and each.action == "help"]
        yield Keys([*helping, *type(self).BINDINGS, *everywhere])  # those that do not fit are told by the first

    def on_mount(self) -> None:
        """Fill it with what is known by now."""
        self.forensics.opened.append(self)
        self.renew()

    def on_screen_resume(self) -> None:
        """More may have become known while another screen was shown."""
        self.renew()

    def renew(self) -> None:
        """Draw what is known, if it has not been drawn yet, and go where one wants to be."""
        if not self.is_mounted:
            return
        self.forensics.tell_state()
        facts = self.forensics.facts
        if facts is not None and facts is not self._drawn:
            self._drawn = facts
            self._draw(facts)
        if self._wanted is not None and self._drawn is not None:
            wanted, self._wanted = self._wanted, None
            self.show(wanted)

    def _draw(self, facts: Facts) -> None:
        from ncclforensics.tui.content import Failed

        part = facts.parts[self.NAME]
        self.trouble("")
        try:
            if isinstance(part, Failed):
                self.trouble(f"this screen could not be made: {part.why}")
            else:
                self.draw(part)
        except Exception as error:  # a defect of one screen is told, and the others go on
            self.trouble(printable(f"this screen could not be drawn: {type(error).__name__}: {error}"))

    def want(self, at: At) -> None:
        """Go to a place as soon as that can be done."""
        self._wanted = at or None
        self.renew()

    def trouble(self, text: str) -> None:
        """Say what is wrong with this screen; nothing if the text is empty."""
        told = self.query_one("#trouble", Static)
        told.update(Text(text))
        told.display = bool(text)

    def tell(self, where: str, text: Text) -> None:
        """Put a text into one of the frames around the body; only another height is worth a new layout."""
        before = self._told.get(where, "")
        if text.markup != before:
            self._told[where] = text.markup
            is_higher = where == "#title" and text.markup.count("\n") != before.count("\n")
            text.no_wrap, text.overflow = where != "#detail", "ellipsis"
            self.query_one(where, Static).update(text, layout=is_higher or not before)

    def body(self) -> Iterable[Widget]:
        """The widgets between the bar and the state."""
        raise NotImplementedError

    def draw(self, part: object) -> None:
        """Fill the widgets."""
        raise NotImplementedError

    def show(self, at: At) -> None:
        """Move the cursor; what is not there is left alone."""

    def here(self) -> At:
        """Where the cursor stands, as `show` takes it."""
        return ()

    def copied(self) -> str:
        """What `y` copies: what the cursor stands on."""
        return ""
