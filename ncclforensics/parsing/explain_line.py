"""One line under the glass: which shape it is, or which shape it nearly is and where it stops being that."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import FORM, Shape
from ncclforensics.inputs import lines
from ncclforensics.parsing.launcher_prefixes import detect_prefixes, strip_prefixes
from ncclforensics.parsing.matching import match

NEAR = 12  # characters that a shape must know literally of a line to be called near


@dataclass(frozen=True, slots=True)
class Anatomy:
    """What a line is. `shape` is None where no shape knows it; `expected` and `at` then tell of the nearest one."""

    text: str  # without decoration and escape sequences
    labels: dict[str, Any]  # what stood in front of it
    shape: Shape | None
    form: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    nearest: Shape | None = None
    at: int = 0  # characters of `text` that the nearest shape knows
    expected: str = ""  # what it wants behind them


def anatomy(line: str, dialect: Dialect) -> Anatomy:
    """Take one line apart."""
    rows = lines.cleaned(lines.block(line.encode("utf-8", "replace") + b"\n", 1))[:1]
    bare = strip_prefixes(rows, dialect, detect_prefixes(rows, dialect))
    text = str(bare["text"][0]) if bare.height else ""
    labels = {name: bare[name][0] for name in dialect.labels if name in bare.columns}
    for frame, tables in match(bare, dialect).frames.items():
        (row,) = pl.concat(tables).to_dicts()
        shape = next(each for each in dialect.shapes if each.frame == frame)
        fields = {name: row[name] for name in shape.columns if row.get(name) is not None}
        return Anatomy(text, labels, shape, row[FORM], fields)
    literal, at, shape, expected = _nearest(text, dialect)
    return Anatomy(text, labels, None, nearest=shape if literal >= NEAR else None, at=at, expected=expected)


End = tuple[int, int, Shape, str]  # characters that an alternative knows literally, and at all; what it wants then


def _nearest(text: str, dialect: Dialect) -> End:
    """The alternative that knows most of a text; only those that may know more than the best so far are tried."""
    shapes = [shape for shape in dialect.shapes if shape.frame != dialect.catch_all]
    alternatives = [
        (shape, pieces) for shape in shapes for pieces in grammar_file.load(shape.grammar).pieces[shape.frame]
    ]
    hopes = [_hope(text, pieces) for _, pieces in alternatives]
    best: End = (-1, 0, shapes[0], "")
    for hope, (shape, pieces) in sorted(zip(hopes, alternatives, strict=True), key=itemgetter(0), reverse=True):
        if hope < best[0]:
            break
        best = max(best, _end(text, shape, pieces), key=itemgetter(0, 1))
    return best


def _literal(name: str) -> str:
    return name[1:-1] if name.startswith('"') else ""


def _hope(text: str, pieces: list[tuple[str, str]]) -> int:
    """The most characters of a text that an alternative can know literally: its literals that follow one another."""
    place, most = 0, 0
    for _, name in pieces:
        literal = _literal(name)
        if (place := text.find(literal, place)) < 0:
            break
        place, most = place + len(literal), most + len(literal)
    return most


def _end(text: str, shape: Shape, pieces: list[tuple[str, str]]) -> End:
    """How far an alternative knows a text: a text that has its first pieces has fewer of them, too."""
    column = pl.Series([text])

    def known(count: int) -> int:
        found = column.str.extract(f"^({''.join(regex for regex, _ in pieces[:count])})", 1)[0]
        return -1 if found is None else len(found)

    count = bisect_left(range(1, len(pieces) + 1), 1, key=lambda count: known(count) < 0)
    literal = sum(len(_literal(name)) for _, name in pieces[:count])
    expected = pieces[count][1] if count < len(pieces) else "the end of the line"
    return literal, known(count) if count else 0, shape, expected
