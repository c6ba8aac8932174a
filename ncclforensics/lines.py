r"""Bytes become numbered lines: cut at `\n`, decoded, escape sequences and control bytes removed, damage marked.

Nothing here knows NCCL. A line is what ends with `\n` (a lone `\r` does not end one); numbers start at 1. A line of
the window at the end of a file, whose middle was not read, is numbered from the end: -1 is the last line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import polars as pl

CHUNK = 8 << 20  # bytes read at once
SHOWN = 500  # characters of a line that evidence quotes
LONGEST = 1 << 16  # bytes kept of one line; nothing that NCCL prints comes near

# ECMA-48: CSI, OSC and the other strings, two-byte escapes.
_ESCAPES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]"
_SUSPECT = (b"\x1b", b"\x00", b"\r", b"\x08")

SCHEMA = {
    "source": pl.Int64(),
    "line": pl.Int64(),
    "text": pl.String(),
    "damaged": pl.Boolean(),  # undecodable, with NUL bytes, or too long to be kept
    "cut": pl.Boolean(),  # the last line of the source, and without its `\n`
}


def shown(raw: bytes) -> str:
    """A line as evidence shows it: safe on a terminal, 500 characters at most."""
    text = raw[: 4 * SHOWN].decode("utf-8", "replace").rstrip("\r\n")
    return str(_cleaned(pl.Series([text]))[0]).strip()[:SHOWN]


def _cleaned(texts: pl.Series) -> pl.Series:
    return (
        texts.str.replace_all(_ESCAPES, "")
        .str.replace_all("\r", " ", literal=True)
        .str.replace_all("\t", " ", literal=True)
        .str.replace_all(_CONTROLS, "")
    )


def block(data: bytes, first: int, source: int = 0, *, clipped: bool = False) -> pl.DataFrame:
    """The lines of `data` (columns: SCHEMA), numbered from `first` on.

    `clipped`: the first line lost its end, for it was longer than the reader keeps.
    """
    cut = bool(data) and not data.endswith(b"\n")
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    rows = pl.read_lines(data)
    if data.isascii() and not any(byte in data for byte in _SUSPECT):
        rows = rows.select(text="line", damaged=False)
    else:
        raw = pl.read_lines(data.decode("utf-8", "replace").encode()).to_series()
        damaged = raw.str.contains("\ufffd", literal=True) | raw.str.contains("\x00", literal=True)
        rows = pl.DataFrame({"text": _cleaned(raw), "damaged": damaged})
    too_long = pl.col("text").str.len_bytes() > LONGEST
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    return rows.select(
        source=pl.lit(source, dtype=pl.Int64),
        line=number + first,
        text=pl.when(too_long).then(pl.col("text").str.slice(0, LONGEST)).otherwise("text"),
        damaged=pl.col("damaged") | too_long | ((number == 0) & clipped),
        cut=(number == pl.len() - 1) & cut,
    )


def blocks(stream: BinaryIO, source: int = 0, chunk: int = CHUNK) -> Iterator[pl.DataFrame]:
    """All lines of a stream in bounded memory, whatever the length of a line."""
    first, held, clipped = 1, b"", False
    while data := stream.read(chunk):
        if b"\n" not in data:  # a line longer than a chunk: keep its beginning only
            room = LONGEST + 1 - len(held)
            clipped = clipped or len(data) > room
            held += data[: max(room, 0)]
            continue
        if clipped:
            data = data[data.find(b"\n") :]
        data = held + data
        end = data.rfind(b"\n") + 1
        rows = block(data[:end], first, source, clipped=clipped)
        first, held, clipped = first + rows.height, data[end:], False
        yield rows
    if held:
        yield block(held, first, source, clipped=clipped)


def window(stream: BinaryIO, start: int, stop: int, first: int | None, source: int = 0) -> pl.DataFrame:
    """The lines of `stream[start:stop]`; numbered from `first` on, or from the end of the file if None."""
    stream.seek(start)
    data = stream.read(stop - start)
    if first is not None:
        return block(data, first, source)
    rows = block(data, 0, source)
    return rows.with_columns(pl.col("line") - rows.height)


def line_start(stream: BinaryIO, position: int, size: int) -> int:
    """The first beginning of a line at or after `position` (`size` if there is none)."""
    if position <= 0:
        return 0
    stream.seek(position - 1)
    while data := stream.read(1 << 16):
        if (at := data.find(b"\n")) >= 0:
            return stream.tell() - len(data) + at + 1
    return size
