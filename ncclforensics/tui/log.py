"""The log screen: any line of any file, with search and filters in the background."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.log_lines import PATTERN, LogLines
from ncclforensics.tui.prompts import Ask, Choice
from ncclforensics.tui.screen import Position
from ncclforensics.tui.searched_lines import SearchedLines

if TYPE_CHECKING:
    import polars as pl

    from ncclforensics.tui.content import logs

FOLLOW_INTERVAL = 0.5  # seconds between two checks for new lines


class Log(SearchedLines):
    """The lines of the files, without terminal control characters."""

    NAME = "log"
    BINDINGS: ClassVar[list[BindingType]] = [
        *SearchedLines.BINDINGS,
        Binding(
            "f",
            "filter",
            "Filter",
            tooltip="Show only lines with rank:0-7 host:NAME level:warn family:init, or with a text, or !without",
        ),
        Binding("o", "files", "Files", tooltip="Open another file"),
        Binding("colon", "line", "Line", show=False, tooltip="Go to a line by its number"),
        Binding("F", "follow", "Follow", tooltip="Stay at the end of a growing file"),
        Binding("left_square_bracket", "file(-1)", "Previous file", show=False, tooltip="Open the previous file"),
        Binding("right_square_bracket", "file(1)", "Next file", show=False, tooltip="Open the next file"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._logs: list[logs.Log] = []
        self._log: logs.Log | None = None
        self._requested_line = 0
        self._follows = False
        self._follow_timer: Timer | None = None

    def compose_body(self) -> Iterable[Widget]:
        """Create the title and the lines."""
        yield Static("", id="title", markup=False)
        yield LogLines()

    @property
    def _text_rows(self) -> LogLines:
        return self.query_one(LogLines)

    def draw(self, part: object) -> None:
        """Take over the list of files; an open file stays open."""
        self._logs = cast("list[logs.Log]", part)
        pseudonyms = self.controller.content.pseudonyms if self.controller.content else None
        self._text_rows.redact = pseudonyms.text if pseudonyms else None
        readable = [log for log in self._logs if not log.source.problem]
        if self._log is None and readable and self._requested_position is None:
            decisive = self.decisive_line()
            if decisive is not None:
                self.go_to(decisive)
            else:
                self._open(next((log for log in readable if log.rank_text), readable[0]), 1)

    def go_to(self, position: Position) -> None:
        """Open (source, line); a negative line counts from the end."""
        source, line = cast("tuple[int, int]", position)
        log = next((log for log in self._logs if log.number == source), None)
        if log is not None:
            self._open(log, line)

    def cursor_position(self) -> Position:
        """Return the source and the line under the cursor."""
        return (self._log.number, self._text_rows.number) if self._log else ()

    def clipboard_text(self) -> str:
        """Return the line under the cursor with its file and number."""
        lines = self._text_rows
        if self._log is None or lines.file is None:
            return ""
        return f"{self._log.name}:{lines.number}: {lines.line_text(lines.cursor_row)}"

    def _open(self, log: logs.Log, line: int) -> None:
        from ncclforensics.inputs.logfile import LogFile

        self._requested_line = line
        if self._log is None or log.number != self._log.number:
            self._stop.set()
            self._stop = Event()
            if self._text_rows.file is not None:
                self._text_rows.file.close()
            self._log = log
            self._text_rows.file, self._text_rows.numbers, self._filter = LogFile(log.source), None, ""
            self.show_problem("; ".join(log.problems))
            self._index_file()
        else:
            if self._text_rows.numbers is not None:
                self._text_rows.numbers, self._filter = None, ""
            self._go_to_requested_line()
        self._show_title()

    def _index_file(self) -> None:
        """Index the lines of the file in the background, and show the progress."""
        file, stop = self._text_rows.file, self._stop
        if file is None:
            return
        timer = self.set_interval(0.1, self.unless_closed(self._go_to_requested_line))

        def done(_: None) -> None:
            timer.stop()
            if not stop.is_set():
                self._go_to_requested_line()
                if self._follow_timer is None:
                    self._follow_timer = self.set_interval(FOLLOW_INTERVAL, self.unless_closed(self._follow_growth))

        self.controller.run_in_background(lambda: file.grow(lambda: not stop.is_set()), done)

    def _follow_growth(self) -> None:
        """Read what has been appended to a file that is followed, and go to its end."""
        file, stop = self._text_rows.file, self._stop
        if file is None or not self._follows or not file.is_complete or not self.is_current:
            return

        def done(_: None) -> None:
            if not stop.is_set() and self._text_rows.file is file:
                self._text_rows.lines_added()
                self._text_rows.go(file.lines)
                self._show_title()

        self.controller.run_in_background(lambda: file.grow(lambda: not stop.is_set()), done)

    def _go_to_requested_line(self) -> None:
        """Show new lines, and go to the requested line as soon as it is indexed."""
        file, lines = self._text_rows.file, self._text_rows
        if file is None:
            return
        lines.lines_added()
        number = self._requested_line
        if number < 0 and file.is_complete:
            number = file.lines + 1 + number
        if number > 0 and (number <= file.lines or file.is_complete):
            self._requested_line = 0
            lines.go(max(1, number))
        self._show_title()

    def _show_title(self) -> None:
        lines, file = self._text_rows, self._text_rows.file
        text = Text()
        if self._log is None or file is None:
            text.append("no file")
        else:
            text.append(self._log.name, "bold cyan")
            text.append(f"  {self._log.rank_text}" if self._log.rank_text else "", "dim")
            text.append(f"  line {lines.number:,} of {file.lines:,}")
            text.append(f" (indexing: {file.share:.0%})" if not file.is_complete else "")
            text.append(f"  filter {self._filter}: {lines.rows:,} lines" if self._filter else "", "bold")
            text.append("  following" if self._follows else "", "bold")
            text.append(f"  {self._activity}" if self._activity else "", "italic")
            text.append("  z: full lines" if not lines.shows_full_lines else "", "dim")
            text.append(f"\n{file.note}" if file.note else "", "bold")
        self.set_text("#title", text)

    # Choosing files and lines.

    def action_files(self) -> None:
        """Ask for a file and open it."""
        options = [
            f"{log.name}  {log.rank_text}" + (f"  ! {log.problems[0]}" if log.problems else "") for log in self._logs
        ]
        chosen = self._logs.index(self._log) if self._log in self._logs else 0

        def take(number: int | None) -> None:
            if number is not None:
                self._open(self._logs[number], 1)

        self.app.push_screen(Choice("Open which file?", options, chosen), take)

    def action_file(self, by: int) -> None:
        """Open the previous or the next file."""
        if self._logs and self._log is not None:
            numbers = [log.number for log in self._logs]
            index = (numbers.index(self._log.number) + by) % len(self._logs)
            self._open(self._logs[index], 1)

    def action_line(self) -> None:
        """Ask for a line number and go to it."""

        def take(typed: str | None) -> None:
            if typed and typed.isdecimal() and len(typed) < 19:
                self._requested_line = max(1, int(typed))
                self._go_to_requested_line()
            elif typed:
                self.controller.show_error(f"{typed}: not a line; type a number")

        self.app.push_screen(Ask("Go to which line?"), take)

    def action_follow(self) -> None:
        """Start or stop following the end of the file."""
        self._follows = not self._follows
        if self._follows and self._text_rows.file is not None:
            self._text_rows.go(self._text_rows.file.lines)
        self._show_title()

    # Searching and filtering.

    def _find(self, text: str, by: int) -> None:
        from ncclforensics.inputs.logfile import containing

        file, stop, lines = self._text_rows.file, self._stop, self._text_rows
        if file is None:
            return
        start = lines.number + by
        passing = lines.numbers

        def work() -> int | None:
            is_pattern = text.startswith(PATTERN)
            is_match = containing(text.removeprefix(PATTERN), is_pattern=is_pattern)
            if passing is not None:
                is_match &= _is_one_of(passing)
            return file.find(is_match, start, backwards=by < 0, is_active=lambda: not stop.is_set())

        def done(number: int | None) -> None:
            self._activity = ""
            if number is None:
                self.notify(f"not found in this file: {text}", markup=False)
            else:
                lines.go(number)
                lines.scroll_to_text(text)
            self._show_title()

        self._activity = "searching"
        self.controller.run_in_background(work, done)

    def action_filter(self) -> None:
        """Ask for a filter and apply it."""
        question = "Show which lines: rank:0-7 host:NAME level:warn family:init, a text, !a text that lacks? Empty: all"
        self.app.push_screen(Ask(question, self._filter), self._apply_filter)

    def _apply_filter(self, typed: str | None) -> None:
        content, log, file, stop = self.controller.content, self._log, self._text_rows.file, self._stop
        if typed is None or content is None or log is None or file is None:
            return
        number = self._text_rows.number
        if not typed:
            self._show_filtered("", None, number)
            return

        def work() -> pl.Series:
            from ncclforensics.inputs.logfile import filtered
            from ncclforensics.tui.content import logs

            with content.lock:
                report = content.report
                line_filter = logs.parse_filter(typed, logs.families(report))
                parsed = logs.parsed_lines(report, log.number, line_filter) if line_filter.needs_frames else None
            return filtered(file, parsed, line_filter.of_text, lambda: not stop.is_set())

        def done(numbers: pl.Series) -> None:
            if not stop.is_set():
                self._show_filtered(typed, numbers, number)

        self._activity = "filtering"
        self._show_title()
        self.controller.run_in_background(work, done)

    def _show_filtered(self, typed: str, numbers: pl.Series | None, number: int) -> None:
        self._activity = ""
        if numbers is not None and numbers.is_empty():
            self.notify(f"no line of this file passes the filter: {typed}", markup=False)
        else:
            self._filter, self._text_rows.numbers = typed, numbers
            self._text_rows.lines_added()
            self._text_rows.go(number)
        self._show_title()


def _is_one_of(numbers: pl.Series) -> pl.Expr:
    import polars as pl

    return pl.col("line").is_in(numbers.implode())
