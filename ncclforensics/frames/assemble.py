"""Pieces of a frame, parsed by many readers, become one frame in the order of the lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import polars as pl

from ncclforensics.frames.columns import BEHIND_GAP, OWNER, SOURCE_BITS

FEW = 10_000  # rows; smaller pieces are put together before anything is computed on them
Piece = TypeVar("Piece")


def with_small_together(
    pieces: Sequence[Piece], height: Callable[[Piece], int], together: Callable[[list[Piece]], Piece]
) -> list[Piece]:
    """The pieces that have rows, all the small ones as one: a call of the engine costs more than what it looks at."""
    small = [each for each in pieces if 0 < height(each) < FEW]
    return ([together(small)] if small else []) + [each for each in pieces if height(each) >= FEW]


def in_order(rows: pl.DataFrame, ends: pl.Series) -> pl.DataFrame:
    """The rows with their true `line` and their `pos`. `ends`: the number behind each source's last line, or 0."""
    line, source = pl.col("line"), pl.col("source").cast(pl.Int64)
    pos = line.cast(pl.Int64) + source * (1 << SOURCE_BITS)
    if (rows["line"] > 0).all():
        return rows.with_columns(pos=pos)
    is_from_end = line < 0
    true = pl.when(is_from_end).then(line + ends.gather(rows["source"])).otherwise(line)
    placed = rows.with_columns(line=true, pos=pl.when(is_from_end).then(BEHIND_GAP).otherwise(0))
    return placed.with_columns(pos=pl.col("pos") + pos)


def renamed(rows: pl.DataFrame, hosts: Mapping[tuple[str, int], str]) -> pl.DataFrame:
    """The rows with the true names of hosts. `hosts`: (host as printed, pid) -> host."""
    if not hosts:
        return rows
    schema = {"host": pl.Categorical(), "pid": pl.Int32(), "true": pl.Categorical()}
    names = pl.DataFrame([(host, pid, true) for (host, pid), true in hosts.items()], schema=schema, orient="row")
    named = rows.join(names, on=OWNER, how="left", maintain_order="left")
    return named.with_columns(host=pl.coalesce("true", "host")).drop("true")


def joined(pieces: list[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """One frame of many that have a `pos`, in its order; the list is emptied.

    They are joined and put in order column by column, so that never more than one column stands in memory twice.
    """
    if len(pieces) > 1:
        pieces[:] = [stretch for rows in pieces for stretch in _stretches(rows)]
        pieces.sort(key=lambda rows: rows["pos"][0])
    pos = pl.concat([rows["pos"] for rows in pieces])
    order = None
    if not pos.is_sorted():
        order = pos.to_frame().select(pl.arg_sort_by("pos", maintain_order=True)).to_series()
    columns = []
    for name in [each for each in schema if any(each in rows.columns for rows in pieces)]:
        parts = [
            rows.drop_in_place(name).cast(schema[name])
            if name in rows.columns
            else pl.Series(name, [None], dtype=schema[name]).new_from_index(0, rows.height)
            for rows in pieces
        ]
        column = pl.concat(parts, rechunk=True)
        columns.append(column if order is None else column.gather(order))
    pieces.clear()
    return completed(pl.DataFrame(columns), schema)


def completed(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The rows with all columns; one of nothing is kept as one value, not as one per row."""
    absent = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in schema.items() if name not in rows.columns]
    return rows.with_columns(absent).select(list(schema))


def _stretches(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """The same rows, cut where another source begins: those of a source may stand between another piece's."""
    lengths = (rows["pos"] // (1 << SOURCE_BITS)).rle().struct.field("len")
    return [rows.slice(end - length, length) for length, end in zip(lengths, lengths.cum_sum(), strict=True)]
