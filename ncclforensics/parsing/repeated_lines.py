"""Collapse floods: of many equal lines keep the first and the last, and count the others.

A thread of NCCL that does not give up prints the same line hundreds of thousands of times a second, and such logs
have gigabytes. Their cost must follow what is different in them. So equal lines are counted in the bytes that are read
at once, before they are matched, and the middle of a flood is dropped there. It has no effect on findings:

- only lines of shapes that mean the same however often they are repeated (`// repeated:` in a grammar) are dropped,
  and lines that no shape matches;
- a line stays where another line is near, whose rest it may be, or which it may announce.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.lines import LAST, REPEATS
from ncclforensics.parsing.candidates import contains_prefix
from ncclforensics.parsing.matching import match, messages

NEAR = 3  # lines before and after a line of another text that are kept, too
TIMES = ("launcher_time",)
TO_THE_SECOND = 19  # characters of a launcher's time: equal lines of one second are equal
DECISIONS = 100_000  # texts of which is remembered whether they may be dropped

REPEATED = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first of the equal lines
    LAST: pl.Int32(),
    REPEATS: pl.Int64(),  # equal lines that were counted and dropped, or lines that differ in numbers (alike_rows)
    "host": pl.Categorical(),  # null where the line names no process
    "pid": pl.Int32(),
    "time": pl.String(),  # as NCCL or the launcher printed it
    "message": pl.String(),  # the text without the prefix; null: the lines differ in numbers
}


@dataclass(slots=True)
class RepeatedLines:
    """Drops the middle of floods. `kept`: equal lines that are kept at each end of a flood."""

    kept: int
    _may_drop: dict[tuple[object, ...], bool] = field(default_factory=dict)  # by formats and a text of any process

    def collapse(self, rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
        """Drop lines of floods; the first line of each counts them (columns REPEATS and LAST).

        `rows`: lines of one dialect in their order. They may have been collapsed before, in parts.
        """
        many = 4 * self.kept
        if rows.height <= many:
            return rows
        numbered = _keys(rows, dialect).to_frame("key").with_row_index("row")
        groups = numbered.group_by("key").agg("row").filter(pl.col("row").list.len() > many)
        if groups.height:
            first_rows = groups["row"].list.first()
            groups = groups.filter(self._may_be_dropped(rows[first_rows], dialect))
        if groups.is_empty():
            return rows
        inside = groups.select(
            first=pl.col("row").list.first(),
            last=pl.col("row").list.last(),
            row=pl.col("row").list.slice(self.kept, pl.col("row").list.len() - 2 * self.kept),
        ).explode("row")
        inside = inside.filter(_is_among(groups["row"].explode(), rows.height)[inside["row"]])
        return _without(rows, inside) if inside.height else rows

    def _may_be_dropped(self, rows: pl.DataFrame, dialect: Dialect) -> pl.Series:
        """Whether lines equal to each of these may be dropped."""
        keys = [(dialect.detected, *key) for key in _alike_in_all_processes(rows, dialect).iter_rows()]
        decisions = {key: self._may_drop.get(key) for key in keys}
        undecided = {key: place for place, key in enumerate(keys) if decisions[key] is None}
        if undecided:
            decided = dict(zip(undecided, _mean_the_same(rows[list(undecided.values())], dialect), strict=True))
            decisions |= decided
            if len(self._may_drop) > DECISIONS:
                self._may_drop.clear()
            self._may_drop |= decided
        return pl.Series([decisions[key] for key in keys], dtype=pl.Boolean)


def _alike_in_all_processes(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """The texts without the numbers of their process, on which no decision depends: applying all patterns takes 50 ms.

    A line that stands for others already is told apart.
    """
    parts = rows["text"].str.splitn(dialect.prefix_marker, 2).struct.unnest()
    process = pl.col("field_0").str.replace_many(dict.fromkeys("123456789", "0"))
    stands_for_others = rows["launcher_repeats"].is_not_null() if "launcher_repeats" in rows.columns else False
    return parts.select(
        pl.when(pl.col("field_1").is_null()).then("field_0").otherwise(process), "field_1", pl.lit(stands_for_others)
    )


def _is_among(flooded: pl.Series, height: int) -> pl.Series:
    """Whether a line and the lines next to it, of so many, are all among these."""
    is_flooded = pl.repeat(False, height, eager=True).scatter(flooded, True)
    is_among = is_flooded.clone()
    for distance in range(1, NEAR + 1):
        is_among &= is_flooded.shift(distance).fill_null(False) & is_flooded.shift(-distance).fill_null(False)
    return is_among


def _without(rows: pl.DataFrame, dropped: pl.DataFrame) -> pl.DataFrame:
    """The lines without those that are dropped (columns `row`, `first`, `last`: row numbers), which are counted."""
    if REPEATS not in rows.columns:
        rows = rows.with_columns(pl.lit(None, pl.Int64).alias(REPEATS), pl.lit(None, rows["line"].dtype).alias(LAST))
    repeats = rows[REPEATS].fill_null(0)
    counted = dropped.with_columns(lines=repeats[dropped["row"]] + 1)
    floods = counted.group_by("first").agg(pl.col("lines").sum(), pl.col("last").first())
    last_line = pl.select(pl.coalesce(rows[LAST], rows["line"])).to_series()[floods["last"]]
    is_kept = pl.repeat(True, rows.height, eager=True).scatter(dropped["row"], False)
    return rows.with_columns(
        rows[REPEATS].scatter(floods["first"], floods["lines"] + repeats[floods["first"]]),
        rows[LAST].scatter(floods["first"], last_line),
    ).filter(is_kept)


def _keys(rows: pl.DataFrame, dialect: Dialect) -> pl.Series:
    """A hash of every line's source, text and launcher, and of its launcher's time to the second."""
    labels = [name for name in rows.columns if name in dialect.labels]
    exact = [name for name in labels if name not in TIMES]
    times = [pl.col(name).str.head(TO_THE_SECOND) for name in labels if name in TIMES]
    return rows.select("source", "text", *exact, *times).hash_rows()


def _mean_the_same(rows: pl.DataFrame, dialect: Dialect) -> list[bool]:
    """Whether each of these lines means the same however often it is repeated."""
    rows = rows.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    found = match(rows, dialect)
    other = {line for name, pieces in found.frames.items() if name not in dialect.collapsible for piece in pieces
             for line in piece["line"]}  # fmt: skip
    unknown = found.unknown
    is_torn = contains_prefix(unknown["text"], dialect) | unknown["damaged"]
    other |= set(unknown["line"].filter(is_torn))
    if "launcher_repeats" in rows.columns:  # such a line stands for others already
        other |= set(rows["line"].filter(rows["launcher_repeats"].is_not_null()))
    return [line not in other for line in rows["line"]]


@cache
def no_repeats() -> pl.DataFrame:
    """No line that stands for others (columns REPEATED)."""
    return pl.DataFrame(schema=REPEATED)


def repeated_lines(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """The lines that stand for a flood (columns REPEATED), of lines that were collapsed."""
    if REPEATS not in rows.columns:
        return no_repeats()
    first_lines = rows.filter(pl.col(REPEATS).is_not_null())
    times = [name for name in TIMES if name in rows.columns]
    found = first_lines.join(messages(first_lines, dialect), on=["source", "line"], maintain_order="left")
    found = found.with_columns(time=pl.coalesce("stamp", *times))
    return found.select(pl.col(name).cast(kind) for name, kind in REPEATED.items())


def without_counts(rows: pl.DataFrame) -> pl.DataFrame:
    """The lines without the columns that count what they stand for."""
    return rows.drop(REPEATS, LAST, strict=False)
