r"""Split bytes into numbered, decoded lines; remove escape sequences and control bytes, and mark damage.

Cleaning takes longer than splitting, and a line that matches a pattern is clean: so it is a step of its own
(`cleaned`), for lines that match nothing as they are. A line ends
with `\n` (a lone `\r` does not end one); numbers start at 1. A line of the window at the end of a file, whose middle
was not read, is numbered from the end: -1 is the last line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import polars as pl

from ncclforensics.data.typography import CONTROLS, ESCAPES
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE

CHUNK = 8 << 20  # bytes read at once
SHOWN = 500  # characters of a line that evidence quotes
LITTLE = 128 << 10  # bytes
EDGE = 4096  # bytes in which a line is expected to end
PICKLE_STARTS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))  # no text
LONGEST = 1 << 22  # bytes kept of one line; a collector may put a whole log into one

_STRANGE = r"[^ -~]"
_PLAIN_BYTES = bytes([10, *range(32, 127)])

SCHEMA = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "text": pl.String(),
    "damaged": pl.Boolean(),  # undecodable, with NUL bytes, or too long to be kept
    "cut": pl.Boolean(),  # the last line of the source, and without its `\n`
}


# Columns of a line that stands for equal ones behind it, which were counted and dropped; absent where none was.
REPEATS, LAST = "repeats", "last_line"  # how many lines, and the number of the last of them that was kept
BLANK_RUN = b"\n" * 4096  # so many blank lines are not read one by one
TIME = "launcher_time"
SAYS_NOTHING, MOST_BLANK = " \t\r\n-=*_#~", 8  # signs with which rules are drawn; and of lines, so many are looked at


def count(rows: pl.DataFrame) -> int:
    """How many lines these rows stand for."""
    return rows.height + int(rows[REPEATS].sum() or 0 if REPEATS in rows.columns else 0)


def shifted(rows: pl.DataFrame, by: int) -> pl.DataFrame:
    """The rows with all their line numbers changed by this much."""
    return rows.with_columns(pl.col(name) + by for name in ("line", LAST) if name in rows.columns)


def last_written(raw: bytes) -> bytes:
    """What a terminal shows in the end of a long line that a progress bar wrote again and again; any other as it is."""
    return raw.strip().rpartition(b"\r")[2] if len(raw) > SHOWN else raw


def shown(raw: bytes) -> str:
    """A line as evidence quotes it: without control characters but for tabs, 500 characters at most."""
    text = last_written(raw)[: 4 * SHOWN].decode("utf-8", "replace").rstrip("\r\n")
    if text.isascii() and text.isprintable():
        return text.strip()[:SHOWN]
    return re.sub(CONTROLS, "", re.sub(ESCAPES, "", text).replace("\r", "")).strip()[:SHOWN]


def _cleaned(texts: pl.Series) -> pl.Series:
    return (
        texts.str.strip_chars_end("\r\x00")  # of a line end in UTF-16, `\r\0\n\0`, the newline alone was removed
        .str.replace_all(ESCAPES, "")
        .str.strip_chars_start("\r")  # a progress bar begins at the left margin: it continues no line above it
        .str.replace_all("\r", " ", literal=True)
        .str.replace_all("\t", " ", literal=True)
        .str.replace_all(CONTROLS, "")
    )


def _with_line_feeds(data: bytes) -> bytes:
    """Text whose lines end with a line feed alone."""
    # searching one byte is thirty times faster than searching two
    return data.replace(b"\r\n", b"\n") if b"\r" in data else data


def _split(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").split("\n")
    return lines if lines[-1] else lines[:-1]


def _decoded(data: bytes) -> pl.Series:
    if len(data) < LITTLE:  # starting Polars' reader takes longer than splitting so few bytes
        return pl.Series("text", _split(data), dtype=pl.String)
    return pl.read_lines(data if data.isascii() else data.decode("utf-8", "replace").encode()).to_series()


def block(data: bytes, first: int, source: int = 0) -> pl.DataFrame:
    """The lines of `data` (columns: SCHEMA) as they are, numbered from `first` on; see `cleaned`."""
    is_cut = data not in (b"", b"\0") and not data.endswith((b"\n", b"\n\0"))  # UTF-16 ends in a NUL
    data = _with_line_feeds(data)
    too_long = []
    if _has_long_line(data):
        pieces = data.removesuffix(b"\n").split(b"\n")
        too_long = [place for place, line in enumerate(pieces) if len(line) > LONGEST]
        data = b"".join(line[:LONGEST] + b"\n" for line in pieces)
    text = _decoded(data)
    no = pl.Series([False]).new_from_index(0, text.len())
    return pl.DataFrame(
        {
            "source": pl.Series([source], dtype=SCHEMA["source"]).new_from_index(0, text.len()),
            "line": pl.int_range(first, first + text.len(), dtype=pl.Int32(), eager=True),
            "text": text,
            "damaged": no.clone().scatter(too_long, True) if too_long else no,
            "cut": no.clone().scatter(text.len() - 1, True) if is_cut else no,
        }
    )


class Stretch(NamedTuple):
    """Some whole lines of one source, as bytes that `of_stretches` splits together with those of other sources."""

    data: bytes
    source: int
    first: int  # number of the first line
    height: int  # how many lines these are


def blank_at_end(text: str) -> int:
    """Return how many of the last lines say nothing: they are blank, or drawn with one sign."""
    return text.count("\n", len(text.rstrip(SAYS_NOTHING)))


def is_plain(data: bytes) -> bool:
    """Whether these are whole lines of text, and no record, long line or long run of blank lines among them."""
    return data.endswith(b"\n") and not has_brace_at_start(data) and len(data) <= LONGEST and BLANK_RUN not in data


def has_brace_at_start(data: bytes) -> bool:
    """Whether a line begins as a record does."""
    # searching one byte is twenty times faster than searching two
    return data.startswith(b"{") or (b"{" in data and b"\n{" in data)


def of_stretches(stretches: Sequence[Stretch]) -> pl.DataFrame:
    """The lines of plain stretches (columns: SCHEMA); for many short ones one call costs a tenth of one call each."""
    rows = block(b"".join(stretch.data for stretch in stretches), 0)
    heights = [stretch.height for stretch in stretches]
    table = pl.DataFrame(
        {
            "source": pl.Series([stretch.source for stretch in stretches], dtype=SCHEMA["source"]),
            "height": pl.Series(heights, dtype=pl.Int32),
            "shift": pl.Series([stretch.first for stretch in stretches], dtype=SCHEMA["line"]),
        }
    ).with_columns(shift=pl.col("shift") - pl.col("height").cum_sum().shift(fill_value=0))
    owned = table.select(pl.col("source", "shift").repeat_by("height").explode())
    return rows.with_columns(owned["source"], line=rows["line"] + owned["shift"])


def _has_long_line(data: bytes) -> bool:
    start = 0
    while len(data) - start > LONGEST:
        end = data.rfind(b"\n", start, start + LONGEST + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def texts(samples: Mapping[int, bytes]) -> pl.DataFrame:
    """The lines of some sources, cleaned: columns `source` and `text`."""
    plain = [_with_line_feeds(data if data.endswith(b"\n") else data + b"\n") for data in samples.values()]
    data = b"".join(plain)
    text = _decoded(data).alias("text")
    # to search the bytes for others than these takes a fifth of the time of searching the texts
    if data.translate(None, _PLAIN_BYTES) and (needs := is_strange(text)).any():
        text = text.scatter(needs.arg_true(), _cleaned(text.filter(needs)))
    source = pl.Series("source", list(samples), dtype=SCHEMA["source"])
    heights = pl.Series([own.count(b"\n") for own in plain], dtype=pl.UInt32)
    return pl.DataFrame([source.repeat_by(heights).explode(), text])


def is_strange(texts: pl.Series) -> pl.Series:
    """Whether a text has characters that may have to be cleaned."""
    return texts.str.contains(_STRANGE)


def cleaned(rows: pl.DataFrame) -> pl.DataFrame:
    """Remove escape sequences and control bytes, and mark undecodable lines as damaged.

    Idempotent. Lines that were changed come last.
    """
    needs = is_strange(rows["text"])
    if not needs.any():
        return rows
    strange = rows.filter(needs)
    text = strange["text"]
    has_nul = text.str.contains("\x00", literal=True)
    text = _cleaned(text)
    is_unreadable = text.str.contains("\ufffd", literal=True) | has_nul
    strange = strange.with_columns(text=text, damaged=strange["damaged"] | is_unreadable)
    return pl.concat([rows.filter(~needs), strange])


class Readable(Protocol):
    """A stream of bytes."""

    def read1(self, size: int, /) -> bytes:
        """Some bytes, at most `size`; none at the end."""
        ...


@dataclass(slots=True)
class ByteRange:
    """A range of bytes of a stream, as a stream of its own."""

    stream: io.BufferedIOBase
    start: int
    stop: int

    def read1(self, size: int, /) -> bytes:
        """Some bytes, at most `size`, and of whole lines if these are not long; none at the end."""
        size = min(size, self.stop - self.start)
        if getattr(self.stream, "is_sequential", False):
            self.stream.seek(self.start)
            data = self.stream.read(size)
            self.start += len(data)
            return data
        if size > EDGE and self.start + size < self.stop:
            self.stream.seek(self.start + size - EDGE)
            edge = self.stream.read(EDGE)
            size -= len(edge) - 1 - edge.rfind(b"\n") if b"\n" in edge else 0
        self.stream.seek(self.start)
        data = self.stream.read(size)
        self.start += len(data)
        return data


def _filled(stream: Readable, size: int) -> tuple[bytes, Exception | None]:
    """Read `size` bytes, or all there are; return an error instead of raising it, to keep the bytes before it."""
    pieces: list[bytes] = []
    try:
        while size > 0 and (piece := stream.read1(size)):
            pieces.append(piece)
            size -= len(piece)
            if size < EDGE and piece.endswith(b"\n"):
                break
    except DAMAGED_ARCHIVE as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def blocks(stream: Readable, source: int = 0, chunk: int = CHUNK, first: int = 1) -> Iterator[pl.DataFrame]:
    """All lines of a stream in bounded memory, whatever the length of a line.

    Raises one of DAMAGED_ARCHIVE, after the lines before the damage.
    """
    held, is_clipped, problem = b"", False, None
    while problem is None:
        data, problem = _filled(stream, chunk)
        if not data:
            break
        if b"\n" not in data:  # a line longer than a chunk: keep its beginning only, and that it was longer
            held = (held + data)[: LONGEST + 2] if not is_clipped else held
            is_clipped = len(held) > LONGEST + 1
            continue
        if is_clipped:
            data = data[data.find(b"\n") :]
        data = held + data
        end = data.rfind(b"\n") + 1
        for rows in _blocks_between_blanks(data[:end], first, source):
            first += count(rows)
            yield rows
        held, is_clipped = data[end:], False
    if held:
        yield block(held, first, source)
    if problem is not None:
        raise problem


def _blocks_between_blanks(data: bytes, first: int, source: int) -> Iterator[pl.DataFrame]:
    """The lines of `data`; of a long run of blank lines the first, which counts the others, and the last."""
    start = 0
    while (at := data.find(BLANK_RUN, start)) >= 0:
        at += 1  # what ends the line before
        stop = at
        while data.startswith(BLANK_RUN, stop):
            stop += len(BLANK_RUN)
        rest = data[stop : stop + len(BLANK_RUN)]
        stop += len(rest) - len(rest.lstrip(b"\n"))
        rows = block(data[start:at], first, source)
        yield rows
        first += rows.height
        blanks, start = stop - at, stop
        last = first + blanks - 1
        counts = {REPEATS: pl.Series([blanks - 2, None], dtype=pl.Int64), LAST: pl.Series([last, None], dtype=pl.Int32)}
        numbers = pl.Series([first, last], dtype=pl.Int32)
        yield block(b"\n\n", first, source).with_columns(line=numbers, **counts)
        first += blanks
    if start < len(data):
        yield block(data[start:], first, source)


def line_start(stream: io.BufferedIOBase, position: int, size: int) -> int:
    """The first beginning of a line at or after `position` (`size` if there is none)."""
    if position <= 0:
        return 0
    stream.seek(position - 1)
    while data := stream.read(1 << 16):
        if (at := data.find(b"\n")) >= 0:
            return stream.tell() - len(data) + at + 1
    return size
