"""Lines that differ in a counter alone: what they say, each once, and where it is said.

A training loop prints the same calls again and again. Kept row by row, what they say would stand in memory as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ncclforensics.parsing.matching import distinct

CALL_TEMPLATE = "call_template"


@dataclass(frozen=True, slots=True)
class Repetition:
    """Some lines of one form."""

    said: pl.DataFrame  # what they say but for the counter, and the place of the first that says so
    # Of each line its number, the counter, what stood in front of it, and REPEATED: what it says, a row of `said`.
    lines: pl.DataFrame

    def unfolded(self) -> pl.DataFrame:
        """Every line with all that it says."""
        each = self.said.drop("line", "pos", strict=False)[self.lines[CALL_TEMPLATE]]
        return self.lines.drop(CALL_TEMPLATE).hstack(each)


def folded(rows: pl.DataFrame, own: Sequence[str]) -> Repetition:
    """What `unfolded` would make these rows of. `own`: the columns that each line has for itself."""
    each = [name for name in own if name in rows.columns]
    shared = [name for name in rows.columns if name not in each]
    said, place = distinct(rows, shared)
    once = said.drop(name for name in each if name not in ("line", "pos"))
    return Repetition(once, rows.select(each).with_columns(place.alias(CALL_TEMPLATE)))


def together(pieces: Sequence[Repetition]) -> Repetition:
    """All of them as one."""
    lines, start = [], 0
    for each in pieces:
        lines.append(each.lines.with_columns(pl.col(CALL_TEMPLATE) + pl.lit(start, pl.UInt32)))
        start += each.said.height
    return Repetition(pl.concat([each.said for each in pieces], how="diagonal"), pl.concat(lines, how="diagonal"))
