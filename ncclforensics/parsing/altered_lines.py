"""Read lines that state a failure where something was put in front of them or around them, or where they were wrapped.

A quotation, a list, a box, a logger, a collector or a search adds something to every line, and a terminal or a mail
breaks it. Few lines do not show which of them did. So a line that matches nothing as it stands is read without what may
stand in front of it, and together with the next lines; what is left must match a shape of a failure or a condition. A
line that matches another shape alone may go on, too, where the next lines bring the words of such a shape.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect, words_in
from ncclforensics.parsing.matching import NO_HOST, Matched, match
from ncclforensics.parsing.next_lines import (
    MAX_NEXT,
    NEXT,
    PLACE,
    answered_shapes,
    is_edge_of_box,
    is_short,
    joined_texts,
    with_next_lines,
)

DEPTH = 6  # things in front of a line
MAX_LINES = 200  # of one input that are read in other ways
MANY = 10_000  # lines that are read in other ways at once
SEAM = 40  # characters on each side of the end of a line, for words that a break tore apart
MAX_TEXTS = 100_000  # that these make


def altered_lines(rows: pl.DataFrame, matched: Matched, rest: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the lines that state a failure if they are read another way (columns PLACE, `text`, `parts`).

    `rest`: lines that may be the rest of others.
    """
    rest = pl.concat([rest.select(*PLACE, "text"), _rests_of_prefixes(rows, matched)])
    lines = pl.concat([_unread_lines(matched, rest, dialect), _lines_that_go_on(rows, matched, rest, dialect)])
    lines = lines.filter(pl.int_range(pl.len()).over("source") < MAX_LINES)
    if lines.is_empty():
        return lines.select(*PLACE, text=pl.lit(""), parts=pl.lit(1))
    parts = with_next_lines(lines, rows, rest).iter_slices(MANY)  # a line makes up to 60 texts, which few anchors have
    candidates = pl.concat([_stating(_candidates(part), dialect) for part in parts]).head(MAX_TEXTS)
    candidates = candidates.with_row_index("number", offset=1)
    texts = candidates.select("source", "text", line=pl.col("number").cast(pl.Int32), damaged=False, cut=False)
    extended = dialect.including_formats_in(texts["text"])
    found = answered_shapes(match(texts, extended), extended)
    found = found.select("shape", number=pl.col("line").cast(pl.UInt32)).unique("number")
    logged = rows.filter(pl.col("text").str.contains(f"^(?:{_part('_caught_level')})")).select(PLACE)
    of_logged = candidates.join(logged, on=PLACE, how="semi")["number"].implode()
    is_caught = pl.col("shape").str.starts_with(f"{dialect.raised} ") & pl.col("number").is_in(of_logged)
    found = found.filter(~is_caught)
    ranks = extended.ranks_of_forms
    own = answered_shapes(matched, dialect).join(ranks.select("shape", own="order"), on="shape").unique(PLACE)
    own = own.rename({"shape": "own_shape"})
    compared = candidates.join(found.join(ranks, on="shape"), on="number").join(own, on=PLACE, how="left")
    # Any text may follow a line that is known already: what it becomes must be another shape, or one without free text.
    is_other = (pl.col("order") < pl.col("own")) | ((pl.col("shape") != pl.col("own_shape")) & ~pl.col("is_general"))
    is_narrower = ~pl.col("is_known") | pl.coalesce(is_other, ~pl.col("is_free"))
    most_parts = pl.when("is_free").then(-pl.col("parts")).otherwise("parts")
    first = ("is_general", "is_free", pl.when("is_free").then("level"), most_parts, "number")
    ordered = compared.filter(is_narrower).sort(*first)
    return ordered.unique(PLACE, keep="first", maintain_order=True).select(*PLACE, "text", "parts")


def _rests_of_prefixes(rows: pl.DataFrame, matched: Matched) -> pl.DataFrame:
    """Return lines that begin with the level, behind one that ends before it: the prefix itself was wrapped."""
    begun = matched.unknown.filter(pl.col("text").str.contains(f"^(?:{_part('_own_time')})?{_part('_start_of_nccl')}"))
    without_process = matched.known.filter(pl.col("host") == NO_HOST).select(PLACE)
    after = begun.select("source", pl.col("line") + 1).join(without_process, on=PLACE, how="semi")
    return after.join(rows.select(*PLACE, "text").filter(is_short()), on=PLACE)


def _unread_lines(matched: Matched, rest: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return lines without a shape near which, or across whose end, the words of a failure stand."""
    unread = matched.unknown.filter(is_short() & ~pl.col("damaged") & ~is_edge_of_box()).sort(PLACE)
    if unread.is_empty():
        return unread.select(*PLACE, is_known=False)
    following = rest.select("source", pl.col("line") - 1, following=_unframed(pl.col("text")))
    unread = unread.join(following, on=PLACE, how="left", maintain_order="left")
    own, after = pl.col("text").str.strip_chars_end(" │┃║"), pl.col("following")
    seams = [own.str.tail(SEAM) + sign + after.str.head(SEAM) for sign in ("", " ")]
    ways = [unread.select(text=text)["text"] for text in (own, *seams)]
    here, joined, apart = _searched(ways, _states, dialect)
    unread = unread.with_columns(states=here | joined | apart)
    # A next line that has a shape of its own is no unread line, which this looks at anyway.
    read = _stating(rest.join(unread, on=PLACE, how="anti"), dialect)
    before = read.select("source", pl.col("line") - 1, is_before=True).unique()
    unread = unread.join(before, on=PLACE, how="left", maintain_order="left")
    unread = unread.select(*PLACE, states=pl.col("states") | pl.col("is_before").fill_null(value=False))
    near = pl.any_horizontal(pl.col("states").shift(-distance, fill_value=False) for distance in range(MAX_NEXT))
    return unread.filter(near).select(*PLACE, is_known=False)


def _lines_that_go_on(rows: pl.DataFrame, matched: Matched, rest: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return lines with a shape that state a failure already, or gain words of one by the next line."""
    following = rest.select("source", pl.col("line") - 1, following="text")
    if following.is_empty():
        return following.select(*PLACE, is_known=True)
    known = matched.known.filter(~pl.col("is_unrecognised")).select(PLACE).unique(maintain_order=True)
    pairs = known.join(following, on=PLACE).join(rows.select(*PLACE, "text").filter(is_short()), on=PLACE)
    own = pairs["text"]
    both = [own + sign + pairs["following"] for sign in ("", " ")]
    here, joined, apart = _searched([own, *both], _count_words, dialect)
    states = pairs.select(PLACE).join(answered_shapes(matched, dialect), on=PLACE, how="semi")
    gains = pairs.filter((joined > here) | (apart > here)).select(PLACE)
    return pl.concat([states, gains]).unique(maintain_order=True).with_columns(is_known=True)


def _searched(
    texts: list[pl.Series], search: Callable[[pl.Series, Dialect], pl.Series], dialect: Dialect
) -> list[pl.Series]:
    """Return what a search finds in columns of one height, which it goes through at once."""
    found, height = search(pl.concat(texts), dialect), len(texts[0])
    return [found.slice(number * height, height) for number in range(len(texts))]


def _states(texts: pl.Series, dialect: Dialect) -> pl.Series:
    """Whether words of a failure or a condition stand in a text."""
    return texts.str.contains_any(words_in(texts, dialect.answered_anchors).implode()).fill_null(value=False)


def _count_words(texts: pl.Series, dialect: Dialect) -> pl.Series:
    """How many such words stand in a text."""
    return texts.str.extract_many(words_in(texts, dialect.answered_anchors).implode(), overlapping=True).list.len()


def _stating(lines: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the lines in whose text such words stand."""
    return lines.filter(_states(lines["text"], dialect)) if lines.height else lines


def _candidates(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the texts that lines may stand for (columns PLACE, `text`, `parts`, `level`, `is_known`).

    `level`: how much was taken away in front.
    """
    lines = lines.with_columns(pl.col("text", *NEXT).str.replace_all("\t", " ", literal=True))
    framed = _without_other_lines(lines.with_columns(_unframed(pl.col(name)).alias(name) for name in ("text", *NEXT)))
    texts = [joined_texts(framed).select(*PLACE, "text", "parts", "is_known", level=pl.lit(0))]
    lines, framed = (
        rows.filter(~pl.col("is_known")).with_columns(pl.col("text").str.replace(f"{_part('_back')}$", ""))
        for rows in (lines, framed)
    )
    for level in range(1, DEPTH + 1):
        if lines.is_empty():
            break
        texts += [
            read.select(*PLACE, "text", "parts", "is_known", level=pl.lit(level))
            for read in (lines.with_columns(parts=pl.lit(1)), joined_texts(framed))
        ]
        shorter = pl.col("text").str.replace(f"^(?:{_part('_front')})", "")
        lines, framed = (rows.filter(shorter != pl.col("text")).with_columns(shorter) for rows in (lines, framed))
    return pl.concat(texts, how="vertical_relaxed").unique([*PLACE, "text"], keep="first", maintain_order=True)


def _without_other_lines(lines: pl.DataFrame) -> pl.DataFrame:
    """Leave out next lines that do not go on: a line was wrapped where the next word had no room, and nowhere else."""
    goes_on = pl.repeat(True, lines.height, eager=True)
    width = before = lines["text"].str.len_chars()
    parts = []
    for following in lines[:, NEXT]:
        if following.null_count() == lines.height:  # what stands behind it is not joined either
            break
        length = following.str.len_chars()
        first_word = following.str.strip_chars_start(" ").str.extract("^([^ ]*)")
        width = pl.select(pl.max_horizontal(width, length)).to_series()
        goes_on &= before + 1 + first_word.str.len_chars() >= width
        parts.append(pl.select(pl.when(goes_on).then(following)).to_series())
        before = length
    return lines.with_columns(parts)


def _unframed(text: pl.Expr) -> pl.Expr:
    """A line without the sides of a box, and the signs of a quotation."""
    return text.str.replace(f"^{_part('_frame')}", "").str.replace(f"{_part('_back')}$", "")


def _part(rule: str) -> str:
    return grammar_file.load("copied").part_regex(rule)
