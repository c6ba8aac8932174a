"""What all screens share: the bar of screens, the status line, the key bar, and the position of the cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.events import Click
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.data.names import printable

if TYPE_CHECKING:
    from ncclforensics.tui.content import RunContent
    from ncclforensics.tui.content.incident import Incident
    from ncclforensics.tui.content.ranks import RankRow

TITLES = {
    "incident": "Incident",
    "ranks": "Ranks",
    "operations": "Calls",
    "waiting": "Waits",
    "connections": "Connections",
    "benchmarks": "Bench",
    "log": "Log",
    "merged": "Merged",
    "slow": "Slow",
}
Position = tuple[object, ...]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Place:
    """A screen, and the position of the cursor on it; each screen defines its own kind of position."""

    page: str
    position: Position = ()


class Controller(Protocol):
    """What screens need of the application: the content of the run, navigation, and background work."""

    BINDINGS: ClassVar[list[BindingType]]
    content: RunContent | None
    opened_pages: list[Page]

    def go(self, place: Place) -> None:
        """Go to a place, and add it to the history."""

    def update_status(self) -> None:
        """Show the reading progress in the status line of the current screen."""

    def run_in_background(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Call `work` in a thread, and then `done` with its result."""

    def show_error(self, text: str) -> None:
        """Show an error as a notification."""


class ScreenBar(Static):
    """The titles of the screens with their keys; the current screen is in brackets."""

    def __init__(self, current: str) -> None:
        self._current = current
        self._ends: list[tuple[int, str]] = []
        super().__init__(self._titles(set()), id="bar")

    def leave_out(self, empty: Set[str]) -> None:
        """Show only the current screen and those that are not empty."""
        self.update(self._titles(empty))

    def _titles(self, empty: Set[str]) -> Text:
        text = Text(no_wrap=True)
        self._ends.clear()
        for number, (page, title) in enumerate(TITLES.items(), 1):
            is_current = page == self._current
            if is_current or page not in empty:
                text.append(" " if self._ends else "")
                text.append(f"[{number} {title}]" if is_current else f"{number} {title}", "bold" * is_current)
                self._ends.append((len(text), page))
        return text

    def on_click(self, event: Click) -> None:
        """Go to the screen under the mouse."""
        page = next((page for end, page in self._ends if event.x < end), None)
        if page is not None:
            cast("Controller", self.app).go(Place(page))


class KeyBar(Static):
    """The keys of a screen; a click presses the key. Textual's own footer is rebuilt ten times as often."""

    def __init__(self, bindings: Iterable[BindingType]) -> None:
        self._ends: list[tuple[int, str]] = []
        text = Text(no_wrap=True)
        for binding in bindings:
            if isinstance(binding, Binding) and binding.show:
                key = binding.key.split(",")[0]
                if key not in (shown for _, shown in self._ends):
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
    """One screen: `compose_body` creates its widgets, `draw` fills them, `go_to` moves the cursor."""

    NAME: ClassVar[str]
    EMPTY: ClassVar[str] = ""  # what a screen without content says
    BODY: ClassVar[tuple[type[Widget], ...]] = ()
    AUTO_FOCUS = "#focus"

    def __init__(self) -> None:
        super().__init__()
        self._drawn: object = None
        self._requested_position: Position | None = None
        self._shown_markup: dict[str, str] = {}

    @property
    def controller(self) -> Controller:
        """The application."""
        return cast("Controller", self.app)

    def compose(self) -> ComposeResult:
        """Create the screen bar, the body, the problem line, the status line and the key bar."""
        yield ScreenBar(self.NAME)
        yield from self.compose_body()
        yield Static("", id="problem", markup=False)
        yield Static("", id="state", markup=False)
        global_bindings = type(self.controller).BINDINGS
        help_keys = [key for key in global_bindings if isinstance(key, Binding) and key.action == "help"]
        # Help comes first: it lists the keys for which the bar has no room.
        yield KeyBar([*help_keys, *type(self).BINDINGS, *global_bindings])

    def on_mount(self) -> None:
        """Draw the content that is available now."""
        self.controller.opened_pages.append(self)
        self.refresh_content()

    def on_screen_resume(self) -> None:
        """Draw the content that arrived while another screen was shown."""
        self.refresh_content()

    @property
    def has_widgets(self) -> bool:
        """Whether the widgets of this screen exist: not yet while it opens, and no more while the application ends."""
        return self.is_mounted and bool(self.query("#state"))

    def refresh_content(self) -> None:
        """Draw the content if it has changed, and go to the requested position."""
        if not self.has_widgets:
            return
        self.controller.update_status()
        content = self.controller.content
        if content is not None and content is not self._drawn:
            self._drawn = content
            self._draw(content)
        if self._requested_position is not None and self._drawn is not None:
            position, self._requested_position = self._requested_position, None
            self.go_to(position)

    def _draw(self, content: RunContent) -> None:
        from ncclforensics.tui.content import FailedPart

        part = content.parts[self.NAME]
        is_empty = self.NAME in content.empty
        self.set_class(is_empty, "empty")
        self.query_one(ScreenBar).leave_out(content.empty if content.is_whole else frozenset())
        self.show_problem(self.EMPTY if is_empty else "")
        try:
            if isinstance(part, FailedPart):
                self.show_problem(f"the content of this screen could not be built: {part.error}")
            elif not is_empty:
                self.draw(part)
        except Exception as error:  # a defect of one screen must not end the others
            self.show_problem(printable(f"this screen could not be drawn: {type(error).__name__}: {error}"))

    def decisive_line(self) -> tuple[int, int] | None:
        """Return the source and the line of the last call of a culprit, or of the first line that shows a finding."""
        from ncclforensics.tui.content import FailedPart
        from ncclforensics.tui.content.ranks import first_culprit_line

        parts = self.controller.content.parts if self.controller.content else {}
        rank_rows, incident = parts.get("ranks"), parts.get("incident")
        if rank_rows is None or isinstance(rank_rows, FailedPart):
            return None
        culprit = first_culprit_line(cast("list[RankRow]", rank_rows))
        if culprit is not None or isinstance(incident, FailedPart):
            return culprit
        lines = (line for node in cast("Incident", incident).nodes for line in node.evidence)
        return next(((line.source, line.line) for line in lines), None)

    def request_position(self, position: Position) -> None:
        """Go to a position as soon as the content is drawn."""
        self._requested_position = position or None
        self.refresh_content()

    def show_problem(self, text: str) -> None:
        """Show a problem below the body; hide the line if the text is empty."""
        line = self.query_one("#problem", Static)
        line.update(Text(text))
        line.display = bool(text)

    def set_text(self, selector: str, text: Text) -> None:
        """Set the text of a widget around the body; compute a new layout only if its height changes."""
        before = self._shown_markup.get(selector, "")
        if text.markup != before:
            self._shown_markup[selector] = text.markup
            has_new_height = selector == "#title" and text.markup.count("\n") != before.count("\n")
            text.no_wrap, text.overflow = selector != "#detail", "ellipsis"
            self.query_one(selector, Static).update(text, layout=has_new_height or not before)

    def unless_closed(self, act: Callable[[], None]) -> Callable[[], None]:
        """Return what a timer calls: a page that closes loses its widgets, one after the other, before its timers."""

        def call() -> None:
            with suppress(NoMatches):
                act()

        return call

    def compose_body(self) -> Iterable[Widget]:
        """Create the widgets between the screen bar and the status line: a title, those of BODY, and the details."""
        yield Static("", id="title", markup=False)
        for widget in self.BODY:
            yield widget()
        yield Static("", id="detail", markup=False)

    def draw(self, part: object) -> None:
        """Fill the widgets with the part of the content that belongs to this screen."""
        raise NotImplementedError

    def go_to(self, position: Position) -> None:
        """Move the cursor to a position; ignore positions that do not exist."""

    def cursor_position(self) -> Position:
        """Return the position of the cursor, in the form that `go_to` takes."""
        return ()

    def shown_lines(self) -> list[str]:
        """Return the lines of the screen as text, without the bar of keys."""
        strips = self._compositor.render_strips()
        rows = ["".join(part.text for part in strip).rstrip() for strip in strips]
        return rows[:-1]

    def clipboard_text(self) -> str:
        """Return the text that `y` copies: what is under the cursor."""
        return ""
