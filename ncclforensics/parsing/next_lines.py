"""The lines that may be the rest of a line, and the texts that it makes with them."""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.matching import Matched
from ncclforensics.parsing.wrapped_lines import is_start

MAX_NEXT = 8  # next lines: PyTorch's longest sentences on a time-out, in a mail
LONGEST = 8_192  # bytes of a line that is completed, and of one that completes it
NEXT = [f"next{distance}" for distance in range(1, MAX_NEXT + 1)]
PLACE = ["source", "line"]


def rest_lines(matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """The lines that no shape matches and that begin no line of NCCL or PyTorch: each may be the rest of one."""
    is_blank = pl.col("text").str.strip_chars(" ") == ""
    return matched.unknown.filter(is_short() & ~is_start(dialect) & ~pl.col("damaged") & ~is_blank)


def is_short() -> pl.Expr:
    """Whether a line is short enough to be put together with others."""
    return pl.col("text").str.len_bytes() <= LONGEST


def with_next_lines(lines: pl.DataFrame, rows: pl.DataFrame, rest: pl.DataFrame) -> pl.DataFrame:
    """These lines (columns PLACE) with their texts, and those of the next lines (columns NEXT, null without one)."""
    followed = lines.join(rows.select(*PLACE, "text").filter(is_short()), on=PLACE, maintain_order="left")
    followed = followed.filter(pl.col("text").is_not_null())
    for distance, name in enumerate(NEXT, 1):
        following = rest.select("source", pl.col("line") - distance, pl.col("text").alias(name))
        followed = followed.join(following, on=PLACE, how="left", maintain_order="left")
    return followed


def joined_texts(followed: pl.DataFrame) -> pl.DataFrame:
    """Texts put together of each line and the next ones: the nearest lines first, with and without a blank between.

    Where lines are indented or quoted, their blanks at both ends are lost. Of lines that were cut at one width, those
    that ended in a blank are then shorter than the longest one.
    """
    candidates, joined, words = [], pl.col("text"), pl.col("text").str.strip_chars_end(" ")
    stripped = [pl.col("text").str.strip_chars(" ")]
    for distance, name in enumerate(NEXT, 1):
        following = pl.col(name)
        own = following.str.strip_chars(" ")
        width = pl.max_horizontal(part.str.len_chars() for part in stripped)
        filled = [
            part + pl.when(part.str.len_chars() < width).then(pl.lit(" ")).otherwise(pl.lit("")) for part in stripped
        ]
        joined, words, stripped = joined + following, words + " " + own, [*stripped, own]
        texts = (joined, words, words.str.strip_chars_start(" "), pl.concat_str(*filled, own))
        candidates += [followed.select(*PLACE, text=text, parts=pl.lit(distance + 1)) for text in texts]
    return pl.concat(candidates).drop_nulls("text")
