"""Any line of a file of any size: where lines begin is noted every 64 KiB, and nothing else is kept.

A file may grow, shrink or disappear while it is open. What is compressed is unpacked to a temporary file on the way.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from threading import Lock
from time import sleep

import polars as pl
from polars.exceptions import ComputeError

from ncclforensics.data.names import printable
from ncclforensics.errors import UsageError
from ncclforensics.inputs import lines
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, Source

STEP = 64 << 10  # bytes between two notes
READ = 1 << 20  # bytes read at once
SEARCHED = 128  # steps searched at once
KEPT = 64  # steps whose lines are kept


@dataclass(slots=True)
class _Notes:
    """Where some lines begin, in order; the first is line 1."""

    starts: list[int] = field(default_factory=lambda: [0])
    numbers: list[int] = field(default_factory=lambda: [1])
    since: int = 0  # lines that ended behind the last note
    size: int = 0  # bytes looked at
    ends_with_line: bool = True

    @property
    def lines(self) -> int:
        """All lines so far, the last one also if it has no end yet."""
        return self.numbers[-1] - 1 + self.since + (not self.ends_with_line)

    def look(self, data: bytes) -> None:
        """Take note of the bytes that follow."""
        for place in range(0, len(data), STEP):
            stop = min(place + STEP, len(data))
            if count := data.count(b"\n", place, stop):
                self.since += count
                begins = self.size + data.rfind(b"\n", place, stop) + 1
                if begins - self.starts[-1] >= STEP:
                    self.starts.append(begins)
                    self.numbers.append(self.numbers[-1] + self.since)
                    self.since = 0
        self.size += len(data)
        self.ends_with_line = data.endswith(b"\n")


class LogFile:
    """The lines of one source, cleaned, by their number; `grow` reads on, in a thread of its own."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.note = source.problem  # what happened to the file
        self.is_complete = bool(source.problem)  # all that was there has been looked at
        self._notes = _Notes()
        self._kept: OrderedDict[tuple[int, int], list[str]] = OrderedDict()  # by step and where it ends
        self._lock = Lock()
        self._unpacked: tempfile._TemporaryFileWrapper[bytes] | None = None
        self._stream: BufferedIOBase | None = None
        self._growing: BufferedIOBase | None = None
        self._inode = 0

    @property
    def lines(self) -> int:
        """Lines known so far."""
        return self._notes.lines

    @property
    def share(self) -> float:
        """How much of the file has been looked at."""
        if self.is_complete or self._unpacked:
            return 1.0 if self.is_complete else 0.0
        return min(1.0, self._notes.size / max(1, self.source.size))

    def grow(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Look at what has come since the last time; all of it at first."""
        if self.source.problem:
            return
        try:
            if self._unpacked is None and not self.source.seekable:
                self._unpack(is_wanted)
            elif self._unpacked is None:
                self._read_on(is_wanted)
        except DAMAGED_ARCHIVE as error:
            self.note = f"cannot be read on: {getattr(error, 'strerror', None) or error}"
        self.is_complete = True

    def _read_on(self, is_wanted: Callable[[], bool]) -> None:
        try:
            status = self.source.file.stat()
        except OSError as error:
            self.note = f"is gone ({error.strerror}); what was open stays readable"
            status = None
        if status is not None and self._growing is not None:
            if status.st_ino != self._inode:
                self._begin_again("was replaced; read again from its beginning")
            elif status.st_size < self._notes.size:
                self._begin_again("was shortened; read again from its beginning")
        if self._growing is None:
            self._growing, stream = self.source.open(), self.source.open()
            self._inode = os.fstat(stream.fileno()).st_ino
            with self._lock:
                self._stream = stream
        self._growing.seek(self._notes.size)
        while is_wanted() and (data := self._growing.read(READ)):
            self._notes.look(data)

    def _begin_again(self, note: str) -> None:
        with self._lock:
            for stream in (self._stream, self._growing):
                if stream is not None:
                    stream.close()
            self._stream = self._growing = None
            self._kept.clear()
            self._notes = _Notes()
            self.note = note

    def _unpack(self, is_wanted: Callable[[], bool]) -> None:
        self._unpacked = tempfile.NamedTemporaryFile(prefix="ncclforensics-")
        with self.source.open() as packed:
            with self._lock:
                self._stream = open(self._unpacked.name, "rb")
            while is_wanted() and (data := packed.read(READ)):
                self._unpacked.write(data)
                self._unpacked.flush()
                self._notes.look(data)

    def close(self) -> None:
        """Give back what is open."""
        with self._lock:
            for stream in (self._stream, self._growing, self._unpacked):
                if stream is not None:
                    stream.close()
            self._stream = self._growing = self._unpacked = None

    def text(self, number: int) -> str:
        """A line, without anything a terminal would act on; empty where there is none."""
        if not 1 <= number <= self.lines:
            return ""
        notes = self._notes
        step = bisect_right(notes.numbers, number) - 1
        stop = notes.starts[step + 1] if step + 1 < len(notes.starts) else notes.size
        texts = self._kept.get((step, stop))  # the last step may still grow
        if texts is None:
            texts = self._kept[step, stop] = self._texts(notes, step, stop)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        place = number - notes.numbers[step]
        return texts[place] if place < len(texts) else ""

    def _texts(self, notes: _Notes, step: int, stop: int) -> list[str]:
        try:
            with self._lock:
                blocks = list(_blocks(self._stream, notes, step, stop)) if self._stream else []
        except DAMAGED_ARCHIVE as error:
            self.note = f"cannot be read: {getattr(error, 'strerror', None) or error}"
            return []
        texts = (text for rows in blocks for text in rows["text"].to_list())
        return [text if text.isprintable() else printable(text) for text in texts]

    def matches(
        self,
        is_match: pl.Expr,
        *,
        start: int = 1,
        backwards: bool = False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[pl.Series]:
        """Numbers of the lines from `start` on (or back) of which an expression on `line` and `text` is true."""
        notes, count = self._notes, len(self._notes.starts)
        here = max(0, bisect_right(notes.numbers, start) - 1)
        begins = range(here, -1, -SEARCHED) if backwards else range(here, count, SEARCHED)
        for begin in begins:
            low, high = (
                (max(0, begin - SEARCHED + 1), begin + 1) if backwards else (begin, min(count, begin + SEARCHED))
            )
            stop = notes.starts[high] if high < count else notes.size
            inside = pl.col("line") <= start if backwards else pl.col("line") >= start
            found = []
            with open(self._unpacked.name if self._unpacked else self.source.file, "rb") as stream:
                for rows in _blocks(stream, notes, low, stop):
                    if not is_wanted():
                        return
                    found.append(rows.filter(inside & is_match)["line"])
            if found:
                yield pl.concat(found)

    def find(self, is_match: pl.Expr, start: int, *, backwards: bool, is_wanted: Callable[[], bool]) -> int | None:
        """The nearest line from `start` on (or back) that matches; behind the end it goes on at the beginning."""
        for first in (start, self.lines if backwards else 1):
            for numbers in self.matches(is_match, start=first, backwards=backwards, is_wanted=is_wanted):
                if numbers.len():
                    return int(numbers[-1 if backwards else 0])
        return None


def _blocks(stream: BufferedIOBase, notes: _Notes, step: int, stop: int) -> Iterator[pl.DataFrame]:
    """The lines from a note on, cleaned, in their order."""
    start = notes.starts[step]
    chunk = min(lines.CHUNK, max(STEP, stop - start))
    for rows in lines.blocks(lines.Span(stream, start, stop), chunk=chunk, first=notes.numbers[step]):
        cleaned = lines.cleaned(rows)
        yield cleaned if cleaned is rows else cleaned.sort("line")


def containing(text: str, *, is_pattern: bool) -> pl.Expr:
    """Whether a line holds a text, or matches a pattern of the user's own. Raises UsageError.

    Polars' engine needs time in proportion to the text, whatever the pattern.
    """
    is_match = pl.col("text").str.contains(text, literal=not is_pattern)
    try:
        pl.DataFrame({"text": [""]}).filter(is_match)
    except ComputeError as error:
        raise UsageError(f"{text}: not a pattern: {str(error).splitlines()[-1]}") from error
    return is_match


def filtered(file: LogFile, among: pl.Series | None, texts: list[str], is_wanted: Callable[[], bool]) -> pl.Series:
    """The numbers of the lines that are among some (negative: from the end) and hold all of these texts."""
    while not file.is_complete and is_wanted():
        sleep(0.05)
    if among is not None:
        true = pl.when(among < 0).then(among + (file.lines + 1)).otherwise(among)
        among = pl.select(true.cast(pl.Int32)).to_series().unique().sort()
        if not texts:
            return among
    is_match = pl.lit(True) if among is None else pl.col("line").is_in(among.implode())
    for text in texts:
        is_match &= pl.col("text").str.contains(text, literal=True)
    found = [pl.Series([], dtype=pl.Int32), *file.matches(is_match, is_wanted=is_wanted)]
    return pl.concat(found)
