"""The columns of parsed frames, and one frame made of the pieces that were parsed of it, in the order of lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol, TypeVar

import polars as pl

from ncclforensics.frames.columns import ORIGIN, SOURCE_BITS, TAIL_OFFSET, no_rows, with_all_columns
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.grammar_file import grammar_of, load

LONG = 256  # rows of a source; of shorter stretches, sorting all rows costs less than handling each stretch


class HasHeight(Protocol):
    """Something with rows."""

    @property
    def height(self) -> int:
        """The number of its rows."""


Piece = TypeVar("Piece", bound=HasHeight)


def concat_small(pieces: Sequence[Piece], small: int, concat: Callable[[list[Piece]], Piece]) -> list[Piece]:
    """Concatenate the pieces of fewer than `small` rows; a call of Polars costs more than it does on few rows."""
    few = [piece for piece in pieces if 0 < piece.height < small]
    many = [piece for piece in pieces if piece.height >= max(small, 1)]
    return ([concat(few)] if few else []) + many


def with_positions(rows: pl.DataFrame, ends: pl.Series) -> pl.DataFrame:
    """Add `pos`, and number lines from the start where that is known.

    `ends`: one more than the number of lines of every source, or 0 while it is unknown.
    """
    line, source = pl.col("line"), pl.col("source").cast(pl.Int64)
    pos = line.cast(pl.Int64) + source * (1 << SOURCE_BITS)
    if (rows["line"] > 0).all():
        return rows.with_columns(pos=pos)
    is_from_end = line < 0
    from_start = pl.when(is_from_end).then(line + ends.gather(rows["source"])).otherwise(line)
    placed = rows.with_columns(line=from_start, pos=pl.when(is_from_end).then(TAIL_OFFSET).otherwise(0))
    return placed.with_columns(pos=pl.col("pos") + pos)


def assemble(pieces: list[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Assemble pieces that have a `pos` into one frame in its order; `pieces` is emptied.

    The work is done column by column, so that never more than one column stands in memory twice.
    """
    if len(pieces) > 1:
        pieces[:] = [stretch for rows in pieces for stretch in _by_source(rows)]
        pieces.sort(key=lambda rows: rows["pos"][0])
    pos = pl.concat([rows["pos"] for rows in pieces])
    order = None
    if not pos.is_sorted():
        order = pos.to_frame().select(pl.arg_sort_by("pos", maintain_order=True)).to_series()
    columns = []
    known = {name for rows in pieces for name in rows.columns}
    for name in [column for column in schema if column in known]:
        parts = [
            rows.drop_in_place(name).cast(schema[name])
            if name in rows.columns
            else pl.Series(name, [None], dtype=schema[name]).new_from_index(0, rows.height)
            for rows in pieces
        ]
        # One chunk, of one piece, too: Polars 2.1 panics in `pl.format` after a filter that emptied a chunk.
        column = (pl.concat(parts) if len(parts) > 1 else parts[0]).rechunk()
        columns.append(column if order is None else column[order])
    pieces.clear()
    return with_all_columns(pl.DataFrame(columns), schema)


def labels_of(dialect: Dialect) -> dict[str, pl.DataType]:
    """The columns of launcher prefixes."""
    return {label: base.dtype for label, base in dialect.labels.items()}


@cache
def parsed_schema(dialect: Dialect, name: str) -> Mapping[str, pl.DataType]:
    """The columns of a parsed frame. Raises KeyError if there is none of this name."""
    grammar = grammar_of(name)
    for shape in (*dialect.shapes, *(load(grammar).shapes if grammar else ())):
        if shape.frame == name:
            return {**ORIGIN, **labels_of(dialect), **shape.schema}
    raise KeyError(name)


@cache
def no_lines(dialect: Dialect, name: str) -> pl.DataFrame:
    """A parsed frame without rows: made once, for most frames of a run are empty."""
    return no_rows(parsed_schema(dialect, name))


def _by_source(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Cut rows where another source begins, if that leaves long stretches: these are most often in order already."""
    lengths = (rows["pos"] // (1 << SOURCE_BITS)).rle().struct.field("len")
    if lengths.len() * LONG > rows.height:
        return [rows]
    return [rows.slice(end - length, length) for length, end in zip(lengths, lengths.cum_sum(), strict=True)]
