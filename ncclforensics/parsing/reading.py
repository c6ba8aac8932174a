"""A source times a language: typed rows that know their source and line, read whole or through two windows.

A hang is decided by the two ends of each file. A plain file is therefore read in a window at its head (who is who) and
one at its tail (what was called last); both grow on demand until they meet.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import Pattern
from ncclforensics.inputs import lines
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, Source
from ncclforensics.parsing.launcher_prefixes import decorated, decorations, peeled
from ncclforensics.parsing.parser import parse

WINDOW = 64 << 10  # bytes at each end to begin with
SMALL = 4 * WINDOW  # a file up to this size is read whole
UNPACKED = 10  # bytes of a log for one of its archive
STEP = 1 << 20  # bytes searched for ends of lines at once; they stay in the processor's cache
TOGETHER = 64  # sources judged at once
BEGINNING, QUOTED = 200, 50  # bytes that tell an object from lines; and of those what is shown
SAMPLE = 32 << 10  # bytes at each end that tell a log from a core file


PICKLES = tuple(bytes([0x80, version]) for version in range(2, 6))  # as PyTorch's Flight Recorder writes them

# How this program's own reports begin. They quote lines, which must not count a second time.
TITLE = b"## ncclforensics: "
REPORT = (TITLE, b"<!DOCTYPE html>", b'{\n  "schema_version"', b'{\n  "$schema"', b"<?xml")
NAMED = (TITLE, b'content="ncclforensics ', b'"name": "ncclforensics"', b'<testsuites name="ncclforensics"')
TITLED = 400  # bytes
# What stands above the verdict in text, which may have been pasted below a heading.
COUNTED, RECOGNISED = (b" NCCL lines, ", b" known lines, "), b"% recognised"
HEADED = 1500  # bytes


@dataclass(slots=True)
class Reading:
    """How far one source has been read. Its methods yield lines, each line once."""

    source: Source
    number: int
    dialect: Dialect  # what its lines may say; more, once a sample has been seen
    problems: list[str] = field(default_factory=list)
    is_whole: bool = False
    is_cut: bool = False  # the last line has no end
    is_binary: bool = False
    is_document: bool = False  # one object and no lines: `line` is the number of a record
    beginning: bytes = b""  # enough to tell an object from lines
    decorations: tuple[Pattern, ...] = ()  # what stands in front of its lines, outermost first
    lines_read: int = 0
    head_stop: int = 0
    tail_start: int = 0
    head_lines: int = 0
    tail_lines: int = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were looked at."""
        return self.source.size if self.is_whole else self.head_stop + self.source.size - self.tail_start

    def due(self, *, whole: bool) -> int:
        """About how many bytes will be read next: all that is left, or windows."""
        if not self.source.seekable:
            return UNPACKED * self.source.size
        read = self.bytes_read if self.lines_read else 0
        left = self.source.size - read
        return left if whole else min(max(read, SMALL), left)

    def start(self, *, whole: bool) -> Iterator[pl.DataFrame]:
        """The source for the first time: all of it, or both ends."""
        yield from self._guarded(self._begin(whole))

    def widen(self, *, head: bool = False, tail: bool = False) -> Iterator[pl.DataFrame]:
        """What doubling the window at one end, or at both, brings."""
        before, after = self.head_stop, self.source.size - self.tail_start
        yield from self._guarded(self._grow(2 * before if head else before, 2 * after if tail else after))

    def finish(self) -> Iterator[pl.DataFrame]:
        """All that the windows have left out."""
        yield from self._guarded(self._grow(self.source.size, 0))

    def document(self) -> bytes:
        """All of it, as far as it can be read."""
        self.is_document = self.is_whole = True
        data = bytearray()
        try:
            with self.source.open() as stream:
                while block := stream.read(STEP):
                    data += block
        except DAMAGED_ARCHIVE as error:
            self.problems.append(f"is damaged: {error}")
        return bytes(data)

    def sample(self) -> bytes:
        """Its beginning and its end, by which it is judged; nothing where they cannot be read, or are no text."""
        try:
            with self.source.open() as stream:
                data = stream.read(SAMPLE)
                self.beginning = data[:BEGINNING]
                if self.source.seekable and self.source.size > 2 * SAMPLE:
                    stream.seek(-SAMPLE, 2)
                    data = _whole_lines(data, stream.read())
        except DAMAGED_ARCHIVE:
            return b""  # told of when the rest is read
        if _is_report(data):
            self.problems.append("is a report of this program, skipped")
            self.is_binary = True
        elif (is_pickle := data.startswith(PICKLES)) or self._is_binary(data):
            kind = "a pickle, which is never loaded" if is_pickle else "binary data"
            self.problems.append(f"is not a log: {kind}, skipped")
            self.is_binary = True
        return b"" if self.is_binary else data

    def _is_binary(self, data: bytes) -> bool:
        strange = data.count(b"\x00") + (0 if data.isascii() else data.decode("utf-8", "replace").count("\ufffd"))
        return strange * 10 > len(data) and not parse(lines.block(data, 1), self.dialect).frames

    def hears(self, rows: pl.DataFrame) -> Dialect:
        """What its lines may say, now that these have been read: a format may begin in the middle of a log.

        The sample tells it of short files, and of long ones that are read in windows.
        """
        if self.source.size > 2 * SAMPLE and not self.tail_start:
            self.dialect = self.dialect.including_formats_in(rows["text"])
        return self.dialect

    def _guarded(self, work: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        try:
            yield from work
        except OSError as error:
            self.problems.append(f"cannot be read: {error.strerror or error}")
            self.is_whole = True  # there is no more to be had

    def _begin(self, whole: bool) -> Iterator[pl.DataFrame]:
        if self.is_binary:
            return
        if whole or not self.source.seekable or self.source.size <= SMALL:
            yield from self._all()
        else:
            self.tail_start = self.source.size
            yield from self._grow(WINDOW, WINDOW)

    def _all(self) -> Iterator[pl.DataFrame]:
        try:
            with self.source.open() as stream:
                is_long = self.source.seekable and self.source.size > lines.CHUNK
                whole = lines.Span(stream, 0, self.source.size) if is_long else stream
                for rows in lines.blocks(whole, self.number, lines.CHUNK):
                    yield self._counted(rows)
        except DAMAGED_ARCHIVE as error:
            self.problems.append(f"is damaged after line {self.lines_read}: {error}")
        self.is_whole = True

    def _counted(self, rows: pl.DataFrame) -> pl.DataFrame:
        self.lines_read += rows.height
        self.is_cut |= bool(rows["cut"].any())
        return rows

    def _grow(self, head: int, tail: int) -> Iterator[pl.DataFrame]:
        """Make the windows `head` and `tail` bytes long, or leave them as long as they are."""
        if self.is_whole or self.is_binary:
            return
        with self.source.open() as stream:
            stop = max(min(lines.line_start(stream, head, self.source.size), self.tail_start), self.head_stop)
            start = self._line_before(stream, tail, stop)
            grown = lines.Span(stream, self.head_stop, stop)
            for rows in lines.blocks(grown, self.number, lines.CHUNK, self.head_lines + 1):
                self.head_lines += rows.height
                yield self._counted(rows)
            self.head_stop = stop
            while start < self.tail_start:
                begin = self._line_before(stream, self.source.size - self.tail_start + lines.CHUNK, start)
                grown = lines.Span(stream, begin, self.tail_start)
                found = pl.concat(lines.blocks(grown, self.number, lines.CHUNK))
                self.tail_start = begin
                yield self._counted(found.with_columns(pl.col("line") - (found.height + self.tail_lines + 1)))
                self.tail_lines += found.height
        self.is_whole = self.head_stop >= self.tail_start

    def _line_before(self, stream: io.BufferedIOBase, tail: int, floor: int) -> int:
        """Where the last `tail` bytes begin with a line, not before `floor`; more bytes if they begin inside a line."""
        size = self.source.size
        wants_more = tail > size - self.tail_start
        while True:
            start = min(max(lines.line_start(stream, size - tail, size), floor), self.tail_start)
            if start < self.tail_start or start == floor or not wants_more:
                return start
            tail *= 2

    def quote(self, wanted: list[int]) -> dict[int, tuple[int, str]]:
        """The true number and the text of some lines (negative: counted from the end), read a second time."""
        if (
            self.is_document
        ):  # it is one line, whichever record is meant; further on may stand what is nobody's business
            return dict.fromkeys(wanted, (1, lines.shown(self.beginning[:QUOTED])))
        total = self._count() if min(wanted) < 0 else 0
        number = {line: line if line > 0 else total + 1 + line for line in wanted}
        found: dict[int, bytes] = {}
        passed = 0
        try:
            with self.source.open() as stream:
                if total and min(number.values()) > self.head_lines:  # all of them stand in the window at the end
                    stream.seek(self.tail_start)
                    passed = total - self.tail_lines
                for count, text in _picked(stream, {true - passed for true in number.values()}):
                    found[count + passed] = found.get(count + passed, b"") + text
        except DAMAGED_ARCHIVE:
            pass  # the lines that could be read are there, and the problem has been told
        return {line: (true, lines.shown(found[true])) for line, true in number.items() if true in found}

    def _count(self) -> int:
        """Lines of the whole file."""
        total, last = 0, 10
        buffer = bytearray(STEP)
        with self.source.open() as stream:
            while size := stream.readinto(buffer):
                total, last = total + buffer.count(b"\n", 0, size), buffer[size - 1]
        return total + (last != 10)


def _is_report(data: bytes) -> bool:
    if data.startswith(REPORT):
        return any(name in data[:TITLED] for name in NAMED)
    head, found, _ = b" ".join(data[:HEADED].split()).partition(RECOGNISED)  # it may be wrapped
    return bool(found) and head.rstrip(b"0123456789.").endswith(COUNTED)


def _whole_lines(head: bytes, tail: bytes) -> bytes:
    """Both ends of a file, without the lines that are cut in the middle of it."""
    return (head[: head.rfind(b"\n") + 1] or head + b"\n") + tail[tail.find(b"\n") + 1 :]


def survey(readings: Sequence[Reading], dialect: Dialect, is_object: Callable[[Reading], bool]) -> list[Reading]:
    """Find out what the sources are, and give those that hold lines: what stands in front of these, who speaks in them.

    Judged by both ends of each, and many sources at once: a call of the engine costs more than what it has to look at.
    """
    of_lines: list[Reading] = []
    for start in range(0, len(readings), TOGETHER):
        looked = [(reading, reading.sample()) for reading in readings[start : start + TOGETHER]]
        some = {reading.number: (reading, data) for reading, data in looked if not is_object(reading)}
        samples = lines.texts({number: data for number, (_, data) in some.items()})
        for number in decorated(samples, dialect):
            texts = samples.filter(source=number)
            if found := decorations(texts, dialect):
                some[number][0].decorations = found
                bare = peeled(texts, dialect, found).select(samples.columns)
                samples = pl.concat([samples.filter(pl.col("source") != number), bare])
        for number, heard in dialect.by_source(samples).items():
            some[number][0].dialect = heard
        of_lines += [reading for reading, _ in some.values()]
    return of_lines


def _picked(stream: io.BufferedIOBase, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """Lines by their number, counted from 1; a long one comes in pieces, and of each piece only the beginning."""
    number = 1
    while number <= max(wanted) and (data := stream.read(STEP)):
        beyond = number + data.count(b"\n")
        if any(number <= each <= beyond for each in wanted):
            for each, text in enumerate(data.split(b"\n"), number):
                if each in wanted and text:
                    yield each, text[: 4 * lines.SHOWN]
        number = beyond
