"""Test line shapes by the examples above their rules: of all alternatives, in both engines, and apart from others."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.extensions.loading import Extension, line_of_rule
from ncclforensics.formats import dialect
from ncclforensics.grammar import folders, grammar_file
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import Shape
from ncclforensics.parsing.explain_line import explain_line

Fields = tuple[str, dict[str, str]]  # the alternative, and column -> text


def fields_by_pattern(shape: Shape, text: str) -> Fields | None:
    """The alternative that a text is and its columns, by the compiled patterns; None if it is no line of the shape."""
    column = pl.Series([text])
    for pattern in shape.patterns:
        if pattern.anchor in text and column.str.contains(pattern.regex)[0]:
            fields = column.str.extract_groups(pattern.regex)[0]
            return pattern.form, {name: value for name, value in fields.items() if value is not None}
    return None


def example_problems(extension: Extension) -> Iterator[str]:
    """Yield what is wrong with the shapes of an extension and their examples, each with file and line."""
    all_shapes = dialect().with_all_formats
    own = {shape.frame for shape in extension.shapes}
    others = pl.DataFrame(
        [
            (shape.frame, shape.priority, text)
            for shape in all_shapes.shapes
            if shape.frame not in own
            for text in shape.examples
        ],
        schema={"frame": pl.String(), "priority": pl.Int64(), "text": pl.String()},
        orient="row",
    )
    for shape in extension.shapes:
        path = folders.path_of(shape.grammar)
        place = f"{path}, line {line_of_rule(path, shape.frame)}"
        forms = set()
        for example in shape.examples:
            fields = fields_by_pattern(shape, example)
            if fields is None:
                yield f"{place}: the example is no line of {shape.frame}: {example}"
            elif not grammar_file.load(shape.grammar).is_read_as(shape.frame, example, fields):
                yield f"{place}: a terminal is too wide, for two engines read the example differently: {example}"
            elif (taker := _taker(example, all_shapes)) != shape.frame:
                yield f"{place}: {taker or 'no rule'} takes the example of {shape.frame}: {example}"
            forms.update([fields[0]] if fields else [])
        for form in sorted({pattern.form for pattern in shape.patterns} - forms):
            yield f"{place}: no example above {shape.frame} is a line of its alternative {form or 1}"
        for pattern in shape.patterns:
            rivals = others.filter((pl.col("priority") <= shape.priority) & pl.col("text").str.contains(pattern.regex))
            for frame, text in rivals.select("frame", "text").iter_rows():
                yield f"{place}: {shape.frame} also matches a line of {frame}: {text}"


def _taker(example: str, all_shapes: Dialect) -> str:
    """The rule that gets a line when a log is read; empty if there is none."""
    shape = explain_line(example, all_shapes).shape
    return shape.frame if shape else ""
