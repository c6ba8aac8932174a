"""What a grammar is compiled into: shapes, and their patterns as regular expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from ncclforensics.grammar.column_types import ColumnType, dtype_of

if TYPE_CHECKING:
    import polars as pl

FORM = "form"  # the column that names the alternative that matched
RESERVED = (FORM, "source", "line", "pos", "after")  # columns of every frame, some only while frames are assembled


class Suffix(TypedDict):
    """The part of a pattern after the prefix rule that it begins with."""

    regex: str
    columns: list[str]
    starts: list[str]  # literals; every matching text begins with one of them
    anchor: str  # a literal in every matching text; empty if there is none
    words: list[str]  # literals; one of them stands in every matching text
    literals: list[str]  # all of which stand in every matching text, in this order


class Pattern(NamedTuple):
    """One alternative of a rule, as a regular expression that Rust and Python read alike."""

    form: str
    regex: str
    anchor: str  # a literal in every matching line; empty if there is none
    words: Sequence[str]  # literals; one of them stands in every matching line
    literals: Sequence[str]  # all of which stand in every matching line, in this order
    columns: Sequence[str]
    is_open: bool  # ends with a value that would still match if the line were cut inside it
    suffixes: Mapping[str, Suffix]  # by the prefix rules it begins with, outermost first

    @property
    def is_greedy(self) -> bool:
        """Whether free text ends the line."""
        return self.regex.rstrip("$)?").endswith((".+", ".*"))

    @property
    def may_go_on(self) -> bool:
        """Whether a matching line with more text behind it may match as well."""
        return self.is_open or self.regex.rstrip("$)?").endswith((".+", ".*", "]+", "]*"))


class Signature(NamedTuple):
    """How a line is recognised that only one format has."""

    anchor: str  # a literal in every such line; empty if there is none
    words: Sequence[str]  # literals; one of them stands in every such line
    literals: Sequence[str]  # all of which stand in it, in this order
    regex: str


class Shape(NamedTuple):
    """One rule of a grammar: its frame, patterns, column types and example lines."""

    frame: str
    grammar: str
    patterns: tuple[Pattern, ...]
    columns: Mapping[str, ColumnType]
    examples: tuple[str, ...]
    needs: str  # how to have such lines printed: the `// needs:` line of the grammar
    priority: int

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Column -> dtype, without `source` and `line`, which every parsed frame carries."""
        return {FORM: dtype_of("Categorical"), **{name: base.dtype for name, base in self.columns.items()}}


class OutputHead(NamedTuple):
    """Lines where outputs begin that a tool prints again and again, or that stand above such outputs."""

    frame: str
    form: str | None  # only lines of this form
    columns: tuple[str, ...]  # which tell what is sampled: a port, an interface, a GPU


def may_match(text: str, literals: Iterable[str], words: Iterable[str]) -> bool:
    """Whether the literals that a pattern cannot do without stand in a text, and so does one of its words.

    To look for them in few texts takes less time than to compile the pattern.
    """
    end = 0
    for literal in literals:
        start = text.find(literal, end)
        if start < 0:
            return False
        end = start + len(literal)
    return any(word in text for word in words)


def any_of(patterns: Iterable[Pattern]) -> str:
    """One regex that matches whatever any pattern matches, without group names.

    A single regex, because a call of the engine costs more than the search itself.
    """
    head, *rest = "|".join(pattern.regex for pattern in patterns).split("(?P<")
    return "(?:".join([head, *(piece.partition(">")[2] for piece in rest)])
