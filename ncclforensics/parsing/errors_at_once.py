"""Read the last line of a traceback that several processes printed at the same moment, into one line.

Python writes the name of an error, the colon, the message and the end of the line one by one to stderr (traceback.c,
print_exception), so that two ranks that fail alike leave `KeyErrorKeyError: : 'a''a'`.
"""

from __future__ import annotations

import polars as pl

COLON = ": "
DOT = "."
SAME = 16  # characters by which the beginning of the next message is found, where messages differ in numbers


def errors_at_once(unknown: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of `unknown` that hold one error several times, with it once as text."""
    rows = unknown.filter(pl.col("text").str.contains(COLON * 2, literal=True))
    mended = pl.Series("text", [_once(text) for text in rows["text"]], pl.String)
    return rows.with_columns(mended).drop_nulls("text")


def _once(text: str) -> str | None:
    """The error that a text holds several times; null where it does not."""
    names, _, rest = text.partition(COLON * 2)
    times = 2
    while rest.startswith(COLON):
        times, rest = times + 1, rest.removeprefix(COLON)
    parts = [_part(part, times) for part in names.split(DOT * times)]
    if not names or None in parts:
        return None
    message = _part(rest, times) or rest[: max(rest.find(rest[:SAME], 1), 0)]
    return f"{DOT.join(filter(None, parts))}{COLON}{message}" if message else None


def _part(text: str, times: int) -> str | None:
    """What a text repeats this often; null where it does not."""
    part = text[: len(text) // times]
    return part if part and part * times == text else None
