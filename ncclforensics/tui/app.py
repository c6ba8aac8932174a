"""The Textual application: reads the run in the background, switches screens, and keeps the navigation history."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.screen import Screen

from ncclforensics.data.names import bytes_text, printable, shortened
from ncclforensics.data.settings import Settings
from ncclforensics.tui.benchmarks import Benchmarks
from ncclforensics.tui.connections import Connections
from ncclforensics.tui.export import Export, possible_exports
from ncclforensics.tui.incident import Incident
from ncclforensics.tui.log import Log
from ncclforensics.tui.merged import Merged
from ncclforensics.tui.operations import Operations
from ncclforensics.tui.palette import Finder
from ncclforensics.tui.prompts import Ask, Choice, Help
from ncclforensics.tui.ranks import Ranks
from ncclforensics.tui.screen import TITLES, Page, Place, Result
from ncclforensics.tui.slow import Slow
from ncclforensics.tui.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ncclforensics.report.build import Report
    from ncclforensics.tui.content import RunContent

STATUS_INTERVAL = 0.25  # seconds between two updates of the reading progress
HISTORY_LENGTH = 200  # places to go back to
LONGEST_NOTICE = 120  # characters of a message on what was copied
NOTICE_OF_CHANGE = 30.0  # seconds for which a verdict that has changed is announced
FAILED = "reading failed"
INTERRUPTED = 130  # exit code after ctrl+c
DARK, LIGHT = "textual-dark", "textual-light"


@dataclass(frozen=True, slots=True)
class Request:
    """What to read."""

    paths: tuple[str, ...]
    rank_from: str | None = None
    settings: Settings | None = None
    is_full_read_wanted: bool = True  # after the first verdict, read every byte and run all rules
    redact: bool = False  # show pseudonyms
    redact_map: Path | None = None  # the file that stores them


class _CancelledError(Exception):
    """The application has ended while a thread was reading."""


class Forensics(App[None]):
    """The application with its nine screens."""

    TITLE = "ncclforensics"
    CSS_PATH = Path(__file__).with_name("style.tcss")
    COMMANDS: ClassVar[set[Any]] = {Finder}
    COMMAND_PALETTE_BINDING = "ctrl+p"
    SCREENS: ClassVar[dict[str, Callable[[], Screen[Any]]]] = {
        page.NAME: page for page in (Incident, Ranks, Operations, Waiting, Connections, Benchmarks, Log, Merged, Slow)
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"go('{page}')", title, show=False)
            for number, (page, title) in enumerate(TITLES.items(), 1)
        ),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("e", "export", "Export"),
        Binding("y", "copy", "Copy", tooltip="Copy the command, line or rank under the cursor"),
        Binding("Y", "copy_screen", "Copy screen", show=False, tooltip="Copy this screen as text"),
        Binding("P", "picture", "Picture", show=False, tooltip="Save a picture of this screen as an .svg file"),
        Binding("less_than_sign,backspace,alt+left,escape", "step_back", "Back", key_display="<"),
        Binding("greater_than_sign,alt+right", "step_forward", "Forward", key_display=">"),
        Binding("R", "read_again", "Read again", show=False, tooltip="Read the files again, which may have grown"),
        Binding("t", "theme", "Light/dark", show=False),
        Binding("q", "quit", "Quit"),
        Binding(
            "ctrl+c",
            "interrupt",
            "Copy or quit",
            show=False,
            priority=True,
            tooltip="Copy the text selected with the mouse; without any, quit",
        ),
    ]

    def __init__(self, request: Request) -> None:
        # Without colours Textual would turn those of its themes into greys, a dark red into black.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self._request = request
        self.content: RunContent | None = None
        self.opened_pages: list[Page] = []  # screens that have been shown
        self._history = [Place("incident")]
        self._history_index = 0
        self._progress: tuple[int, int] = (0, 0)
        self._stage = "reading both ends of each file"
        self._stop = Event()

    def on_mount(self) -> None:
        """Show the first screen, then begin to read."""
        self.theme = DARK
        self.push_screen("incident")
        self.set_interval(STATUS_INTERVAL, self.update_status)
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        """Cancel reading."""
        self._stop.set()

    def _begin(self) -> None:
        Thread(target=self._read_run, daemon=True).start()

    def _read_run(self) -> None:
        """Analyze both ends of each file, unless a verdict is shown, then every byte. Runs in a thread."""
        try:
            if self.content is None:
                self._call_in_app(self._set_content, self._analyze(is_whole=False))
            if self._request.is_full_read_wanted:
                self._stage = "reading every byte"
                self._call_in_app(self._set_content, self._analyze(is_whole=True))
        except _CancelledError:
            return
        except Exception as error:  # any failure is shown; the screens stay
            self._call_in_app(self._show_failure, error)

    def _analyze(self, *, is_whole: bool) -> RunContent:
        from ncclforensics import analyze

        request = self._request
        report = analyze(
            request.paths,
            everything=is_whole,
            rank_from=request.rank_from,
            settings=request.settings,
            progress=self._update_progress,
        )
        return self._build(report, is_whole=is_whole)

    def _build(self, report: Report, *, is_whole: bool) -> RunContent:
        from ncclforensics.report.redacted_run import redact_report
        from ncclforensics.tui.content import build_content

        if not self._request.redact:
            return build_content(report, is_whole=is_whole)
        redacted, pseudonyms = redact_report(report, self._request.redact_map)
        return build_content(redacted, is_whole=is_whole, pseudonyms=pseudonyms)

    def _update_progress(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _CancelledError
        self._progress = done, total

    def _call_in_app(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the thread of the application, unless it has ended."""
        if self._stop.is_set() or not self.is_running:
            return
        try:
            self.call_from_thread(function, *arguments)
        except RuntimeError:  # the application ended in between
            pass

    def run_in_background(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Call `work` in a thread, and then `done` with its result. Exceptions become notifications."""

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # one failed request must not end the application
                self._call_in_app(self.show_error, str(error) or type(error).__name__)
            else:
                self._call_in_app(done, result)

        Thread(target=run, daemon=True).start()

    def _set_content(self, content: RunContent) -> None:
        from ncclforensics.tui.content.incident import change_of_verdict

        if self.content is not None and (change := change_of_verdict(self.content.report, content.report)):
            self.notify(change, title="all bytes are read", timeout=NOTICE_OF_CHANGE, markup=False)
        self.content = content
        self._stage = "" if content.is_whole else self._stage
        for page in self.opened_pages:  # hidden screens, too: they would keep outdated content in memory
            page.refresh_content()

    def _show_failure(self, error: Exception) -> None:
        from ncclforensics.errors import ForensicsError

        message = str(error) if isinstance(error, ForensicsError | OSError) else f"{type(error).__name__}: {error}"
        self._stage = f"{FAILED}: {printable(message)}"
        for page in self._pages():
            page.show_problem(printable(message))
        self.show_error(message)

    async def run_action(self, *arguments: Any, **named: Any) -> bool:
        """Show an exception of an action as a notification instead of ending the application."""
        try:
            return await super().run_action(*arguments, **named)
        except Exception as error:
            self.show_error(f"{type(error).__name__}: {error}")
            return True

    def show_error(self, text: str) -> None:
        """Show an error as a notification."""
        self.notify(printable(text), severity="error", markup=False)

    def _pages(self) -> list[Page]:
        return [screen for screen in self.screen_stack if isinstance(screen, Page)]

    @property
    def page(self) -> Page | None:
        """The current screen, below any dialog."""
        pages = self._pages()
        return pages[-1] if pages else None

    def update_status(self) -> None:
        """Show in the status line how far reading is, and how many files have problems."""
        page = self.page
        if page is None or not page.has_widgets:
            return
        text = Text(no_wrap=True, overflow="ellipsis")
        done, total = self._progress
        if self._stage and total:
            text.append(f"{self._stage}: {done / total:.0%} of {bytes_text(total)}" if done < total else self._stage)
        else:
            text.append(self._stage or "all read")
        if self.content is not None:
            readings = self.content.report.run.inputs
            text.append(f" · {len(readings)} file{'s' * (len(readings) != 1)}")
            problems = sum(bool(reading.problems) for reading in readings)
            if problems:
                text.append(f" · {problems} with problems (on screen 1)", "bold")
            if not self.content.is_whole:
                text.append(" · preliminary verdict")
        page.set_text("#state", text)

    # Navigation.

    def go(self, place: Place) -> None:
        """Go to a place, and add it to the history."""
        self._save_position()
        self._history = [*self._history[: self._history_index + 1], place][-HISTORY_LENGTH:]
        self._history_index = len(self._history) - 1
        self._show(place)

    def _save_position(self) -> None:
        if self.page is not None:
            self._history[self._history_index] = Place(self.page.NAME, self.page.cursor_position())

    def _show(self, place: Place) -> None:
        page = self.get_screen(place.page)
        assert isinstance(page, Page)
        if self.page is not page:
            self.switch_screen(place.page)
        page.request_position(place.position)

    def action_go(self, page: str) -> None:
        """Go to a screen; its cursor stays where it was."""
        if self.page is None or page != self.page.NAME:
            self.go(Place(page))

    def action_step_back(self) -> None:
        """Go back in the history."""
        self._step(-1)

    def action_step_forward(self) -> None:
        """Go forward in the history."""
        self._step(1)

    def _step(self, by: int) -> None:
        if 0 <= (to := self._history_index + by) < len(self._history):
            self._save_position()
            self._history_index = to
            self._show(self._history[self._history_index])

    # Actions of all screens.

    def action_help(self) -> None:
        """Show all keys."""
        if self.page is not None:
            self.push_screen(Help(self.page, self))

    def action_search(self) -> None:
        """Search findings, ranks, hosts, communicators, rules and files; the log screen searches its lines instead."""
        self.push_screen(
            CommandPalette(providers=[Finder], placeholder="finding, rank, host, communicator, rule or file")
        )

    def action_read_again(self) -> None:
        """Read the files again; what is shown stays until that is done, and a verdict that changes is announced."""
        if self._stage and not self._stage.startswith(FAILED):
            self.notify("the files are being read")
            return
        self._stage = "reading again"
        self._begin()

    def action_theme(self) -> None:
        """Switch between the light and the dark theme."""
        self.theme = DARK if self.theme == LIGHT else LIGHT

    def action_copy(self) -> None:
        """Copy what is under the cursor to the clipboard of the terminal."""
        text = self.page.clipboard_text() if self.page else ""
        if text:
            self._copy(text, text)

    def action_copy_screen(self) -> None:
        """Copy what the screen shows to the clipboard of the terminal, as text."""
        if self.page is not None:
            rows = self.page.shown_lines()
            self._copy("\n".join(rows), f"this screen, {len(rows)} lines")

    def action_picture(self) -> None:
        """Save what the screen shows as an SVG file in the working directory; in a browser nothing is written."""
        if self.is_web:
            self.show_error("pictures are saved in a terminal only; use the browser's own")
            return
        self.notify(f"wrote {Path(self.save_screenshot()).name}", markup=False)

    def _copy(self, text: str, subject: str) -> None:
        self.copy_to_clipboard(text)
        shown = shortened(subject, LONGEST_NOTICE)
        self.notify(f"copied: {shown}", markup=False)

    def action_interrupt(self) -> None:
        """Copy the text that is selected with the mouse; without any, quit as interrupted programs do."""
        if selected := self.screen.get_selected_text():
            self._copy(selected, selected)
        else:
            self.exit(return_code=INTERRUPTED)

    def action_export(self) -> None:
        """Write the finding under the cursor, or the whole incident, to a file, with or without pseudonyms."""
        if self.content is None or self.page is None:
            self.show_error("nothing to export: reading has not finished")
            return
        finding = self.page.finding() if isinstance(self.page, Incident) else None
        exports = possible_exports(finding, is_redacted=self._request.redact)

        def ask_for_file(number: int | None) -> None:
            if number is not None:
                export = exports[number]
                question = f"Write {export.subject} to which file (.md, .html or .json)?"
                self.push_screen(Ask(question, export.name), lambda path: self._export(path, export))

        if len(exports) == 1:
            ask_for_file(0)
        else:
            self.push_screen(Choice("Export what?", [export.subject for export in exports]), ask_for_file)

    def _export(self, path: str | None, export: Export) -> None:
        content = self.content
        if not path or content is None:
            return

        def write() -> bytes:
            with content.lock:
                data = export.render(content.report, Path(path))
            if not self.is_web:
                with open(path, "xb") as file:  # never overwrite a file
                    file.write(data)
            return data

        def done(data: bytes) -> None:
            if self.is_web:  # a visitor may download, but not write on this machine
                self.deliver_binary(BytesIO(data), save_filename=Path(path).name)
            else:
                self.notify(f"written: {printable(path)}", markup=False)

        self.run_in_background(write, done)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """List the commands of the palette."""
        for page, title in TITLES.items():
            yield SystemCommand(title, f"Go to the screen {title}", lambda page=page: self.action_go(page))
        yield SystemCommand("Help", "Show all keys", self.action_help)
        yield SystemCommand(
            "Export", "Write the incident, or the finding under the cursor, to a file", self.action_export
        )
        yield SystemCommand("Light or dark", "Switch the theme", self.action_theme)
        yield SystemCommand("Quit", "Leave the program", self.exit)
