"""Access to any line of a file of any size, with an index of one line start per 64 KiB.

A file may grow, shrink or disappear while it is open. Compressed files are unpacked to a temporary file.
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

from ncclforensics.archive.atomic_write import temporary_prefix
from ncclforensics.data.names import printable
from ncclforensics.errors import UsageError
from ncclforensics.inputs import lines
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, Source

STEP = 64 << 10  # bytes between two entries of the index
READ = 1 << 20  # bytes read at once
SEARCH_BATCH = 128  # steps searched at once
CACHED = 64  # steps whose lines are cached


@dataclass(slots=True)
class _LineIndex:
    """The offsets of some line starts, in order; the first is line 1."""

    starts: list[int] = field(default_factory=lambda: [0])
    numbers: list[int] = field(default_factory=lambda: [1])
    lines_after_entry: int = 0  # lines that end after the last entry
    size: int = 0  # bytes indexed
    ends_with_line: bool = True

    @property
    def lines(self) -> int:
        """Return the number of lines so far; a last line without a newline counts."""
        return self.numbers[-1] - 1 + self.lines_after_entry + (not self.ends_with_line)

    def add(self, data: bytes) -> None:
        """Index the next bytes of the file."""
        for begin in range(0, len(data), STEP):
            stop = min(begin + STEP, len(data))
            if count := data.count(b"\n", begin, stop):
                self.lines_after_entry += count
                line_start = self.size + data.rfind(b"\n", begin, stop) + 1
                if line_start - self.starts[-1] >= STEP:
                    self.starts.append(line_start)
                    self.numbers.append(self.numbers[-1] + self.lines_after_entry)
                    self.lines_after_entry = 0
        self.size += len(data)
        self.ends_with_line = data.endswith(b"\n")


class LogFile:
    """The cleaned lines of one source, by number. `grow` indexes new bytes and may run in another thread."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.note = source.problem  # what happened to the file
        self.is_complete = bool(source.problem)  # everything that exists has been indexed
        self._index = _LineIndex()
        self._cache: OrderedDict[tuple[int, int], list[str]] = OrderedDict()  # by step and its end
        self._lock = Lock()
        self._unpacked: tempfile._TemporaryFileWrapper[bytes] | None = None
        self._stream: BufferedIOBase | None = None
        self._growing: BufferedIOBase | None = None
        self._inode = 0

    @property
    def lines(self) -> int:
        """Return the number of lines indexed so far."""
        return self._index.lines

    @property
    def share(self) -> float:
        """Return the indexed share of the file, from 0 to 1."""
        if self.is_complete or self._unpacked:
            return 1.0 if self.is_complete else 0.0
        return min(1.0, self._index.size / max(1, self.source.size))

    def grow(self, is_active: Callable[[], bool] = lambda: True) -> None:
        """Index the bytes that have been added since the last call."""
        if self.source.problem:
            return
        try:
            if self._unpacked is None and (self.source.remote or not self.source.seekable):
                self._unpack(is_active)
            elif self._unpacked is None:
                self._read_on(is_active)
        except DAMAGED_ARCHIVE as error:
            self.note = f"cannot be read further: {getattr(error, 'strerror', None) or error}"
        self.is_complete = True

    def _read_on(self, is_active: Callable[[], bool]) -> None:
        try:
            status = self.source.file.stat()
        except OSError as error:
            self.note = f"is gone ({error.strerror}); the open file stays readable"
            status = None
        if status is not None and self._growing is not None:
            if status.st_ino != self._inode:
                self._restart("was replaced; read again from the beginning")
            elif status.st_size < self._index.size:
                self._restart("was shortened; read again from the beginning")
        if self._growing is None:
            self._growing, stream = self.source.open(), self.source.open()
            self._inode = os.fstat(stream.fileno()).st_ino
            with self._lock:
                self._stream = stream
        self._growing.seek(self._index.size)
        while is_active() and (data := self._growing.read(READ)):
            self._index.add(data)

    def _restart(self, note: str) -> None:
        with self._lock:
            for stream in (self._stream, self._growing):
                if stream is not None:
                    stream.close()
            self._stream = self._growing = None
            self._cache.clear()
            self._index = _LineIndex()
            self.note = note

    def _unpack(self, is_active: Callable[[], bool]) -> None:
        self._unpacked = tempfile.NamedTemporaryFile(prefix=temporary_prefix())
        with self.source.open() as packed:
            with self._lock:
                self._stream = open(self._unpacked.name, "rb")
            while is_active() and (data := packed.read(READ)):
                self._unpacked.write(data)
                self._unpacked.flush()
                self._index.add(data)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for stream in (self._stream, self._growing, self._unpacked):
                if stream is not None:
                    stream.close()
            self._stream = self._growing = self._unpacked = None

    def text(self, number: int) -> str:
        """Return a line without terminal control characters; empty if there is no such line."""
        if not 1 <= number <= self.lines:
            return ""
        notes = self._index
        step = bisect_right(notes.numbers, number) - 1
        stop = notes.starts[step + 1] if step + 1 < len(notes.starts) else notes.size
        texts = self._cache.get((step, stop))  # the last step may still grow
        if texts is None:
            texts = self._cache[step, stop] = self._texts(notes, step, stop)
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        offset = number - notes.numbers[step]
        return texts[offset] if offset < len(texts) else ""

    def _texts(self, notes: _LineIndex, step: int, stop: int) -> list[str]:
        try:
            with self._lock:
                blocks = list(_blocks(self._stream, notes, step, stop)) if self._stream else []
        except DAMAGED_ARCHIVE as error:
            self.note = f"cannot be read: {getattr(error, 'strerror', None) or error}"
            return []
        texts = (text for rows in blocks for text in rows["text"].to_list())
        return [text if text.isprintable() else printable(text) for text in texts]

    def last_lines(self, count: int) -> pl.DataFrame:
        """Return the last lines (columns `line`, `text`)."""
        notes = self._index
        step = bisect_right(notes.numbers, max(1, notes.lines - count + 1)) - 1
        try:
            with self._lock:
                blocks = [*_blocks(self._stream, notes, step, notes.size)] if self._stream else []
        except DAMAGED_ARCHIVE as error:
            self.note = f"cannot be read: {getattr(error, 'strerror', None) or error}"
            blocks = []
        empty = pl.DataFrame(schema={"line": pl.Int32(), "text": pl.String()})
        rows = [rows.select(pl.col("line").cast(pl.Int32), pl.col("text").cast(pl.String)) for rows in blocks]
        return pl.concat([empty, *rows]).tail(count)

    def matches(
        self,
        is_match: pl.Expr,
        *,
        start: int = 1,
        backwards: bool = False,
        is_active: Callable[[], bool] = lambda: True,
    ) -> Iterator[pl.Series]:
        """Yield the numbers of lines, forwards or backwards from `start`, for which an expression is true."""
        notes, count = self._index, len(self._index.starts)
        first_step = max(0, bisect_right(notes.numbers, start) - 1)
        begins = range(first_step, -1, -SEARCH_BATCH) if backwards else range(first_step, count, SEARCH_BATCH)
        for begin in begins:
            low, high = (
                (max(0, begin - SEARCH_BATCH + 1), begin + 1)
                if backwards
                else (begin, min(count, begin + SEARCH_BATCH))
            )
            stop = notes.starts[high] if high < count else notes.size
            is_in_range = pl.col("line") <= start if backwards else pl.col("line") >= start
            matching = []
            with open(self._unpacked.name if self._unpacked else self.source.file, "rb") as stream:
                for rows in _blocks(stream, notes, low, stop):
                    if not is_active():
                        return
                    matching.append(rows.filter(is_in_range & is_match)["line"])
            if matching:
                yield pl.concat(matching)

    def find(self, is_match: pl.Expr, start: int, *, backwards: bool, is_active: Callable[[], bool]) -> int | None:
        """Return the nearest match, forwards or backwards from `start`; the search wraps around."""
        for first in (start, self.lines if backwards else 1):
            for numbers in self.matches(is_match, start=first, backwards=backwards, is_active=is_active):
                if numbers.len():
                    return int(numbers[-1 if backwards else 0])
        return None


def _blocks(stream: BufferedIOBase, notes: _LineIndex, step: int, stop: int) -> Iterator[pl.DataFrame]:
    """Yield the cleaned lines from an index entry on, in order."""
    start = notes.starts[step]
    chunk = min(lines.CHUNK, max(STEP, stop - start))
    for rows in lines.blocks(lines.ByteRange(stream, start, stop), chunk=chunk, first=notes.numbers[step]):
        cleaned = lines.cleaned(rows)
        yield cleaned if cleaned is rows else cleaned.sort("line")


def containing(text: str, *, is_pattern: bool) -> pl.Expr:
    """Return an expression: the line contains a text, or matches a pattern. Raises UsageError for a bad pattern.

    The regex engine of Polars runs in linear time, so no pattern can hang the search.
    """
    is_match = pl.col("text").str.contains(text, literal=not is_pattern)
    try:
        pl.DataFrame({"text": [""]}).filter(is_match)
    except ComputeError as error:
        raise UsageError(f"{text}: not a regular expression: {str(error).splitlines()[-1]}") from error
    return is_match


def filtered(
    file: LogFile, candidates: pl.Series | None, of_text: pl.Expr | None, is_active: Callable[[], bool]
) -> pl.Series:
    """Return the candidate lines (negative: from the end; None: all lines) for whose text a condition holds."""
    while not file.is_complete and is_active():
        sleep(0.05)
    if candidates is not None:
        numbers = pl.when(candidates < 0).then(candidates + (file.lines + 1)).otherwise(candidates)
        candidates = pl.select(numbers.cast(pl.Int32)).to_series().unique().sort()
        if of_text is None:
            return candidates
    is_match = pl.lit(True) if candidates is None else pl.col("line").is_in(candidates.implode())
    if of_text is not None:
        is_match &= of_text
    matching = [pl.Series([], dtype=pl.Int32), *file.matches(is_match, is_active=is_active)]
    return pl.concat(matching)
