"""Remove what web pages, mail programs, chats and terminals put into a text that was copied out of them.

Elements and entities of HTML, links and code of Markdown, typographic characters, remains of colours, ends of lines
that were written out as a backslash and an `n`, and ends of lines between records of PyTorch that were lost.
"""

from __future__ import annotations

from functools import cache

import polars as pl

from ncclforensics.data.typography import CHARACTERS, ENTITIES, MARKDOWN_ESCAPES, QUOTED_CHARACTERS
from ncclforensics.grammar import grammar_file
from ncclforensics.inputs import lines

REPLACED = CHARACTERS | ENTITIES | MARKDOWN_ESCAPES
LINE_FEED = "\\n"
LINK = "](http"  # in Markdown
BOX_SIDES = ["│", "┃", "║"]
MOST_PARTS = 3  # lines of one call in a box
MIN_NUMBERED, NEARLY_ALL = 5, 0.9  # lines in a row, and their share of the lines of an input


def has_marks(texts: pl.Series) -> bool:
    """Whether a text on NCCL or on a failure holds what `without_marks` removes; links and boxes are marks in any."""
    texts = texts.filter(texts.str.contains(_part("_hint")))
    is_kept = texts.str.contains(_part("_failure_word")) | texts.str.contains(LINK, literal=True)
    is_kept |= texts.str.contains_any(BOX_SIDES)
    return _is_marked(texts.filter(is_kept)).any()


def without_marks(rows: pl.DataFrame) -> pl.DataFrame:
    """Lines in their order without such marks; one that holds several lines becomes as many, all of its number."""
    is_marked = _is_marked(rows["text"])
    if not is_marked.any():
        return rows
    texts = rows["text"].filter(is_marked)
    for shape in _links():
        texts = texts.str.replace_all(shape, "${label}")
    texts = texts.str.replace_all(_code(), "${code}")
    texts = texts.str.replace(f"^ *{_part('_gutter')}", "")
    texts = texts.str.replace_all(_part("_line_break"), "\n").str.strip_chars_end("\n")
    texts = texts.str.replace_all(_part("_element"), "").str.replace_all(_part("_colour"), "")
    for _ in range(2):  # a page that quotes a page
        texts = texts.str.replace_many(REPLACED)
    for shape in _alternatives("_enclosed"):
        texts = texts.str.replace(f"^{shape}$", "${tag}${enclosed}${quoted}${reported}${boxed}")
    texts = _one_record_a_line(_with_line_feeds(texts))
    marked = rows.with_columns(rows["text"].scatter(is_marked.arg_true(), texts))
    if rows["text"].str.contains_any(BOX_SIDES).any():
        marked = _with_whole_calls(marked)
    if not texts.str.contains("\n", literal=True).any():
        return marked
    return marked.with_columns(pl.col("text").str.split("\n")).explode("text")


def _is_marked(texts: pl.Series) -> pl.Series:
    may_be = texts.str.contains(_part("_hint"))
    if not may_be.any():
        return may_be
    candidates = texts.filter(may_be)
    is_marked = candidates.str.contains_any(list(REPLACED)) | _has_line_feeds(candidates)
    enclosed = (f"^{shape}$" for shape in _alternatives("_enclosed"))
    for regex in (*_links(), _code(), *enclosed, _part("_line_break"), _part("_element"), _part("_colour"), _glued()):
        is_marked |= candidates.str.contains(regex)
    return may_be.scatter(may_be.arg_true(), is_marked)


def find_margins(texts: pl.DataFrame) -> dict[int, str]:
    """The blanks in front of every line of an input (columns `source`, `text`), where there are any.

    Markdown and mail programs set a copied text off by them.
    """
    without = texts["source"].filter(texts["text"].str.contains(r"^\S")).unique()
    indented = texts.filter(~pl.col("source").is_in(without.to_list())) if without.len() else texts
    fronts = indented.select("source", front=pl.col("text").str.extract(r"^(\s+)\S")).drop_nulls().unique()
    found = fronts.group_by("source").agg("front").iter_rows()
    shortest = ((source, min(own, key=len), own) for source, own in found)
    return {source: margin for source, margin, own in shortest if all(front.startswith(margin) for front in own)}


def without_margin(rows: pl.DataFrame, margin: str) -> pl.DataFrame:
    """Lines without these blanks in front."""
    return rows.with_columns(pl.col("text").str.strip_prefix(margin))


def find_numbered(texts: pl.DataFrame) -> list[int]:
    """The inputs (columns `source`, `text`) whose lines begin with numbers, each by one greater than that above it."""
    begins = texts["text"].str.contains("^ *[0-9]")
    if not begins.any():
        return []
    number = pl.col("text").str.extract_groups(_numbered()).struct.field("line_number")
    numbers = texts.select("source", number=number.cast(pl.Int64, strict=False))
    step = pl.col("number") - pl.col("number").shift(1).over("source")
    counted = numbers.with_columns(is_next=(step == 1).fill_null(value=False)).group_by("source").agg("is_next")
    sums = counted.select("source", rows=pl.col("is_next").list.len(), hits=pl.col("is_next").list.sum())
    is_numbered = (pl.col("hits") >= MIN_NUMBERED) & (pl.col("hits") >= NEARLY_ALL * (pl.col("rows") - 1))
    return sums.filter(is_numbered)["source"].to_list()


def without_numbers(rows: pl.DataFrame) -> pl.DataFrame:
    """Lines without the number in front of each."""
    return rows.with_columns(pl.col("text").str.replace(_numbered(), ""))


def cleaned_in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Lines without escape sequences and control bytes, in their order."""
    if not lines.is_strange(rows["text"]).any():
        return rows
    numbered = lines.cleaned(rows.with_row_index("place"))
    return numbered.sort("place").drop("place")


def _has_line_feeds(texts: pl.Series) -> pl.Series:
    is_record = texts.str.starts_with("{") & texts.str.ends_with("}")  # one that is cut is none any more
    is_quoted = texts.str.contains(LINE_FEED, literal=True) & ~is_record
    return is_quoted & texts.str.contains(_part("_failure_word"))


def _with_line_feeds(texts: pl.Series) -> pl.Series:
    quoted = _has_line_feeds(texts)
    if not quoted.any():
        return texts
    plain = texts.filter(quoted).str.replace_all(LINE_FEED, "\n", literal=True).str.replace_many(QUOTED_CHARACTERS)
    return texts.scatter(quoted.arg_true(), plain.str.replace(f"(?:{_part('_tail')})$", ""))


def _with_whole_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Put the calls of boxes together that were wrapped; the lines that they went on in are left empty."""
    begun = rows["text"].str.contains(f"^(?:{_part('_boxed_call')})$")
    if not begun.any():
        return rows
    texts = rows["text"].to_list()
    (regex,) = _alternatives("_boxed_rest")
    rests = rows["text"].str.extract_groups(f"^{regex}$").struct.field("call_rest").to_list()
    for first in begun.arg_true():
        for place in range(first + 1, min(first + MOST_PARTS, len(texts))):
            rest = rests[place]
            if rest is None or " in " in texts[first]:
                break
            texts[first] += f" {rest}" if rest.startswith("in ") else rest
            texts[place] = ""
    return rows.with_columns(text=pl.Series(texts, dtype=pl.String))


def _one_record_a_line(texts: pl.Series) -> pl.Series:
    """Begin a line with each record but the first, in front of which the tag of a launcher may stand."""
    glued = texts.str.contains(_glued())
    if not glued.any():
        return texts
    record = f"({_part('_glued_record')})"
    split = texts.filter(glued).str.replace_all(f"{_between()}{record}", "\n${1}")
    begins = split.str.contains(f"^{record}")
    return texts.scatter(glued.arg_true(), split.zip_with(begins, split.str.replace("\n", " ", literal=True)))


@cache
def _glued() -> str:
    record = _part("_glued_record")
    return f"{record}.*{_between()}{record}"


def _between() -> str:
    return f"(?: +|{_part('_screen_place')} *)"


def _part(rule: str) -> str:
    return grammar_file.load("copied").part_regex(rule)


@cache
def _links() -> tuple[str, ...]:
    return _alternatives("_link")


@cache
def _code() -> str:
    (regex,) = _alternatives("_code")
    return regex


@cache
def _numbered() -> str:
    (regex,) = _alternatives("_line_number")
    return f"^{regex}"


def _alternatives(rule: str) -> tuple[str, ...]:
    patterns = grammar_file.load("copied").part_shape(rule).patterns
    return tuple(pattern.regex.removeprefix("^").removesuffix("$") for pattern in patterns)
