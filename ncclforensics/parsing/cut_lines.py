"""Detect the width at which the lines of an input were cut: what is longer lost its end, as in a copy of a screen.

Neither `less -S` nor a column of a web page keeps what stands to the right of it. Length alone does not show this, for
the calls of a log have equal lengths, too: many of the longest lines match no shape, and they are of several kinds.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.wrapped_lines import MIN_WIDTH, is_known, is_recognised

MIN_CUT = 6  # lines of a sample that are as long as the width and match no shape
MIN_KINDS = 2  # of them, by their first words: NCCL may print one long line many times that no shape matches
MIN_SHARE = 0.2  # of the lines of this length; of others only a last number was cut
MAX_TRIED = 200


def detect_cut_widths(texts: pl.DataFrame, dialect: Dialect) -> dict[int, int]:
    """The width at which the lines of inputs were cut: number -> characters.

    `texts`: lines of samples without prefixes of launchers (columns `source`, `text`, and the `length` with prefixes).
    """
    known = texts.filter(is_known(dialect, "text"))
    longest = known.filter(pl.col("length") == pl.col("length").max().over("source"), pl.col("length") >= MIN_WIDTH)
    tried = longest.filter(pl.len().over("source") >= MIN_CUT).group_by("source", maintain_order=True).head(MAX_TRIED)
    if tried.is_empty():
        return {}
    message = pl.col("text").str.splitn(dialect.prefix_marker, 2).struct.field("field_1")
    kind = message.str.split(" ").list.get(1, null_on_oob=True)  # the word behind the level
    tried = tried.with_columns(kind=kind, is_cut=~is_recognised(tried["text"], dialect))
    widths = tried.group_by("source").agg(
        pl.col("length").first(),
        pl.col("is_cut").sum().alias("lines"),
        pl.col("is_cut").mean().alias("share"),
        kinds=pl.col("kind").filter("is_cut").n_unique(),
    )
    is_enough = (pl.col("lines") >= MIN_CUT) & (pl.col("share") >= MIN_SHARE) & (pl.col("kinds") >= MIN_KINDS)
    return dict(widths.filter(is_enough).select("source", "length").iter_rows())


def mark_cut(rows: pl.DataFrame, width: int) -> pl.DataFrame:
    """Mark the lines of one input that were cut at a width."""
    return rows.with_columns(cut=pl.col("cut") | (pl.col("text").str.len_chars() == width))
