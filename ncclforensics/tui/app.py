"""The program on the screen: it reads in the background, and remembers where one has been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.screen import Screen

from ncclforensics.data.names import bytes_text, printable
from ncclforensics.tui.benchmarks import Benchmarks
from ncclforensics.tui.connections import Connections
from ncclforensics.tui.incident import Incident
from ncclforensics.tui.log import Log
from ncclforensics.tui.operations import Operations
from ncclforensics.tui.palette import Finder
from ncclforensics.tui.prompts import Ask, Choice, Help
from ncclforensics.tui.ranks import Ranks
from ncclforensics.tui.screen import TITLES, Page, Place
from ncclforensics.tui.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ncclforensics.report.build import Report
    from ncclforensics.rules.finding import Finding
    from ncclforensics.tui.content import Facts

SOON = 0.25  # seconds between two looks at how far reading is
MOST_PLACES = 200  # that one can go back to
DARK, LIGHT = "textual-dark", "textual-light"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be read, and how it is shown."""

    paths: tuple[str, ...]
    rank_from: str | None = None
    is_whole_wanted: bool = True  # after the first verdict, read every byte and ask all rules


class _StoppedError(Exception):
    """Nobody waits for the answer any more."""


class Forensics(App[None]):
    """Seven screens on one run."""

    TITLE = "ncclforensics"
    CSS_PATH = Path(__file__).with_name("style.tcss")
    COMMANDS: ClassVar[set[Any]] = {Finder}
    COMMAND_PALETTE_BINDING = "ctrl+p"
    SCREENS: ClassVar[dict[str, Callable[[], Screen[Any]]]] = {
        page.NAME: page for page in (Incident, Ranks, Operations, Waiting, Connections, Benchmarks, Log)
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"go('{page}')", title, show=False)
            for number, (page, title) in enumerate(TITLES.items(), 1)
        ),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("e", "export", "Export"),
        Binding("y", "copy", "Copy"),
        Binding("less_than_sign,backspace,alt+left", "step_back", "Back", key_display="<"),
        Binding("greater_than_sign,alt+right", "step_forward", "Forward", key_display=">"),
        Binding("t", "theme", "Light/dark", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request
        self.facts: Facts | None = None
        self.opened: list[Page] = []  # screens that have been shown
        self._trail = [Place("incident")]
        self._at = 0
        self._read: tuple[int, int] = (0, 0)
        self._stage = "reading both ends of each file"
        self._stop = Event()

    def on_mount(self) -> None:
        """Paint first; then read."""
        self.theme = DARK
        self.push_screen("incident")
        self.set_interval(SOON, self.tell_state)
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        """Whoever still reads need not go on."""
        self._stop.set()

    def _begin(self) -> None:
        Thread(target=self._investigate, daemon=True).start()

    def _investigate(self) -> None:
        """In a thread: the verdict by the ends of the files; then all that the rules find in every byte."""
        from ncclforensics import analyze
        from ncclforensics.tui.content import facts

        try:
            request = self._request
            report = analyze(request.paths, rank_from=request.rank_from, progress=self._progress)
            self._tell(self._learn, facts(report, is_whole=False))
            if request.is_whole_wanted:
                self._stage = "reading every byte"
                report = analyze(request.paths, everything=True, rank_from=request.rank_from, progress=self._progress)
                self._tell(self._learn, facts(report, is_whole=True))
        except _StoppedError:
            return
        except Exception as error:  # whatever it is, the screen stays, and says it
            self._tell(self._broke, error)

    def _progress(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
        self._read = done, total

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        """From a thread: have something done by the program, unless it has ended."""
        if self._stop.is_set() or not self.is_running:
            return
        try:
            self.call_from_thread(function, *arguments)
        except RuntimeError:  # it ended in between
            pass

    def in_background(self, work: Callable[[], Answer], done: Callable[[Answer], None]) -> None:
        """Do something that may take long in a thread of its own; `done` gets the answer. Errors become messages."""

        def run() -> None:
            try:
                answer = work()
            except Exception as error:  # an error of one request is told, and nothing else ends
                self._tell(self.complain, str(error) or type(error).__name__)
            else:
                self._tell(done, answer)

        Thread(target=run, daemon=True).start()

    def _learn(self, facts: Facts) -> None:
        self.facts = facts
        self._stage = "" if facts.is_whole else self._stage
        for page in self.opened:  # also those behind, which would keep what is out of date in memory
            page.renew()

    def _broke(self, error: Exception) -> None:
        from ncclforensics.errors import ForensicsError

        said = str(error) if isinstance(error, ForensicsError | OSError) else f"{type(error).__name__}: {error}"
        self._stage = f"reading ended: {printable(said)}"
        for page in self._pages():
            page.trouble(printable(said))
        self.complain(said)

    async def run_action(self, *arguments: Any, **named: Any) -> bool:
        """A defect behind one key is told, and the screen stays."""
        try:
            return await super().run_action(*arguments, **named)
        except Exception as error:
            self.complain(f"{type(error).__name__}: {error}")
            return True

    def complain(self, text: str) -> None:
        """Show an error as a message."""
        self.notify(printable(text), severity="error", markup=False)

    def _pages(self) -> list[Page]:
        return [screen for screen in self.screen_stack if isinstance(screen, Page)]

    @property
    def page(self) -> Page | None:
        """The screen that is shown, below whatever dialog stands in front of it."""
        pages = self._pages()
        return pages[-1] if pages else None

    def tell_state(self) -> None:
        """How far reading is, and what went wrong with it."""
        page = self.page
        if page is None or not page.is_mounted:
            return
        text = Text(no_wrap=True, overflow="ellipsis")
        done, total = self._read
        if self._stage and total:
            text.append(f"{self._stage}: {done / total:.0%} of {bytes_text(total)}" if done < total else self._stage)
        else:
            text.append(self._stage or "read whole")
        if self.facts is not None:
            readings = self.facts.report.run.readings
            text.append(f" · {len(readings)} file{'s' * (len(readings) != 1)}")
            problems = sum(bool(reading.problems) for reading in readings)
            if problems:
                text.append(f" · {problems} with problems (on screen 1)", "bold")
            if not self.facts.is_whole:
                text.append(" · verdict so far")
        page.tell("#state", text)

    # Where one is, and has been.

    def go(self, place: Place) -> None:
        """Go to a place, and remember this one."""
        self._remember()
        self._trail = [*self._trail[: self._at + 1], place][-MOST_PLACES:]
        self._at = len(self._trail) - 1
        self._show(place)

    def _remember(self) -> None:
        if self.page is not None:
            self._trail[self._at] = Place(self.page.NAME, self.page.here())

    def _show(self, place: Place) -> None:
        page = self.get_screen(place.page)
        assert isinstance(page, Page)
        if self.page is not page:
            self.switch_screen(place.page)
        page.want(place.at)

    def action_go(self, page: str) -> None:
        """Go to a screen, where one was on it."""
        if self.page is None or page != self.page.NAME:
            self.go(Place(page))

    def action_step_back(self) -> None:
        """Go where one came from."""
        self._step(-1)

    def action_step_forward(self) -> None:
        """Go where one came back from."""
        self._step(1)

    def _step(self, by: int) -> None:
        if 0 <= (to := self._at + by) < len(self._trail):
            self._remember()
            self._at = to
            self._show(self._trail[self._at])

    # What every screen can do.

    def action_help(self) -> None:
        """All keys."""
        if self.page is not None:
            self.push_screen(Help(self.page, self))

    def action_search(self) -> None:
        """Search: in the log its lines, on every other screen findings, ranks, communicators and files."""
        self.push_screen(CommandPalette(providers=[Finder], placeholder="a finding, a rank, a communicator, a file"))

    def action_theme(self) -> None:
        """Light or dark."""
        self.theme = DARK if self.theme == LIGHT else LIGHT

    def action_copy(self) -> None:
        """Copy what the cursor stands on to the clipboard of the terminal."""
        text = self.page.copied() if self.page else ""
        if text:
            self.copy_to_clipboard(text)
            self.notify(f"copied: {text[:60]}", markup=False)

    def action_export(self) -> None:
        """Write the finding under the cursor, or the whole incident, to a file."""
        if self.facts is None or self.page is None:
            self.complain("nothing has been read yet")
            return
        finding = self.page.finding() if isinstance(self.page, Incident) else None
        if finding is None:
            self._ask_where("the whole incident", "incident.md", None)
            return

        def take(number: int | None) -> None:
            if number == 0:
                self._ask_where("the whole incident", "incident.md", None)
            elif number == 1:
                self._ask_where("this finding", f"{finding.rule}.md", finding)

        self.push_screen(
            Choice("Export what?", ["the whole incident", f"this finding: {printable(finding.title)}"]), take
        )

    def _ask_where(self, what: str, name: str, finding: Finding | None) -> None:
        question = f"Write {what} to which file? Its suffix is .md, .html or .json"
        self.push_screen(Ask(question, name), lambda path: self._export(path, finding))

    def _export(self, path: str | None, finding: Finding | None) -> None:
        facts = self.facts
        if not path or facts is None:
            return
        report = facts.report if finding is None else replace(facts.report, findings=[finding])

        def write() -> bytes:
            with facts.lock:
                data = exported(report, Path(path), " ".join(self._request.paths))
            if not self.is_web:
                with open(path, "xb") as file:  # never over a file that is there
                    file.write(data)
            return data

        def done(data: bytes) -> None:
            if self.is_web:  # the browser's machine gets it: a visitor writes nothing here
                self.deliver_binary(BytesIO(data), save_filename=Path(path).name)
            else:
                self.notify(f"written: {printable(path)}", markup=False)

        self.in_background(write, done)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the palette offers beside what is found."""
        for page, title in TITLES.items():
            yield SystemCommand(title, f"Go to the screen {title}", lambda page=page: self.action_go(page))
        yield SystemCommand("Help", "All keys", self.action_help)
        yield SystemCommand(
            "Export", "Write the incident, or the finding under the cursor, to a file", self.action_export
        )
        yield SystemCommand("Light or dark", "Change the colours", self.action_theme)
        yield SystemCommand("Quit", "Leave the program", self.exit)


def exported(report: Report, path: Path, paths: str) -> bytes:
    """A report as `report -o` writes it, by the suffix of the file. Raises UsageError."""
    from ncclforensics.errors import UsageError
    from ncclforensics.views import json_report, markdown
    from ncclforensics.views.author_note import Cover

    cover = Cover(markdown.headline(report), "", f"ncclforensics tui {paths}")
    if path.suffix == ".json":
        return json_report.json(report)
    if path.suffix == ".md":
        return markdown.postmortem(report, cover).encode()
    if path.suffix != ".html":
        raise UsageError(f"{path}: the suffix says what to write: .md, .html, .json")
    try:
        from ncclforensics.views import postmortem
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing.name} is not installed; for HTML: pip install 'ncclforensics[report]'") from missing
    return postmortem.html(report, cover)
