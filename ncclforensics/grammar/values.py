"""Find the values of `grammars/values.lark` inside texts: items of a list, attributes of a tag, numbers with units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import polars as pl

from ncclforensics.grammar.dialect import FIELDS, MATCHED, fields
from ncclforensics.grammar.grammar_file import load
from ncclforensics.grammar.patterns import FORM, Pattern, Shape, any_of

GRAMMAR = "values"
TEXT = "text"  # row number of the text in which a value was found
MOST_NUMBERS = 1 << 20  # of a range; one that claims more is damaged, and must not fill the memory
MOST_KEPT = 4096  # texts whose value is kept: dumps of many hosts repeat them


def find_values(texts: pl.Series, rule: str) -> pl.DataFrame:
    """Find all values of a rule in texts, in their order.

    Columns: `text`, the row number of the text; `form`, the alternative; and the columns of the rule.
    """
    shape = _shape(rule)
    item = pl.col("item")
    found = texts.cast(pl.String).alias("item").to_frame().with_row_index(TEXT)
    remaining = found.with_columns(item.str.extract_all(_anywhere(rule))).explode("item").drop_nulls("item")
    remaining = remaining.with_row_index("place")
    values = []
    for pattern in shape.patterns:
        matched = remaining.with_columns(fields(item, pattern.regex)).unnest(FIELDS)
        is_match = matched[MATCHED].is_not_null()
        values.append(_typed(matched.filter(is_match), shape, pattern))
        remaining = remaining.filter(~is_match)
    return pl.concat(values).sort("place").drop("place")


@lru_cache(MOST_KEPT)
def parse_value(text: str | None, rule: str) -> Mapping[str, Any] | None:
    """Parse a text that is one value of a rule: `form` and the columns of the rule; None for any other text.

    >>> parse_value("400 Gb/sec (4X NDR)", "port_rate")
    {'form': '', 'rate': 400.0, 'width': '4X', 'speed': 'NDR'}
    """
    shape, texts = _shape(rule), pl.DataFrame({"place": [0], TEXT: [0], "item": [text]}, schema_overrides=_ITEM)
    for pattern in shape.patterns:
        matched = texts.with_columns(fields(pl.col("item"), pattern.regex)).unnest(FIELDS)
        if matched[MATCHED][0] is not None:
            return _typed(matched, shape, pattern).drop("place", TEXT).row(0, named=True)
    return None


def numbers_of_ranges(text: str | None) -> Iterator[int]:
    """Yield the numbers of a list of ranges.

    >>> list(numbers_of_ranges("0-3,8"))
    [0, 1, 2, 3, 8]
    """
    for numbers in _ranges_of(text):
        yield from numbers


@lru_cache(MOST_KEPT)
def _ranges_of(text: str | None) -> list[range]:
    return ranges_by_text(pl.Series([text], dtype=pl.String)).get(text or "", [])


def ranges_by_text(texts: pl.Series) -> dict[str, list[range]]:
    """The ranges in each of these lists of ranges, by its text.

    >>> ranges_by_text(pl.Series(["0-3,8", "17", "0-3,8"]))
    {'0-3,8': [range(0, 4), range(8, 9)], '17': [range(17, 18)]}
    """
    distinct = texts.cast(pl.String).drop_nulls().unique(maintain_order=True)
    if distinct.is_empty():
        return {}
    found = find_values(distinct, "number_range").drop_nulls("first")  # null: more than an Int32 holds
    ranges: dict[str, list[range]] = {}
    for place, first, last in found.select(TEXT, "first", "last").iter_rows():
        end = (first if last is None else min(last, first + MOST_NUMBERS)) + 1
        ranges.setdefault(distinct[place], []).append(range(first, end))
    return ranges


_ITEM = {"item": pl.String()}


def _typed(matched: pl.DataFrame, shape: Shape, pattern: Pattern) -> pl.DataFrame:
    """The rows with the form, and all columns of the shape in their types."""
    columns = [
        base.cast(pl.col(name)) if name in pattern.columns else pl.lit(None, base.dtype).alias(name)
        for name, base in shape.columns.items()
    ]
    return matched.select("place", TEXT, pl.lit(pattern.form).alias(FORM), *columns)


@cache
def _shape(rule: str) -> Shape:
    return next(shape for shape in load(GRAMMAR).shapes if shape.frame == rule)


@cache
def _anywhere(rule: str) -> str:
    """A regex that finds the values of a rule inside a text."""
    patterns = _shape(rule).patterns
    return any_of(pattern._replace(regex=pattern.regex.removeprefix("^").removesuffix("$")) for pattern in patterns)
