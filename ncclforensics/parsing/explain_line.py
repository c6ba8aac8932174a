"""Explain one line: its pattern, or the nearest one and where the line stops matching it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import FORM, Shape
from ncclforensics.inputs import lines
from ncclforensics.parsing.launcher_prefixes import detect_prefixes, strip_prefixes
from ncclforensics.parsing.matching import NO_HOST, match

MIN_LITERAL = 12  # literal characters that a line must share with a shape to be compared with it


class LineExplanation(NamedTuple):
    """The shape and fields of a line; if no shape matches (None), the nearest one and where the line differs."""

    text: str  # without launcher prefixes and escape sequences
    labels: dict[str, Any]  # columns of its launcher prefixes
    shape: Shape | None
    form: str = ""
    fields: Mapping[str, Any] = {}
    nearest: Shape | None = None
    at: int = 0  # characters of `text` that match the nearest shape
    expected: str = ""  # what that shape expects after them


def explain_line(line: str, dialect: Dialect) -> LineExplanation:
    """Match one line with the shapes of a dialect, and with those of all embedded formats if these may be meant."""
    rows = lines.cleaned(lines.block(line.encode("utf-8", "replace") + b"\n", 1))[:1]
    stripped = strip_prefixes(rows, dialect, detect_prefixes(rows, dialect))
    text = str(stripped["text"][0]) if stripped.height else ""
    labels = {name: stripped[name][0] for name in dialect.labels if name in stripped.columns}
    found = _match(stripped, dialect)
    if found is None or found[0].priority < 0:  # a shape for lines of any text, behind those of all formats
        found = _match(stripped, dialect.with_all_formats)
    if found is not None:
        return LineExplanation(text, labels, *found)
    literal, at, shape, expected = _nearest(text, dialect.with_all_formats)
    nearest = shape if literal >= MIN_LITERAL else None
    return LineExplanation(text, labels, None, nearest=nearest, at=at, expected=expected)


def _match(rows: pl.DataFrame, dialect: Dialect) -> tuple[Shape, str, dict[str, Any]] | None:
    """The shape that a line matches, the form of it, and its fields."""
    for frame, tables in match(rows, dialect).frames.items():
        (row,) = pl.concat(tables).to_dicts()
        shape = next(shape for shape in dialect.shapes if shape.frame == frame)
        fields = {name: row[name] for name in shape.columns if row.get(name) is not None}
        if fields.get("host") == NO_HOST:
            del fields["host"], fields["pid"]
        return shape, row[FORM], fields
    return None


# Matching characters in literals, all matching characters, the shape, and what it expects next.
PartialMatch = tuple[int, int, Shape, str]


def _nearest(text: str, dialect: Dialect) -> PartialMatch:
    """The alternative that matches most literal characters; those that cannot exceed the best so far are skipped."""
    shapes = [shape for shape in dialect.shapes if shape.frame != dialect.catch_all]
    alternatives = [
        (shape, pieces) for shape in shapes for pieces in grammar_file.load(shape.grammar).pieces[shape.frame]
    ]
    bounds = [_upper_bound(text, pieces) for _, pieces in alternatives]
    best: PartialMatch = (-1, 0, shapes[0], "")
    for bound, (shape, pieces) in sorted(zip(bounds, alternatives, strict=True), key=itemgetter(0), reverse=True):
        if bound < best[0]:
            break
        best = max(best, _match_start(text, shape, pieces), key=itemgetter(0, 1))
    return best


def _literal(name: str) -> str:
    return name[1:-1] if name.startswith('"') else ""


def _upper_bound(text: str, pieces: list[tuple[str, str]]) -> int:
    """An upper bound of the literal characters that match: those of the literals that occur in order."""
    position, literal_length = 0, 0
    for _, name in pieces:
        literal = _literal(name)
        if (position := text.find(literal, position)) < 0:
            break
        position, literal_length = position + len(literal), literal_length + len(literal)
    return literal_length


def _match_start(text: str, shape: Shape, pieces: list[tuple[str, str]]) -> PartialMatch:
    """Match as many leading pieces of an alternative as possible; found by bisection, for any fewer match as well."""
    column = pl.Series([text])

    def matched(count: int) -> int:
        found = column.str.extract(f"^({''.join(regex for regex, _ in pieces[:count])})", 1)[0]
        return -1 if found is None else len(found)

    count = bisect_left(range(1, len(pieces) + 1), 1, key=lambda count: matched(count) < 0)
    literal = sum(len(_literal(name)) for _, name in pieces[:count])
    expected = pieces[count][1] if count < len(pieces) else "the end of the line"
    return literal, matched(count) if count else 0, shape, expected
