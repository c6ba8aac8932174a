"""Columns that frames have in common. Categories are compared with words as they are; only their text is searched."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

# `pos` orders the lines of one process, over all the files that hold them and both windows of each.
SOURCE_BITS = 40
BEHIND_GAP = 1 << (SOURCE_BITS - 1)
OWNER = ["host", "pid"]  # the process that a line is of
PLACE = [*OWNER, "source", "line"]  # and where it stands


def text_of(column: str) -> pl.Expr:
    """The text of a column of words: to search in it, to cut it, and to sort by it whatever the order of the lines."""
    return pl.col(column).cast(pl.String)


def begins_with(column: str, texts: Iterable[str]) -> pl.Expr:
    """Whether a word begins with one of these texts; null where there is none."""
    return pl.any_horizontal(text_of(column).str.starts_with(text) for text in texts)


def short_host(column: str) -> pl.Expr:
    """A host's name without its domain."""
    return text_of(column).str.split(".").list.first()


def places_of(lines: pl.DataFrame) -> pl.Series:
    """Every `pos` that lines (columns `source`, `line`) may have."""
    at = lines.select(pos=pl.col("source").cast(pl.Int64) * (1 << SOURCE_BITS) + pl.col("line"))["pos"]
    return pl.concat([at, at + BEHIND_GAP])


def with_line(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with the `source` and the `line` that their `pos` stands for."""
    line = pl.col("pos") % (1 << SOURCE_BITS)
    line = pl.when(line < BEHIND_GAP >> 1).then(line).otherwise(line - BEHIND_GAP)
    source = pl.col("pos") // (1 << SOURCE_BITS)
    return rows.with_columns(source=source.cast(pl.Int32), line=line.cast(pl.Int32))
