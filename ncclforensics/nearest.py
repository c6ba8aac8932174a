"""One line under the glass: which shape it is, or which shape it nearly is and where it stops being that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ncclforensics import grammar, lines
from ncclforensics.decoration import decorations, peeled
from ncclforensics.grammar import Shape
from ncclforensics.language import Language

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


def anatomy(line: str, language: Language) -> Anatomy:
    """Take one line apart."""
    rows = lines.cleaned(lines.block(line.encode("utf-8", "replace"), 1))[:1]
    bare = peeled(rows, language, decorations(rows, language))
    text = str(bare["text"][0]) if bare.height else ""
    labels = {name: bare[name][0] for name in language.labels if name in bare.columns}
    column = pl.Series([text])
    for trial in language.trials:
        shape, pattern = trial.shape, trial.pattern
        if shape.frame != language.catch_all and column.str.contains(pattern.regex)[0]:
            values = column.str.extract_groups(pattern.regex).struct.unnest()
            typed = values.select(shape.columns[name].cast(pl.col(name)).alias(name) for name in pattern.columns)
            fields = {name: value for name, value in typed.row(0, named=True).items() if value is not None}
            return Anatomy(text, labels, shape, pattern.form, fields)
    literal, at, shape, expected = max(_ends(text, language), key=lambda end: end[:2])
    return Anatomy(text, labels, None, nearest=shape if literal >= NEAR else None, at=at, expected=expected)


def _ends(text: str, language: Language) -> list[tuple[int, int, Shape, str]]:
    """For every alternative: how many characters it knows, literally and at all, and what it wants then."""
    column = pl.Series([text])
    found = []
    for shape in language.shapes:
        if shape.frame == language.catch_all:
            continue
        for pieces in grammar.load(shape.grammar).steps(shape.frame):
            literal, at, expected, regex = 0, 0, pieces[0][1], ""
            for piece, name in pieces:
                regex, expected = regex + piece, name
                known = column.str.extract(f"^({regex})", 1)[0]
                if known is None:
                    break
                literal += len(name) - 2 if name.startswith('"') else 0
                at, expected = len(known), "the end of the line"
            found.append((literal, at, shape, expected))
    return found
