"""Read one input as lines: whole, or through windows at its head and its tail that grow until they meet.

A hang is decided by the two ends of each file: the head says which rank this is, the tail which call came last.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.inputs import exports, lines, records
from ncclforensics.inputs.line_numbers import LineNumbers
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, Source, is_system_error

UNPACKED = 10  # bytes of text expected for one byte of a compressed file
STEP = 1 << 20  # bytes searched for ends of lines at once; they stay in the processor's cache
BEGINNING, QUOTED = 200, 50  # bytes by which a JSON document is recognised; and of those what evidence quotes
SAMPLED_WHOLE = 4  # samples of one end: a file up to this size is sampled whole
SHORT = 1 / 64  # of a chunk: windows and files of fewer bytes are split together
# In text; where the beginning has none, it is searched for in so many bytes behind it, or in all that will be read.
MARK, SEARCHED = b"NCCL", 4 << 20
Lines = pl.DataFrame | lines.Stretch


@dataclass(slots=True)
class InputReader:
    """One source, and how far it has been read. `start`, `widen…` and `finish` yield lines, each line once."""

    source: Source
    number: int
    policy: ReadPolicy = field(default_factory=ReadPolicy)
    problems: list[str] = field(default_factory=list)
    is_whole: bool = False
    is_read_through: bool = False  # every line was or will be read; of calls, those at both ends of processes are kept
    outputs_dropped: int = 0  # between others of the same port, interface or GPU
    is_cut: bool = False  # the last line has no `\n`
    is_binary: bool = False
    is_document: bool = False  # one JSON object or value instead of lines: `line` is the number of a record
    beginning: bytes = b""
    export: exports.Reader | None = None  # reads the records of an export, which has no lines of its own
    strip: Callable[[pl.DataFrame], pl.DataFrame] | None = None  # removes the launcher prefixes of its lines
    numbers: LineNumbers = field(default_factory=LineNumbers)
    lines_read: int = 0
    head_stop: int = 0  # byte where the window at the head ends
    tail_start: int = 0  # byte where the window at the tail begins
    head_lines: int = 0
    tail_lines: int = 0
    last_time: str | None = None  # of its last line that has one, as a launcher or collector put it
    blank_end: int = 0  # of its last lines, those that say nothing: blank ones, and rules of dashes

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were looked at."""
        if self.is_whole or self.is_read_through or not self.source.seekable:
            return self.source.size
        return self.head_stop + self.source.text_size - self.tail_start

    @property
    def bytes_kept(self) -> int:
        """Bytes of which every call is kept."""
        is_windowed = self.is_windowed and not self.is_whole
        return self.head_stop + self.source.text_size - self.tail_start if is_windowed else self.source.text_size

    @property
    def is_closed(self) -> bool:
        """Whether no more of it can be read."""
        return self.is_whole or self.is_read_through

    @property
    def begins_with_windows(self) -> bool:
        """Whether both its ends are read first, as the policy says."""
        is_whole = self.policy.full or not self.source.has_windows or self.source.is_part
        return self.export is None and not is_whole and self.source.text_size > self.policy.small_file

    @property
    def is_sampled_whole(self) -> bool:
        """Whether its sample is all of it: to look for further formats in each short file by itself takes longer."""
        return self.source.has_windows and self.source.text_size <= SAMPLED_WHOLE * self.policy.sample

    @property
    def is_windowed(self) -> bool:
        """Whether only windows at the two ends were read."""
        return self.tail_start > 0

    def remaining(self, *, full: bool) -> int:
        """Estimate the bytes that will be read next: all that is left, or windows."""
        if not self.source.has_windows:
            return UNPACKED * self.source.text_size
        read = self.bytes_read if self.lines_read else 0
        left = self.source.text_size - read
        return left if full else min(max(read, self.policy.small_file), left)

    def start(self) -> Iterator[Lines]:
        """Read the source for the first time: all of it, or both ends, as the policy says."""
        yield from self._with_errors_reported(self._begin())

    def widen(self, factor: int, *, head: bool = False, tail: bool = False) -> Iterator[Lines]:
        """Multiply the length of the window at one end, or at both, by a factor."""
        before, after = self.head_stop, self.source.text_size - self.tail_start
        if tail and not self.source.seekable and factor * after > self.policy.chunk:
            yield from self.finish()  # each step backwards would unpack all again
            return
        yield from self._with_errors_reported(
            self._grow(factor * before if head else before, factor * after if tail else after)
        )

    def widen_head(self, stop: int) -> Iterator[Lines]:
        """Let the window at the head end at this byte of the file."""
        yield from self._with_errors_reported(self._grow(stop, self.source.text_size - self.tail_start))

    def finish(self) -> Iterator[Lines]:
        """Read everything between the windows."""
        yield from self._with_errors_reported(self._grow(self.source.text_size, 0))

    def read_document(self) -> bytes:
        """Read all bytes, as far as possible; damage is added to `problems`."""
        self.is_document = self.is_whole = True
        data, most = bytearray(), self.source.most_of_document(is_export=self.export is not None)
        try:
            with self.source.open() as stream:
                while block := stream.read(STEP):
                    data += block
                    if most is not None and len(data) > most:
                        raise ValueError(
                            f"it unpacks to more than {most >> 20:,} MiB of one document; unpack it to read all"
                        )
        except DAMAGED_ARCHIVE as error:
            self.note_damage(error)
        return bytes(data)

    def read_head(self, size: int) -> bytes:
        """Read the first `size` bytes of a document that is uncompressed; the rest may be read later."""
        self.is_document = True
        try:
            with self.source.open() as stream:
                data = stream.read(size)
        except OSError as error:
            self.note_damage(error)
            return b""
        self.head_stop, self.tail_start = len(data), self.source.text_size
        return data

    def sample(self, is_trace: Callable[[bytes], bool] = lambda _: False) -> bytes:
        """Read the whole lines within `policy.sample` bytes of both ends, or all; nothing where they cannot be read.

        `is_trace`: whether a file with this beginning has no lines, of which this beginning is all that is read here.
        Damage of an archive is found again, and reported, when the rest is read; an error of the system perhaps not.
        """
        size = self.policy.sample
        try:
            with self.source.open() as stream:
                data = stream.read(SAMPLED_WHOLE * size if self.is_sampled_whole else size)
                self.beginning = data[:BEGINNING]
                if is_trace(self.beginning):
                    return data
                self.export = exports.reader_of(data)
                middle = b"" if MARK in data else self._beginning_of_log(stream)
                if self.source.has_windows and not self.is_sampled_whole:
                    stream.seek(-size, 2)
                    data = _without_cut_lines(data, b"\n" + middle + _without_first_line(stream.read()))
                elif middle:
                    data = _without_cut_lines(data, b"\n" + middle)
        except DAMAGED_ARCHIVE as error:
            if is_system_error(error):
                self.note_damage(error)
            return b""
        return data

    def _beginning_of_log(self, stream: io.BufferedIOBase) -> bytes:
        """The whole lines of a sample from the first line of NCCL behind the beginning; nothing without one."""
        searched, held = 0, b""
        while self.policy.full or searched < SEARCHED:
            data = held + stream.read(STEP)
            if (place := data.find(MARK)) >= 0:
                found = data[data.rfind(b"\n", 0, place) + 1 :] + stream.read(self.policy.sample)
                return found[: found.rfind(b"\n", 0, self.policy.sample) + 1]
            if len(data) == len(held):
                break
            searched, held = searched + len(data) - len(held), data[-lines.EDGE :]
        return b""

    def text_of(self, sample: bytes) -> bytes:
        """The lines of text in a sample, taken out of the records that hold them."""
        if self.export is not None:
            rows, _ = exports.rows_of(sample, self.export, self.number)
        elif lines.has_brace_at_start(sample):
            rows = records.unwrap(lines.block(sample, 1))
        else:
            return sample
        return "\n".join(rows["text"]).encode()

    def _with_errors_reported(self, pieces: Iterator[Lines]) -> Iterator[Lines]:
        try:
            yield from pieces
        except DAMAGED_ARCHIVE as error:
            self.note_damage(error)
            self.is_whole = True  # asking for more of it is useless

    def note_damage(self, error: Exception) -> None:
        """Add to the problems, once, that not all bytes can be read."""
        where = f" after line {self.lines_read}" if self.lines_read else ""
        problem = f"is damaged{where}: {error}"
        if isinstance(error, OSError) and is_system_error(error):
            problem = f"cannot be read: {error.strerror}"
        if problem not in self.problems:
            self.problems.append(problem)

    def _begin(self) -> Iterator[Lines]:
        if self.is_binary:
            return
        if self.export is not None:
            yield self._read_export(self.export)
        elif not self.begins_with_windows:
            yield from self._read_whole()
        else:
            self.tail_start = self.source.text_size
            yield from self._grow(self.policy.window, self.policy.window)

    def _read_whole(self) -> Iterator[Lines]:
        try:
            with self.source.open() as stream:
                if self.is_sampled_whole and (stretch := self._stretch(stream, 0, self.source.text_size)):
                    self.is_whole = True
                    yield stretch
                    return
                is_long = self.source.has_windows and self.source.text_size > self.policy.chunk
                content = lines.ByteRange(stream, 0, self.source.text_size) if is_long else stream
                for rows in lines.blocks(content, self.number, self.policy.chunk):
                    yield self._counted(rows)
        except DAMAGED_ARCHIVE as error:
            self.note_damage(error)
        self.is_whole = True

    def _read_export(self, read: exports.Reader) -> pl.DataFrame:
        data = self.read_document()
        if exports.is_hollow(data):
            self.note_damage(ValueError("it holds next to nothing but empty objects, and is not read"))
            data = b""
        rows, in_file = exports.rows_of(data, read, self.number)
        self.is_document = False
        self.numbers.stretches.append((1, in_file))
        self.numbers.from_start = self.lines_read = rows.height
        rows = self.strip(rows) if self.strip else rows
        self._note_end(rows)
        return rows

    def _counted(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Take the lines of text out of lines of the file, without launcher prefixes, and count them."""
        in_file = lines.count(rows)
        self.is_cut |= bool(rows["cut"].any())
        rows = records.unwrap(rows)
        if self.strip:
            rows = records.unwrap(self.strip(rows))
        rows = self.numbers.number(rows, in_file)
        self.lines_read += lines.count(rows)
        self._note_end(rows)
        return rows

    def _note_end(self, rows: pl.DataFrame) -> None:
        """Keep what the last lines show, where these are the last ones of the source or as far as it was read."""
        if rows.height and (not self.is_windowed or int(rows["line"][-1]) == -1):
            self.blank_end = lines.blank_at_end("\n".join(rows["text"].tail(lines.MOST_BLANK).fill_null("")))
            times = rows[lines.TIME].drop_nulls().tail(1).to_list() if lines.TIME in rows.columns else []
            self.last_time = str(times[-1]) if times else self.last_time

    def bytes_between(self) -> Iterator[bytes]:
        """The bytes between the windows, some whole lines at a time. Raises OSError."""
        position, held = self.head_stop, b""
        with self.source.open() as stream:
            stream.seek(position)
            while data := stream.read(min(self.policy.window, self.tail_start - position)):
                position += len(data)
                data = held + data
                end = data.rfind(b"\n") + 1 or len(data)  # a line longer than a window is yielded in parts
                held = data[end:]
                yield data[:end]
        if held:
            yield held

    def _grow(self, head: int, tail: int) -> Iterator[Lines]:
        """Make the windows `head` and `tail` bytes long; a window never shrinks."""
        if self.is_whole or self.is_binary:
            return
        with self.source.open() as stream:
            stop = max(min(lines.line_start(stream, head, self.source.text_size), self.tail_start), self.head_stop)
            start = self._tail_start(stream, tail, stop)
            if stretch := self._stretch(stream, self.head_stop, stop):
                self.head_lines += stretch.height
                yield stretch
            else:
                grown = lines.ByteRange(stream, self.head_stop, stop)
                for rows in lines.blocks(grown, self.number, self.policy.chunk, self.head_lines + 1):
                    self.head_lines += lines.count(rows)
                    yield self._counted(rows)
            self.head_stop = stop
            if stretch := self._stretch(stream, start, self.tail_start, is_tail=True):
                self.tail_start = start
                self.tail_lines += stretch.height
                yield stretch
            while start < self.tail_start:
                begin = self._tail_start(stream, self.source.text_size - self.tail_start + self.policy.chunk, start)
                grown = lines.ByteRange(stream, begin, self.tail_start)
                rows = pl.concat(lines.blocks(grown, self.number, self.policy.chunk), how="diagonal")
                self.tail_start = begin
                yield self._counted(lines.shifted(rows, -(lines.count(rows) + self.tail_lines + 1)))
                self.tail_lines += lines.count(rows)
        self.is_whole = self.head_stop >= self.tail_start

    def _stretch(
        self, stream: io.BufferedIOBase, start: int, stop: int, *, is_tail: bool = False
    ) -> lines.Stretch | None:
        """These bytes as lines that are left to be split with those of other inputs; None where that is not possible.

        A few plain lines: rows of their own cost more than parsing them.
        """
        if self.strip or not 0 < stop - start <= SHORT * self.policy.chunk:
            return None
        stream.seek(start)
        data = stream.read(stop - start)
        height = data.count(b"\n")
        first = -(height + self.tail_lines) if is_tail else self.head_lines + 1
        if not lines.is_plain(data) or not self.numbers.count(first, height):
            stream.seek(start)
            return None
        self.lines_read += height
        if stop == self.source.text_size:
            self.blank_end = lines.blank_at_end(data.decode(errors="replace").removesuffix("\n"))
        return lines.Stretch(data, self.number, first, height)

    def _tail_start(self, stream: io.BufferedIOBase, tail: int, floor: int) -> int:
        """The first beginning of a line in the last `tail` bytes, not before `floor`.

        Where these bytes hold no beginning of a line, more bytes are taken.
        """
        size = self.source.text_size
        wants_more = tail > size - self.tail_start
        while True:
            start = min(max(lines.line_start(stream, size - tail, size), floor), self.tail_start)
            if start < self.tail_start or start == floor or not wants_more:
                return start
            tail *= 2

    def quote(self, wanted: list[int]) -> dict[int, tuple[int, str]]:
        """Read lines (negative: numbered from the end) a second time: number -> (number from the start, text)."""
        if self.is_document:  # all its records stand on one line; behind its beginning there may be private data
            return dict.fromkeys(wanted, (1, lines.shown(self.beginning[:QUOTED].partition(b"\n")[0])))
        return {line: (number, lines.shown(text)) for line, (number, text) in self.reread(wanted).items()}

    def reread(self, wanted: list[int]) -> dict[int, tuple[int, bytes]]:
        """Read lines a second time: number -> (number from the start, the beginning of the line)."""
        in_file = self.numbers.in_file(wanted)
        numbers = {line: number for line, number in in_file.items() if number > 0}
        texts, total, skipped = dict[int, bytes](), 0, 0
        try:
            if min(in_file.values()) < 0:
                total = self._count_lines()
                numbers = {line: number if number > 0 else total + 1 + number for line, number in in_file.items()}
            with self.source.open() as stream:
                if total and min(numbers.values()) > total - self.tail_lines:  # all stand in the window at the tail
                    stream.seek(self.tail_start)
                    skipped = total - self.tail_lines
                for number, text in _numbered(stream, {number - skipped for number in numbers.values()}):
                    texts[number + skipped] = texts.get(number + skipped, b"") + text
        except DAMAGED_ARCHIVE as error:
            if is_system_error(error):  # damage of an archive was reported when the lines were parsed
                self.note_damage(error)
        return {line: (number, texts[number]) for line, number in numbers.items() if number in texts}

    def _count_lines(self) -> int:
        total, last = 0, 10
        buffer = bytearray(STEP)
        with self.source.open() as stream:
            while size := stream.readinto(buffer):
                total, last = total + buffer.count(b"\n", 0, size), buffer[size - 1]
        return total + (last != 10)


def _without_cut_lines(head: bytes, tail: bytes) -> bytes:
    """Both ends of a file, without the lines that are cut in the middle of it."""
    return (head[: head.rfind(b"\n") + 1] or head + b"\n") + _without_first_line(tail)


def _without_first_line(data: bytes) -> bytes:
    return data[data.find(b"\n") + 1 :] or data[data.find(b"\r") + 1 :]  # of a bar that was rewritten, its last ones


def _numbered(stream: io.BufferedIOBase, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield lines by their number, from 1. A long line comes in pieces, and of each piece only the beginning."""
    number = 1
    while number <= max(wanted) and (data := stream.read(STEP)):
        end = number + data.count(b"\n")
        if any(number <= line <= end for line in wanted):
            for line, text in enumerate(data.split(b"\n"), number):
                if line in wanted and text:
                    yield line, lines.last_written(text)[: 4 * lines.SHOWN]
        number = end
