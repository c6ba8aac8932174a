"""The frame of the most frequent pattern (NCCL's calls), kept as templates and occurrences.

Analyses that need only what the lines have in common, or only where they stand, ask for the frame TEMPLATES or
OCCURRENCES and save decoding every line; `of_template` looks up columns of a line's template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import polars as pl

from ncclforensics.frames.assemble import assemble, with_positions
from ncclforensics.frames.columns import ORIGIN, with_all_columns, with_line
from ncclforensics.frames.process_names import ProcessNames
from ncclforensics.grammar.patterns import Shape
from ncclforensics.parsing import templates
from ncclforensics.parsing.templates import CALL_TEMPLATE, EncodedRows, distinct_rows

TEMPLATES, OCCURRENCES = CALL_TEMPLATE, "call_occurrence"
SLICE_ROWS = 1 << 19  # occurrences that an analysis processes at a time, to bound its memory


class TemplatedFrame(NamedTuple):
    """A parsed frame whose rows differ mostly in one column, `counter`."""

    shape: Shape
    counter: str
    labels: Mapping[str, pl.DataType]  # columns of launcher prefixes

    @property
    def frame(self) -> str:
        """Its name."""
        return self.shape.frame

    def encode(self, rows: pl.DataFrame) -> EncodedRows:
        """Encode parsed rows (without `pos`)."""
        return templates.encode(rows, ["line", self.counter, *self.labels])

    def decode(
        self, call_template: pl.DataFrame, call_occurrence: pl.DataFrame, schema: Mapping[str, pl.DataType]
    ) -> pl.DataFrame:
        """One row per line, with the columns of `schema`."""
        lines = with_line(call_occurrence).drop("source")
        return EncodedRows(call_template.drop("pos"), lines).decode().select(list(schema))

    def assemble(self, pieces: list[EncodedRows], ends: pl.Series, names: ProcessNames) -> dict[str, pl.DataFrame]:
        """The frames TEMPLATES and OCCURRENCES, both in the order of lines. `pieces` is emptied, to save memory."""
        shared = {name: dtype for name, dtype in self.shape.schema.items() if name != self.counter}
        counter = self.shape.schema[self.counter]
        columns = {CALL_TEMPLATE: pl.UInt32(), "pos": pl.Int64(), self.counter: counter, **self.labels}
        if not pieces:
            return {TEMPLATES: pl.DataFrame(schema={**ORIGIN, **shared}), OCCURRENCES: pl.DataFrame(schema=columns)}
        first_rows = with_positions(pl.concat([piece.templates for piece in pieces], how="diagonal"), ends)
        order = first_rows["pos"].arg_sort()
        ordered = names.replace_in(with_all_columns(first_rows, {**ORIGIN, **shared}))[order]
        call_template, template = distinct_rows(ordered, ["source", *shared])
        template = template.gather(order.arg_sort())
        occurrences, start = [], 0
        pieces.reverse()
        while pieces:
            piece = pieces.pop()
            rows = (piece.occurrences[CALL_TEMPLATE] + start).alias(CALL_TEMPLATE)
            placed = with_positions(piece.occurrences.with_columns(source=first_rows["source"].gather(rows)), ends)
            placed = placed.drop("source", "line")
            occurrences.append(placed.with_columns(template.gather(rows).alias(CALL_TEMPLATE)))
            start += piece.templates.height
        return {TEMPLATES: call_template, OCCURRENCES: assemble(occurrences, columns)}


def of_template(call_occurrence: pl.DataFrame, call_template: pl.DataFrame, column: str) -> pl.Series:
    """One column of the template of every occurrence."""
    return call_template[column].gather(call_occurrence[CALL_TEMPLATE])


def opcount_of(calls: pl.DataFrame, call_counter: pl.DataFrame) -> pl.Series:
    """The `opcount` of every call, by its `pos`; null for a call of another kind of line.

    Both are most often the same rows; else positions, which are in order, are looked up, in a fifth of a join's time.
    """
    positions, counters = call_counter["pos"], call_counter["opcount"]
    if calls["pos"].equals(positions) or positions.is_empty():
        return counters if counters.len() else counters.extend_constant(None, calls.height)
    places = positions.search_sorted(calls["pos"]).clip(upper_bound=positions.len() - 1)
    is_found = positions.gather(places) == calls["pos"]
    return pl.select(pl.when(is_found).then(counters.gather(places)).alias("opcount")).to_series()
