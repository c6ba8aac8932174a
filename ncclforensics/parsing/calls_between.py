"""Count calls that are not kept: of the lines between windows, and in the middle of long logs.

A call line names its communicator between two literals. Counting such a text takes a twentieth of the time of parsing.
Where that is not enough, as for messages, lines are parsed, and of their calls those in the middle are counted
(`CountedStretches`): memory then follows communicators and peers, not calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from ncclforensics.data import names
from ncclforensics.grammar.template import Template
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing.templates import CALL_TEMPLATE, EncodedRows

POINTER = "comm"  # the column of a call that holds its communicator's pointer
CALLS_BETWEEN = {
    "source": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    POINTER: pl.Categorical(),
    "called": pl.Categorical(),  # null: collectives, counted without being parsed
    "root": pl.Int32(),  # the peer of a message; null for collectives
    "line": pl.Int32(),  # of the first of them; null: anywhere between the windows
    "last": pl.Int32(),
    "calls": pl.Int64(),  # null if they cannot be counted
}
MESSAGES = pl.Series(names.MESSAGES, dtype=pl.Categorical()).implode()
POINT_TO_POINT = pl.Series(names.POINT_TO_POINT, dtype=pl.Categorical()).implode()
# Lines between two calls by which a stretch of calls ends: a communicator may have been created there.
OTHER_LINES = 4
MOST_STRETCHES = 1 << 18  # rows; of more, the stretches of a file are joined


class CountedCalls(NamedTuple):
    """How many calls on each communicator stand between the windows."""

    calls: Mapping[str, int] = {}  # by pointer; nothing where they cannot be counted
    # Byte of the file behind the last line there that names a communicator and is no call: it creates or destroys one,
    # and a pointer may stand for two communicators, one after the other. 0 without one.
    named_until: int = 0


def count_calls(reader: InputReader, template: Template, pointers: Sequence[str]) -> CountedCalls:
    """Count the calls between the windows. `template`: that of a call; `pointers`: the communicators that windows show.

    Nothing is counted where calls are made on other communicators, too, or where a call is torn: the counter then
    stands on another line.
    """
    before, after = (literal.encode() for literal in template.around[POINTER])
    begin = template.starts[0].encode()
    texts = [before + pointer.encode() + after for pointer in pointers]
    calls = [0] * len(texts)
    position, named_until, has_others = reader.head_stop, 0, False
    try:
        for data in reader.bytes_between():
            position += len(data)
            found = [data.count(text) for text in texts]
            calls = [sum(pair) for pair in zip(calls, found, strict=True)]
            if data.count(b"\n") == sum(found):  # most often there is nothing else, and lines are counted fast
                continue
            named = data.count(before)
            has_others |= named != sum(found) or any(after in line and begin not in line for line in data.split(b"\n"))
            if named != data.count(after):
                named_until = position
    except OSError:  # reported when the rest is read
        return CountedCalls()
    is_counted = not (named_until or has_others)
    return CountedCalls(dict(zip(pointers, calls, strict=True)) if is_counted else {}, named_until)


class CountedStretches:
    """The calls of stretches of lines that were parsed, as counts of each communicator, kind of call and peer.

    A communicator may be created between the windows with the pointer of an earlier one, so that calls are counted by
    stretch: which of the two they are of, `analyses.job.calls.calls` knows when all lines have been read.
    """

    def __init__(self) -> None:
        self._rows: list[pl.DataFrame] = []
        self._height = 0
        self._most = MOST_STRETCHES

    def add(self, encoded: EncodedRows) -> None:
        """Count these calls."""
        templates, template = encoded.templates, encoded.occurrences[CALL_TEMPLATE]
        calls = pl.DataFrame({"line": encoded.occurrences["line"], "source": templates["source"].gather(template)})
        calls = calls.with_columns(template=template)
        is_new = (pl.col("line").diff().abs() > OTHER_LINES) | (pl.col("source").diff() != 0)
        calls = calls.with_columns(stretch=is_new.fill_null(False).cum_sum())
        counted = calls.group_by("template", "stretch").agg(
            pl.col("line").min(), last=pl.col("line").max(), calls=pl.len().cast(pl.Int64)
        )
        own = templates.select(name for name in CALLS_BETWEEN if name in templates.columns and name != "line")
        is_message = pl.col("called").is_in(MESSAGES)
        named = own[counted["template"]].with_columns(root=pl.when(is_message).then("root"))
        self.add_rows(_joined(named.hstack(counted.drop("template")), "stretch"))

    def add_rows(self, rows: pl.DataFrame) -> None:
        """Add counts (columns CALLS_BETWEEN)."""
        self._rows.append(rows)
        self._height += rows.height
        if self._height > self._most:
            self._rows = [_joined(pl.concat(self._rows))]
            self._height = self._rows[0].height
            self._most = max(MOST_STRETCHES, 2 * self._height)

    @property
    def rows(self) -> pl.DataFrame:
        """The counts, columns CALLS_BETWEEN."""
        return pl.concat([pl.DataFrame(schema=CALLS_BETWEEN), *self._rows])


def _joined(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """One row for all counts that are of the same kind of call (and equal in `by`)."""
    kind = ["source", "host", "pid", POINTER, "called", "root", *by]
    joined = rows.group_by(kind).agg(pl.col("line").min(), pl.col("last").max(), pl.col("calls").sum())
    return joined.select(pl.col(name).cast(dtype) for name, dtype in CALLS_BETWEEN.items())
