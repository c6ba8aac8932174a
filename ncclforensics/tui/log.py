"""The raw log: any line of any file at once, searched and filtered in the background."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.prompts import Ask, Choice
from ncclforensics.tui.screen import At, Page
from ncclforensics.tui.virtual_rows import CURSOR, Sheet

if TYPE_CHECKING:
    import polars as pl

    from ncclforensics.tui.content import logs
    from ncclforensics.tui.logfile import LogFile

AGAIN = 0.5  # seconds between two looks at a file that may grow
PATTERN = "re:"  # in front of a search for a pattern
MARK = "NCCL WARN"  # what the jumps look for, as NCCL prints it


class Lines(Sheet):
    """The lines of a file, or those that a filter leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.file: LogFile | None = None
        self.numbers: pl.Series | None = None  # of the lines that a filter leaves
        self.found = ""
        self._widest = 1

    @property
    def rows(self) -> int:
        """Lines known so far."""
        if self.numbers is not None:
            return self.numbers.len()
        return self.file.lines if self.file else 0

    @property
    def fixed(self) -> int:
        """The numbers."""
        return self._digits + 2

    @property
    def number(self) -> int:
        """The number of the line under the cursor."""
        return self._number(self.at_row) if self.rows else 0

    def _number(self, row: int) -> int:
        return row + 1 if self.numbers is None else int(self.numbers[row])

    def on_unmount(self) -> None:
        """Close what is open."""
        if self.file is not None:
            self.file.close()

    def grown(self) -> None:
        """More lines are known."""
        self.renew(self._widest)

    def text(self, row: int) -> Text:
        """The number and the line; nothing in it is taken for a command or for markup."""
        number = self._number(row)
        line = self.file.text(number) if self.file else ""
        is_cursor = row == self.at_row
        text = Text(no_wrap=True, end="")
        text.append(f"{'>' if is_cursor else ' '}{number:>{self._digits}} ", CURSOR if is_cursor else "dim")
        text.append(line, "bold yellow" if MARK in line else "")
        if self.found and not self.found.startswith(PATTERN):
            text.highlight_words([self.found], "reverse")
        if len(text) > self._widest:
            self._widest = len(text)
            self.call_later(self.grown)
        return text

    @property
    def _digits(self) -> int:
        return len(str(self.file.lines if self.file else 1))

    def go(self, number: int) -> None:
        """Put the cursor on a line; of a filtered log on the nearest."""
        row = number - 1
        if self.numbers is not None:
            row = int(self.numbers.search_sorted(number))
        self.put(row, middle=True)


class Log(Page):
    """the files as they are, cleaned of what a terminal would obey."""

    NAME = "log"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "slash", "search", "Search", key_display="/", tooltip=f"Search a text; {PATTERN}PATTERN searches a pattern"
        ),
        Binding("n", "next(1)", "Next", tooltip="The next line found"),
        Binding("N", "next(-1)", "Previous", show=False, tooltip="The line found before"),
        Binding("w", "warning(1)", "WARN", tooltip="To the next line with NCCL WARN"),
        Binding("W", "warning(-1)", "WARN back", show=False, tooltip="To the one before"),
        Binding(
            "f", "filter", "Filter", tooltip="Only lines with rank:0-7 host:NAME level:warn family:init, or a text"
        ),
        Binding("o", "files", "Files", tooltip="Open another file"),
        Binding("colon,g", "line", "Line", show=False, tooltip="To a line by its number"),
        Binding("F", "follow", "Follow", tooltip="Stay at the end of a file that grows"),
        Binding("left_square_bracket", "file(-1)", "File before", show=False, tooltip="The file before"),
        Binding("right_square_bracket", "file(1)", "Next file", show=False, tooltip="The next file"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._logs: list[logs.Log] = []
        self._log: logs.Log | None = None
        self._typed = ""  # the filter
        self._wanted_line = 0
        self._follows = False
        self._is_busy = ""
        self._stop = Event()  # of what runs for the file that is shown
        self._growing: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """Which file, and its lines."""
        yield Static("", id="title", markup=False)
        yield Lines()

    @property
    def _lines(self) -> Lines:
        return self.query_one(Lines)

    def draw(self, part: object) -> None:
        """The list of files; the one that is open stays open."""
        self._logs = cast("list[logs.Log]", part)
        readable = [log for log in self._logs if not log.source.problem]
        if self._log is None and readable and self._wanted is None:
            self._open(next((log for log in readable if log.speakers), readable[0]), 1)

    def show(self, at: At) -> None:
        """Open a file at a line; a negative one is counted from the end."""
        source, line = cast("tuple[int, int]", at)
        log = next((log for log in self._logs if log.number == source), None)
        if log is not None:
            self._open(log, line)

    def here(self) -> At:
        """File and line."""
        return (self._log.number, self._lines.number) if self._log else ()

    def copied(self) -> str:
        """The line, and where it stands."""
        lines = self._lines
        if self._log is None or lines.file is None:
            return ""
        return f"{self._log.name}:{lines.number}: {lines.file.text(lines.number)}"

    def on_unmount(self) -> None:
        """Nothing that runs in the background is wanted any more."""
        self._stop.set()

    def on_sheet_moved(self) -> None:
        """Tell where one is."""
        self._tell()

    def _open(self, log: logs.Log, line: int) -> None:
        from ncclforensics.tui.logfile import LogFile

        self._wanted_line = line
        if self._log is None or log.number != self._log.number:
            self._stop.set()
            self._stop = Event()
            if self._lines.file is not None:
                self._lines.file.close()
            self._log = log
            self._lines.file, self._lines.numbers, self._typed = LogFile(log.source), None, ""
            self.trouble("; ".join(log.problems))
            self._grow()
        else:
            if self._lines.numbers is not None:
                self._lines.numbers, self._typed = None, ""
            self._arrive()
        self._tell()

    def _grow(self) -> None:
        """Look at the file in the background, showing what is known by then."""
        file, stop = self._lines.file, self._stop
        if file is None:
            return
        timer = self.set_interval(0.1, self._arrive)

        def done(_: None) -> None:
            timer.stop()
            if not stop.is_set():
                self._arrive()
                if self._growing is None:
                    self._growing = self.set_interval(AGAIN, self._look_again)

        self.forensics.in_background(lambda: file.grow(lambda: not stop.is_set()), done)

    def _look_again(self) -> None:
        """A file that is followed may have grown, or shrunk, or gone."""
        file, stop = self._lines.file, self._stop
        if file is None or not self._follows or not file.is_complete or not self.is_current:
            return

        def done(_: None) -> None:
            if not stop.is_set() and self._lines.file is file:
                self._lines.grown()
                self._lines.go(file.lines)
                self._tell()

        self.forensics.in_background(lambda: file.grow(lambda: not stop.is_set()), done)

    def _arrive(self) -> None:
        """More lines are known: go to the one that is wanted as soon as it is there."""
        file, lines = self._lines.file, self._lines
        if file is None:
            return
        lines.grown()
        wanted = self._wanted_line
        if wanted < 0 and file.is_complete:
            wanted = file.lines + 1 + wanted
        if wanted > 0 and (wanted <= file.lines or file.is_complete):
            self._wanted_line = 0
            lines.go(max(1, wanted))
        self._tell()

    def _tell(self) -> None:
        lines, file = self._lines, self._lines.file
        text = Text()
        if self._log is None or file is None:
            text.append("no file")
        else:
            text.append(self._log.name, "bold cyan")
            text.append(f"  {self._log.speakers}" if self._log.speakers else "", "dim")
            text.append(f"  line {lines.number:,} of {file.lines:,}")
            text.append(f" (counting: {file.share:.0%})" if not file.is_complete else "")
            text.append(f"  only {self._typed}: {lines.rows:,} lines" if self._typed else "", "bold")
            text.append("  following" if self._follows else "", "bold")
            text.append(f"  {self._is_busy}" if self._is_busy else "", "italic")
            text.append(f"\n{file.note}" if file.note else "", "bold")
        self.tell("#title", text)

    # Other files, other lines.

    def action_files(self) -> None:
        """Choose a file."""
        options = [
            f"{log.name}  {log.speakers}" + (f"  ! {log.problems[0]}" if log.problems else "") for log in self._logs
        ]
        chosen = self._logs.index(self._log) if self._log in self._logs else 0

        def take(number: int | None) -> None:
            if number is not None:
                self._open(self._logs[number], 1)

        self.app.push_screen(Choice("Open which file?", options, chosen), take)

    def action_file(self, by: int) -> None:
        """The file before or behind."""
        if self._logs and self._log is not None:
            numbers = [log.number for log in self._logs]
            place = (numbers.index(self._log.number) + by) % len(self._logs)
            self._open(self._logs[place], 1)

    def action_line(self) -> None:
        """Ask for a number."""

        def take(typed: str | None) -> None:
            if typed and typed.isdecimal() and len(typed) < 19:
                self._wanted_line = max(1, int(typed))
                self._arrive()
            elif typed:
                self.forensics.complain(f"{typed}: not the number of a line")

        self.app.push_screen(Ask("To which line?"), take)

    def action_follow(self) -> None:
        """Stay at the end, or no longer."""
        self._follows = not self._follows
        if self._follows and self._lines.file is not None:
            self._lines.go(self._lines.file.lines)
        self._tell()

    # Searching and filtering.

    def action_search(self) -> None:
        """Ask for a text."""

        def take(typed: str | None) -> None:
            if typed:
                self._lines.found = typed
                self._seek(typed, 1)

        self.app.push_screen(Ask(f"Search a text, or {PATTERN}PATTERN", self._lines.found), take)

    def action_next(self, by: int) -> None:
        """The next line found."""
        if self._lines.found:
            self._seek(self._lines.found, by)
        else:
            self.action_search()

    def action_warning(self, by: int) -> None:
        """The next warning of NCCL."""
        self._seek(MARK, by)

    def _seek(self, text: str, by: int) -> None:
        from ncclforensics.tui.logfile import containing

        file, stop, lines = self._lines.file, self._stop, self._lines
        if file is None:
            return
        start = lines.number + by
        allowed = lines.numbers

        def work() -> int | None:
            is_pattern = text.startswith(PATTERN)
            is_match = containing(text.removeprefix(PATTERN), is_pattern=is_pattern)
            if allowed is not None:
                is_match &= _among(allowed)
            return file.find(is_match, start, backwards=by < 0, is_wanted=lambda: not stop.is_set())

        def done(number: int | None) -> None:
            self._is_busy = ""
            if number is None:
                self.notify(f"not in this file: {text}", markup=False)
            else:
                lines.go(number)
            self._tell()

        self._is_busy = "searching"
        self.forensics.in_background(work, done)

    def action_filter(self) -> None:
        """Ask which lines are to be shown."""
        question = "Only which lines? rank:0-7 host:NAME level:warn family:init, and a text; empty shows all"
        self.app.push_screen(Ask(question, self._typed), self._narrow)

    def _narrow(self, typed: str | None) -> None:
        facts, log, file, stop = self.forensics.facts, self._log, self._lines.file, self._stop
        if typed is None or facts is None or log is None or file is None:
            return
        number = self._lines.number
        if not typed:
            self._filtered("", None, number)
            return

        def work() -> pl.Series:
            from ncclforensics.tui.content import logs
            from ncclforensics.tui.logfile import filtered

            with facts.lock:
                report = facts.report
                wanted = logs.wanted(typed, logs.families(report))
                parsed = logs.parsed_lines(report, log.number, wanted) if wanted.asks_frames else None
            marks = [f"NCCL {wanted.level} "] if wanted.level else []
            return filtered(file, parsed, [*marks, *([wanted.text] if wanted.text else [])], lambda: not stop.is_set())

        def done(numbers: pl.Series) -> None:
            if not stop.is_set():
                self._filtered(typed, numbers, number)

        self._is_busy = "filtering"
        self._tell()
        self.forensics.in_background(work, done)

    def _filtered(self, typed: str, numbers: pl.Series | None, number: int) -> None:
        self._is_busy = ""
        if numbers is not None and numbers.is_empty():
            self.notify(f"no line of this file: {typed}", markup=False)
        else:
            self._typed, self._lines.numbers = typed, numbers
            self._lines.grown()
            self._lines.go(number)
        self._tell()


def _among(numbers: pl.Series) -> pl.Expr:
    import polars as pl

    return pl.col("line").is_in(numbers.implode())
