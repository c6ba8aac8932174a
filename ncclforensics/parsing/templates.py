"""Templates and occurrences: rows that differ in few columns, with what they share stored once.

A training loop prints the same calls again and again; only a counter differs. Stored row by row, their text columns
would stand in memory as often. This module alone knows the encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

CALL_TEMPLATE = "call_template"  # the column of occurrences that holds the row number of their template


def distinct_rows(rows: pl.DataFrame, by: Sequence[str]) -> tuple[pl.DataFrame, pl.Series]:
    """The first of the rows that are equal in the columns `by`, and for every row the number of its first one.

    Equal means an equal 64-bit hash: comparing the texts themselves takes more than twice as long.
    """
    if rows.height <= 1:
        return rows, pl.Series([0] * rows.height, dtype=pl.UInt32)
    numbers = pl.int_range(rows.height, dtype=pl.UInt32, eager=True)
    keys = pl.DataFrame({"number": numbers, "hash": rows.select(by).hash_rows()})
    first = keys.select(pl.col("number").first().over("hash")).to_series()
    is_first = first == numbers
    return rows.filter(is_first), (is_first.cum_sum() - 1).cast(pl.UInt32).gather(first)


class EncodedRows(NamedTuple):
    """Rows of one frame, as templates and their occurrences."""

    templates: pl.DataFrame  # distinct values of the shared columns, and the place of the first row that has them
    occurrences: pl.DataFrame  # the other columns of every row, and CALL_TEMPLATE: a row of `templates`

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.occurrences.height

    def decode(self) -> pl.DataFrame:
        """All rows with all columns."""
        templates = self.templates.drop("line", "pos", strict=False)
        return self.occurrences.drop(CALL_TEMPLATE).hstack(templates[self.occurrences[CALL_TEMPLATE]])


def encode(rows: pl.DataFrame, own: Sequence[str]) -> EncodedRows:
    """Encode rows so that `decode` gives them back. `own`: the columns that every row keeps for itself."""
    kept = [name for name in own if name in rows.columns]
    shared = [name for name in rows.columns if name not in kept]
    first_rows, template = distinct_rows(rows, shared)
    templates = first_rows.drop(name for name in kept if name not in ("line", "pos"))
    return EncodedRows(templates, rows.select(kept).with_columns(template.alias(CALL_TEMPLATE)))


def concat(pieces: Sequence[EncodedRows]) -> EncodedRows:
    """Concatenate encoded rows; equal templates of different pieces stay separate."""
    occurrences, start = [], 0
    for piece in pieces:
        occurrences.append(piece.occurrences.with_columns(pl.col(CALL_TEMPLATE) + pl.lit(start, pl.UInt32)))
        start += piece.templates.height
    templates = pl.concat([piece.templates for piece in pieces], how="diagonal")
    return EncodedRows(templates, pl.concat(occurrences, how="diagonal"))
