"""Read lines that state a failure where something was put in front of them or around them, or where they were wrapped.

A quotation, a list, a box, a logger, a collector or a search adds something to every line, and a terminal or a mail
breaks it. Few lines do not show which of them did. So a line that matches nothing as it stands is read without what may
stand in front of it, and together with the next lines; what is left must match a shape of a failure or a condition. A
line that matches another shape alone may go on, too, where the next lines bring the words of such a shape.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.matching import Matched, match
from ncclforensics.parsing.next_lines import MAX_NEXT, NEXT, is_short, joined_texts, rest_lines, with_next_lines

PLACE = ["source", "line"]
DEPTH = 5  # things in front of a line
MAX_LINES = 500  # that are read in other ways
MAX_TEXTS = 20_000  # that these make


def altered_lines(rows: pl.DataFrame, matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """Return the lines that state a failure if they are read another way (columns PLACE, `text`, `parts`)."""
    rest = rest_lines(matched, dialect)
    lines = pl.concat([_unread_lines(matched, dialect), _lines_that_go_on(rows, matched, rest, dialect)])
    if lines.is_empty():
        return lines.select(*PLACE, text=pl.lit(""), parts=pl.lit(1))
    candidates = _candidates(with_next_lines(lines.head(MAX_LINES), rows, rest))
    states = candidates["text"].str.contains_any(dialect.answered_anchors)
    candidates = candidates.filter(states).head(MAX_TEXTS)
    numbers = pl.int_range(1, candidates.height + 1, dtype=pl.Int32, eager=True)
    texts = candidates.select("source", "text", line=numbers, damaged=False, cut=False)
    dialect = dialect.including_formats_in(texts["text"])
    answered = _answered(match(texts, dialect), dialect)
    return candidates.filter(numbers.is_in(answered.implode())).unique(PLACE, keep="first", maintain_order=True)


def _unread_lines(matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """Return lines without a shape near which, or across whose end, the words of a failure stand."""
    unread = matched.unknown.filter(is_short() & ~pl.col("damaged")).sort(PLACE)
    is_next = (pl.col("line").shift(-1) == pl.col("line") + 1) & (pl.col("source").shift(-1) == pl.col("source"))
    following = pl.when(is_next).then(_unframed(pl.col("text")).shift(-1)).otherwise(pl.lit(""))
    own = pl.col("text").str.strip_chars_end(" │┃║")
    states = unread.select(
        (own + following).str.contains_any(dialect.answered_anchors)
        | (own + " " + following).str.contains_any(dialect.answered_anchors)
    ).to_series()
    near = pl.any_horizontal(pl.col("states").shift(-distance, fill_value=False) for distance in range(MAX_NEXT))
    return unread.select(*PLACE, states=states).filter(near).select(*PLACE, is_known=False)


def _lines_that_go_on(rows: pl.DataFrame, matched: Matched, rest: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return lines with a shape that gain the words of a failure by the next line."""
    following = rest.select("source", pl.col("line") - 1, following="text")
    known = matched.known.filter(~pl.col("is_unrecognised")).select(PLACE).unique(maintain_order=True)
    pairs = known.join(following, on=PLACE).join(rows.select(*PLACE, "text").filter(is_short()), on=PLACE)
    own, both = pairs["text"], [pairs["text"] + sign + pairs["following"] for sign in ("", " ")]
    anchors = dialect.answered_anchors
    gains = ~own.str.contains_any(anchors) & (both[0].str.contains_any(anchors) | both[1].str.contains_any(anchors))
    return pairs.filter(gains).select(*PLACE, is_known=True)


def _candidates(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the texts that lines may stand for: those with the least in front first, then of the fewest lines."""
    lines = lines.with_columns(pl.col("text", *NEXT).str.replace_all("\t", " ", literal=True))
    framed = lines.filter(_is_wrapped()).with_columns(_unframed(pl.col(name)).alias(name) for name in NEXT)
    texts = [joined_texts(framed).unique(maintain_order=True)]
    lines, framed = lines.filter(~pl.col("is_known")), framed.filter(~pl.col("is_known"))
    back = f"{_part('_back')}$"
    lines = lines.with_columns(pl.col("text").str.replace(back, ""))
    framed = framed.with_columns(pl.col("text").str.replace(back, ""))
    for _ in range(DEPTH):
        texts += [lines.select(*PLACE, "text", parts=pl.lit(1)), joined_texts(framed).unique(maintain_order=True)]
        shorter = pl.col("text").str.replace(f"^(?:{_part('_front')})", "")
        lines = lines.filter(shorter != pl.col("text")).with_columns(shorter)
        framed = framed.filter(shorter != pl.col("text")).with_columns(shorter)
    return pl.concat(texts).unique([*PLACE, "text"], keep="first", maintain_order=True)


def _is_wrapped() -> pl.Expr:
    """Whether a line is so long that the first word of the next one had no room in it."""
    first_word = pl.col("next1").str.strip_chars_start(" ").str.splitn(" ", 2).struct.field("field_0").str.len_chars()
    return pl.col("text").str.len_chars() + 1 + first_word >= pl.col("next1").str.len_chars()


def _unframed(text: pl.Expr) -> pl.Expr:
    """A line without the sides of a box, and the signs of a quotation."""
    return text.str.replace(f"^{_part('_frame')}", "").str.replace(f"{_part('_back')}$", "")


def _answered(found: Matched, dialect: Dialect) -> pl.Series:
    """Return the numbers of texts that match a shape of a failure, a condition or a consequence."""
    pieces = [
        piece.filter(pl.col("form").cast(pl.String).is_in(dialect.answered_forms[name]))["line"]
        for name, pieces in found.frames.items()
        if name in dialect.answered_forms
        for piece in pieces
    ]
    return pl.concat([pl.Series("line", dtype=pl.Int32), *pieces])


def _part(rule: str) -> str:
    return grammar_file.load("copied").part_regex(rule)
