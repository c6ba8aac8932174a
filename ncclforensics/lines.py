"""Bytes become numbered lines: cut at `\\n`, decoded, escape sequences and control bytes removed, damage marked.

Nothing here knows NCCL. A line is what ends with `\\n` (a lone `\\r` does not end one); numbers start at 1. A line of
the window at the end of a file, whose middle was not read, is numbered from the end: -1 is the last line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import polars as pl

CHUNK = 8 << 20  # bytes read at once
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

SCHEMA = {"line": pl.Int64(), "text": pl.String(), "damaged": pl.Boolean()}


@dataclass(frozen=True, slots=True)
class Block:
    """A run of lines: columns `line`, `text`, `damaged`; `cut` if its last line has no `\\n`."""

    rows: pl.DataFrame
    cut: bool


def printable(text: str) -> str:
    """Text that is safe on a terminal: no escape sequence, no control character."""
    return str(_cleaned(pl.Series([text]))[0])


def _cleaned(texts: pl.Series) -> pl.Series:
    return (
        texts.str.replace_all(_ESCAPES, "")
        .str.replace_all("\r", " ", literal=True)
        .str.replace_all("\t", " ", literal=True)
        .str.replace_all(_CONTROLS, "")
    )


def block(data: bytes, first: int, *, torn_before: bool = False) -> Block:
    """The lines of `data`, numbered from `first` on.

    `torn_before`: the first line lost its end (it was longer than the reader keeps).
    """
    cut = bool(data) and not data.endswith(b"\n")
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    if data.isascii() and not any(byte in data for byte in _SUSPECT):
        texts = pl.read_lines(data).to_series()
        damaged = pl.repeat(False, texts.len(), dtype=pl.Boolean, eager=True)
    else:
        raw = pl.read_lines(data.decode("utf-8", "replace").encode()).to_series()
        damaged = raw.str.contains("\ufffd", literal=True) | raw.str.contains("\x00", literal=True)
        texts = _cleaned(raw)
    too_long = texts.str.len_bytes() > LONGEST
    if too_long.any():
        texts, damaged = texts.str.slice(0, LONGEST), damaged | too_long
    rows = pl.DataFrame(
        {"line": pl.int_range(first, first + texts.len(), dtype=pl.Int64, eager=True), "text": texts, "damaged": damaged}
    )
    if torn_before and rows.height:
        rows = rows.with_columns(damaged=pl.col("damaged") | (pl.int_range(pl.len()) == 0))
    return Block(rows, cut)


def blocks(stream: BinaryIO, chunk: int = CHUNK) -> Iterator[Block]:
    """All lines of a stream in bounded memory, whatever the length of a line."""
    first, held, clipped = 1, b"", False
    while data := stream.read(chunk):
        end = data.rfind(b"\n") + 1
        if not end:  # inside a line that is longer than a chunk: keep its beginning only
            held = held or data[: LONGEST + 1]
            if len(held) < LONGEST:
                held += data[: LONGEST + 1 - len(held)]
            clipped = True
            continue
        if clipped:
            data, clipped_end = held + data[data.find(b"\n") :], True
        else:
            data, clipped_end = held + data, False
        end = data.rfind(b"\n") + 1
        made = block(data[:end], first, torn_before=clipped_end)
        first, held, clipped = first + made.rows.height, data[end:], False
        yield made
    if held:
        yield block(held, first, torn_before=clipped)


def window(stream: BinaryIO, start: int, stop: int, first: int | None) -> Block:
    """The lines of `stream[start:stop]`; numbered from `first` on, or from the end of the file if None."""
    stream.seek(start)
    data = stream.read(stop - start)
    if first is not None:
        return block(data, first)
    made = block(data, 0)
    return Block(made.rows.with_columns(pl.col("line") - made.rows.height), made.cut)


def line_start(stream: BinaryIO, position: int, size: int) -> int:
    """The first beginning of a line at or after `position` (`size` if there is none)."""
    if position <= 0:
        return 0
    stream.seek(position - 1)
    while data := stream.read(1 << 16):
        if (at := data.find(b"\n")) >= 0:
            return stream.tell() - len(data) + at + 1
    return size
