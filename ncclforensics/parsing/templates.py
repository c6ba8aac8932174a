"""Templates and occurrences: lines are cut where they differ, and what their rows share is stored once.

A training loop prints the same calls again and again; only a counter differs. Stored row by row, their text columns
would stand in memory as often. This module alone knows the encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from ncclforensics.grammar.template import Template
from ncclforensics.parsing.candidates import AS_WRITTEN

CALL_TEMPLATE = "call_template"  # the column of occurrences that holds the row number of their template
SAMPLE = 1_000  # lines at least that are compared but for their counter
OFTEN = 4  # times that each of these occurs where they are repeated


def distinct_rows(rows: pl.DataFrame, by: Sequence[str]) -> tuple[pl.DataFrame, pl.Series]:
    """The first of the rows that are equal in the columns `by`, and for every row the number of its first one.

    Equal means an equal 64-bit hash: comparing the texts themselves takes more than twice as long.
    """
    if rows.height <= 1:
        return rows, pl.Series([0] * rows.height, dtype=pl.UInt32)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    keys = rows[:, by].hash_rows().to_frame("hash").with_columns(number=number)
    first = keys.select(pl.col("number").first().over("hash")).to_series()
    is_first = first == keys["number"]
    return rows.filter(is_first), (is_first.cum_sum() - 1).cast(pl.UInt32)[first]


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


def are_repeated(rows: pl.DataFrame, parts: Template) -> bool:
    """Whether most of many lines are the same as others, but for the counter."""
    if rows.height < SAMPLE:
        return False
    sample = rows["text"].gather_every(rows.height // SAMPLE)
    rests = sample.str.splitn(parts.counter_stop, 2).struct.field("field_1").drop_nulls()
    return rests.n_unique() * OFTEN < len(rests)


def cut_once(rows: pl.DataFrame, parts: Template, *, is_open: bool, at_counter: bool) -> pl.DataFrame:
    """The lines that may match, cut around the counter alone or with the buffers behind it.

    Columns `left`, `counter`, `right`.
    """
    own, following = (parts.counter, parts.counter_stop) if at_counter else (parts.own[0], parts.stops[0])
    text, start, stop, differs = pl.col("text"), pl.col("start"), pl.col("stop"), pl.col("counter")
    data = text.cast(pl.Binary).bin
    found = (
        rows.lazy()
        .with_row_index("row")
        .with_columns(
            start=text.str.find(parts.starts[0], literal=True) + len(parts.starts[0].encode()),
            stop=text.str.find(following, literal=True),
        )
        .filter((start < stop) & ~pl.col("cut") if is_open else start < stop)
        .with_columns(
            left=data.head(start),
            counter=data.slice(start, stop - start).cast(pl.String, strict=False),
            right=data.slice(stop),
        )
        .filter(differs.str.contains(own))
    )
    if not at_counter:
        end = differs.str.find(parts.counter_stop, literal=True)
        found = found.with_columns(counter=differs.cast(pl.Binary).bin.head(end).cast(pl.String))
    return found.collect(optimizations=AS_WRITTEN)


def shared_parts(rows: pl.DataFrame, parts: Template) -> pl.DataFrame:
    """The lines that may match, cut into the parts `shared_0`, `shared_1` … between those that differ in each line."""
    text = pl.col("text")
    found = rows.lazy().with_row_index("row")
    edges = []  # positions in bytes: where each own part begins, and where it ends
    for place, (before, following) in enumerate(zip(parts.starts, parts.stops, strict=True)):
        start, stop = f"start_{place}", f"stop_{place}"
        end = text.str.find(following, literal=True) if following else text.str.len_bytes()
        found = found.with_columns(
            (text.str.find(before, literal=True) + len(before.encode())).alias(start), end.alias(stop)
        )
        edges += [pl.col(start), pl.col(stop)]
    data = text.cast(pl.Binary).bin
    pieces = [
        data.slice(start, stop - start).cast(pl.String, strict=False) for start, stop in pairwise([pl.lit(0), *edges])
    ]
    shared = {f"shared_{place}": piece for place, piece in enumerate(pieces[::2])}
    is_own = [piece.str.contains(regex) for piece, regex in zip(pieces[1::2], parts.own, strict=True)]
    in_order = [before <= after for before, after in pairwise(edges)]
    found = found.filter(pl.all_horizontal(in_order)).filter(pl.all_horizontal(is_own)).with_columns(**shared)
    return found.collect(optimizations=AS_WRITTEN)
