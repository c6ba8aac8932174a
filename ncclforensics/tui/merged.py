"""The merged screen: the lines of all ranks in one order."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import time
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from ncclforensics.tui.log_lines import PATTERN, TextRows
from ncclforensics.tui.prompts import Ask
from ncclforensics.tui.screen import Place, Position
from ncclforensics.tui.searched_lines import SearchedLines

if TYPE_CHECKING:
    import polars as pl

    from ncclforensics.tui.content.merged import MergedLog, Merger, Order

WIDEST = 4096  # columns to which lines scroll


class MergedRows(TextRows):
    """Lines of all files, each with its rank."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: pl.DataFrame | None = None
        self._digits = 1

    @property
    def rows(self) -> int:
        """Return the number of lines."""
        return 0 if self.lines is None else self.lines.height

    @property
    def fixed(self) -> int:
        """Return the width of the rank in front of a line."""
        return self._digits + len(">rank  ")

    def fill(self, lines: pl.DataFrame) -> None:
        """Show these lines."""
        highest = lines["rank"].max()
        self.lines, self._digits = lines, len(str(highest if highest is not None else "?"))
        self.rows_changed(WIDEST)

    def place(self, row: int) -> tuple[int, int]:
        """Return source and line of a row."""
        assert self.lines is not None
        return self.lines["source"][row], self.lines["line"][row]

    def line_text(self, row: int) -> str:
        """Return the text of a row, with pseudonyms if the run is redacted."""
        from ncclforensics.data.names import printable

        text = printable(str(self.lines["text"][row])) if self.lines is not None else ""
        return self.redact(text) if self.redact else text

    def rank_text(self, row: int) -> str:
        """Return the rank that printed a row."""
        rank = None if self.lines is None else self.lines["rank"][row]
        return f"rank {'?' if rank is None else rank:>{self._digits}}"

    def text(self, row: int) -> Text:
        """Render a line behind its rank."""
        return self.coloured_row(row, self.rank_text(row))

    def first_at(self, wanted: time) -> int | None:
        """Return the first row at or after a time of day, of the order that is shown."""
        import polars as pl

        if self.lines is None:
            return None
        rows = self.lines.select((pl.col("time").dt.time() >= wanted).arg_true()).to_series()
        return int(rows[0]) if rows.len() else None

    def find_line(self, source: int, line: int) -> int | None:
        """Return the row of a line, if it is shown."""
        import polars as pl

        if self.lines is None:
            return None
        rows = self.lines.select(((pl.col("source") == source) & (pl.col("line") == line)).arg_true()).to_series()
        return int(rows[0]) if rows.len() else None

    def go(self, row: int, text: str = "") -> None:
        """Move the cursor to a row, and scroll sideways until a text on it is in view."""
        self.put(row, middle=True)
        self.scroll_to_text(text)


class Merged(SearchedLines):
    """The lines of all ranks in one order: by time where they have times, or by position in the program."""

    NAME = "merged"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "order", "Order", tooltip="Order by time, or by position in the program"),
        *SearchedLines.BINDINGS,
        Binding(
            "f",
            "filter",
            "Filter",
            tooltip="Show only lines with rank:0-7 host:NAME level:warn, a text, or !without",
        ),
        Binding("colon", "time", "Time", show=False, tooltip="Go to the first line at a time of day, such as 11:04:57"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._merger: Merger | None = None
        self._log: MergedLog | None = None
        self._order: Order | None = None
        self._wanted: tuple[int, int] | None = None

    def compose_body(self) -> Iterable[Widget]:
        """Create the title and the lines."""
        yield Static("", id="title", markup=False)
        yield MergedRows()

    @property
    def _text_rows(self) -> MergedRows:
        return self.query_one(MergedRows)

    def draw(self, part: object) -> None:
        """Merge the files in the background, once every byte has been read."""
        content = self.controller.content
        if content is None or not content.is_whole:
            self.show_problem("the lines of all ranks are merged once every byte has been read")
            return
        self._merger, merger = cast("Merger", part), cast("Merger", part)
        self._text_rows.redact = content.pseudonyms.text if content.pseudonyms else None
        self._set_activity("merging")

        def work() -> MergedLog:
            with content.lock:
                return merger.merge(lambda: not self._stop.is_set())

        self.controller.run_in_background(work, self._take)

    def _take(self, log: MergedLog) -> None:
        from ncclforensics.tui.content.merged import Order

        self._log = log
        self._order = Order.TIME if log.has_times else Order.POSITION
        self._wanted = self._wanted or self.decisive_line()
        self._show("")

    def _show(self, typed: str) -> None:
        """Sort and filter in the background; the cursor stays on its line."""
        log, order, rows = self._log, self._order, self._text_rows
        if log is None or order is None:
            return
        wanted = self._wanted or (rows.place(rows.cursor_row) if rows.rows else None)

        def work() -> pl.DataFrame:
            from ncclforensics.tui.content.logs import parse_filter

            return log.ordered(order, parse_filter(typed, ["family"]))

        def done(lines: pl.DataFrame) -> None:
            self._activity, self._wanted = "", None
            if lines.is_empty() and typed:
                self.notify(f"no line passes the filter: {typed}", markup=False)
            else:
                self._filter = typed
                rows.fill(lines)
                row = rows.find_line(*wanted) if wanted else None
                self._show_title()
                # The height of the title decides which rows are in view.
                self.call_after_refresh(rows.go, rows.rows - 1 if row is None else row)
            self._show_title()

        self._set_activity("sorting")
        self.controller.run_in_background(work, done)

    def _set_activity(self, activity: str) -> None:
        self._activity = activity
        self._show_title()

    def on_virtual_rows_opened(self) -> None:
        """Open the file at the line under the cursor."""
        if self._text_rows.rows:
            self.controller.go(Place("log", self._text_rows.place(self._text_rows.cursor_row)))

    def _show_title(self) -> None:
        rows, text = self._text_rows, Text()
        if rows.rows and self._merger is not None and self._log is not None:
            source, line = rows.place(rows.cursor_row)
            text.append(f"{self._merger.name(source)}:{line}", "bold cyan")
            text.append(f"  {rows.cursor_row + 1:,} of {rows.rows:,} lines")
            omitted = self._log.omitted_lines
            text.append(f", {omitted:,} earlier ones left out" if omitted else "", "bold")
            text.append(f"  filter {self._filter}" if self._filter else "", "bold")
        text.append(f"  {self._activity} …" if self._activity else "", "italic")
        text.append("  z: full lines" if rows.rows and not rows.shows_full_lines else "", "dim")
        text.append(f"\nby {self._order}" if self._order else "", "dim")
        self.set_text("#title", text)

    def go_to(self, position: Position) -> None:
        """Go to (source, line)."""
        self._wanted = cast("tuple[int, int]", position)
        row = self._text_rows.find_line(*self._wanted)
        if row is not None:
            self._wanted = None
            self._text_rows.go(row)

    def cursor_position(self) -> Position:
        """Return source and line under the cursor."""
        return self._text_rows.place(self._text_rows.cursor_row) if self._text_rows.rows else ()

    def clipboard_text(self) -> str:
        """Return the line under the cursor with its rank, file and number."""
        rows = self._text_rows
        if not rows.rows or self._merger is None:
            return ""
        row = rows.cursor_row
        source, line = rows.place(row)
        return f"{rows.rank_text(row)} {self._merger.name(source)}:{line}: {rows.line_text(row)}"

    def action_order(self) -> None:
        """Order by time, or by position in the program."""
        from ncclforensics.tui.content.merged import Order

        if self._log is None:
            return
        if not self._log.has_times:
            self.notify("these lines have no times; they are ordered by position in the program")
            return
        self._order = Order.POSITION if self._order is Order.TIME else Order.TIME
        self._show(self._filter)

    def action_time(self) -> None:
        """Ask for a time of day and go to the first line at or after it."""

        def go(typed: str | None) -> None:
            if not typed:
                return
            try:
                wanted = time.fromisoformat(typed)
            except ValueError:
                self.controller.show_error(f"{typed}: not a time of day; type one such as 11:04:57")
                return
            row = self._text_rows.first_at(wanted)
            if row is None:
                self.notify(f"no line at or after {typed}", markup=False)
            else:
                self._text_rows.go(row)

        self.app.push_screen(Ask("Go to which time of day?"), go)

    def action_filter(self) -> None:
        """Ask for a filter and apply it."""

        def take(typed: str | None) -> None:
            if typed is not None:
                self._show(typed)

        question = "Show which lines: rank:0-7 host:NAME level:warn, a text, !a text that lacks? Empty: all"
        self.app.push_screen(Ask(question, self._filter), take)

    def _find(self, text: str, by: int) -> None:
        lines, start, rows = self._text_rows.lines, self._text_rows.cursor_row, self._text_rows
        if lines is None:
            return

        def work() -> int | None:
            from ncclforensics.inputs.logfile import containing

            is_match = containing(text.removeprefix(PATTERN), is_pattern=text.startswith(PATTERN))
            hits = lines.select(is_match.arg_true()).to_series()
            later = hits.filter(hits > start) if by > 0 else hits.filter(hits < start)
            found = later if later.len() else hits  # after the end it goes on at the beginning
            return int(found[0 if by > 0 else -1]) if found.len() else None

        def done(row: int | None) -> None:
            self._set_activity("")
            if row is None:
                self.notify(f"not found: {text}", markup=False)
            elif rows.lines is lines:
                rows.go(row, text)

        self._set_activity("searching")
        self.controller.run_in_background(work, done)
