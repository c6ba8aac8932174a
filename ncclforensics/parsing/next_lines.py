"""The lines that may be the rest of a line, and the texts that it makes with them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.matching import Matched
from ncclforensics.parsing.wrapped_lines import general_frames, is_start

MAX_NEXT = 12  # next lines: PyTorch's longest sentences, on a narrow screen
LONGEST = 8_192  # bytes of a line that is completed, and of one that completes it
NEXT = [f"next{distance}" for distance in range(1, MAX_NEXT + 1)]
PLACE = ["source", "line"]


def rest_lines(matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """The lines that no shape matches and that begin no line of NCCL, PyTorch or a kernel: each may be the rest of one.

    A line that is blank, but for the time that a logger put in front of it, is none.
    """
    of_copies = grammar_file.load("copied")
    time_of_logger, start = of_copies.part_regex("_time_in_front"), of_copies.part_regex("_certain_start")
    is_blank = pl.col("text").str.contains(f"^ *(?:{time_of_logger})?$") | is_edge_of_box()
    of_kernel = grammar_file.load("unread").part_regex("_of_kernel")
    begins_line = is_start(dialect) | pl.col("text").str.contains(f"^(?:{start})")
    begins_line |= pl.col("text").str.strip_chars_start(" ").str.contains(of_kernel)
    return matched.unknown.filter(is_short() & ~begins_line & ~pl.col("damaged") & ~is_blank)


def is_edge_of_box() -> pl.Expr:
    """Whether a line is the edge of a box, which nothing goes on from and that goes on from nothing."""
    return pl.col("text").str.contains(f"^{grammar_file.load('copied').part_regex('_edge')}")


def is_short() -> pl.Expr:
    """Whether a line is short enough to be put together with others."""
    return pl.col("text").str.len_bytes() <= LONGEST


def with_next_lines(lines: pl.DataFrame, rows: pl.DataFrame, rest: pl.DataFrame) -> pl.DataFrame:
    """These lines (columns PLACE) with their texts, and those of the next lines (columns NEXT, null without one)."""
    followed = lines.join(rows.select(*PLACE, "text").filter(is_short()), on=PLACE, maintain_order="left")
    followed = followed.filter(pl.col("text").is_not_null())
    if followed.is_empty() or rest.is_empty():
        return followed.with_columns(pl.lit(None, pl.String).alias(name) for name in NEXT)
    for distance, name in enumerate(NEXT, 1):
        following = rest.select("source", pl.col("line") - distance, pl.col("text").alias(name))
        followed = followed.join(following, on=PLACE, how="left", maintain_order="left")
        if followed[name].null_count() == followed.height:  # what stands behind it is not put together with them
            return followed.with_columns(pl.lit(None, pl.String).alias(further) for further in NEXT[distance:])
    return followed


def joined_texts(followed: pl.DataFrame) -> pl.DataFrame:
    """Texts put together of each line and the next ones: the nearest lines first, with and without a blank between.

    Where lines are indented or quoted, their blanks at both ends are lost. Of lines that were cut at one width, those
    that ended in a blank are then shorter than the longest one. Other columns are those of the line.
    """
    own_columns = [name for name in followed.columns if name not in ("text", *NEXT)]
    candidates: list[pl.DataFrame] = []
    text, width, own = pl.col("text"), pl.col("width"), pl.col("own")
    stripped = ["part0"]
    first = {"joined": text, "words": text.str.strip_chars_end(" "), "part0": text.str.strip_chars(" ")}
    followed = followed.with_columns(**first).with_columns(width=pl.col("part0").str.len_chars())
    for distance, name in enumerate(NEXT, 1):
        followed = followed.filter(pl.col(name).is_not_null())
        if candidates and followed.is_empty():
            break
        followed = followed.with_columns(own=pl.col(name).str.strip_chars(" "))
        filled = [
            pl.col(part) + pl.when(pl.col(part).str.len_chars() < width).then(pl.lit(" ")).otherwise(pl.lit(""))
            for part in stripped
        ]
        followed = followed.with_columns(
            joined=pl.col("joined") + pl.col(name),
            words=pl.col("words") + " " + own,
            filled=pl.concat_str(*filled, own),
            width=pl.max_horizontal(width, own.str.len_chars()),
        ).with_columns(own.alias(f"part{distance}"))
        stripped.append(f"part{distance}")
        ways = (pl.col("joined"), pl.col("words"), pl.col("words").str.strip_chars_start(" "), pl.col("filled"))
        candidates += [followed.select(*own_columns, text=way, parts=pl.lit(distance + 1)) for way in ways]
    return pl.concat(candidates)


def specific_shapes(matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """The specific shape, with its form, of each line that has one (columns PLACE, `shape`)."""
    general = general_frames(dialect)
    return _shapes(matched, {name: None for name in matched.frames if name not in general})


def answered_shapes(matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """The same of lines that state a failure, a condition or a consequence."""
    return _shapes(matched, dialect.answered_forms)


def _shapes(matched: Matched, forms: Mapping[str, list[str] | None]) -> pl.DataFrame:
    """The shape and form of lines of these frames, of these forms."""
    form = pl.col("form").cast(pl.String).fill_null("")
    none = pl.DataFrame(schema={"source": pl.Int32, "line": pl.Int32, "shape": pl.String})
    pieces = [
        (piece if wanted is None else piece.filter(form.is_in(wanted))).select(*PLACE, shape=pl.lit(f"{name} ") + form)
        for name, wanted in forms.items()
        for piece in matched.frames.get(name, [])
        if piece.height
    ]
    return pl.concat([none, *pieces])
