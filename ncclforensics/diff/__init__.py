"""Comparison of two runs by topics: each topic returns facts or figures of one run.

A topic is a function that reads frames of one run, as a rule does, and returns rows: what the row is about, its value,
and its line. `compare.compare_reports` calls it for both runs and compares the rows. Pointers, process ids, ports and
times are never facts; ranks and hosts only state the owner of a fact.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from inspect import cleandoc

import polars as pl

from ncclforensics.frames.columns import LINE, Row
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Line

# Columns of a fact. A topic may leave some out; they become null.
FACT = {
    "what": pl.String(),
    "value": pl.String(),
    "size": pl.Int64(),  # bytes; adjacent sizes with the same difference are merged
    "key": pl.String(),  # name of the communicator
    "rank": pl.Int32(),
    "host": pl.String(),
    **LINE,
}
FIGURE = {
    "what": pl.String(),
    "side": pl.String(),  # such as out-of-place; sides are compared separately and reported together
    "size": pl.Int64(),  # bytes; null where there is none
    "value": pl.Float64(),
    "unit": pl.String(),  # GB/s: more is better; us: less is better
    **LINE,
}


class Kind(StrEnum):
    """How much a difference matters."""

    SYMPTOM = "symptom"  # a result: a verdict, a bandwidth
    DIFFERENCE = "difference"  # may explain a symptom
    CONTEXT = "context"  # useful to know, but no explanation by itself


@dataclass(frozen=True, slots=True)
class Topic:
    """A registered topic."""

    function: Callable[..., pl.DataFrame]
    kind: Kind
    unit: str  # what a row of facts counts, such as `rank`; empty for figures
    needs: str  # how to run or log so that the topic has rows
    is_absence_different: bool  # a fact that only one of two runs with this topic has is a difference

    @property
    def name(self) -> str:
        """Name in reports, such as `links-measured`."""
        return self.function.__name__.replace("_", "-")

    @property
    def means(self) -> str:
        """The meaning of a difference: the first paragraph of the function's docstring."""
        return cleandoc(self.function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Side:
    """One run's values with their counts, the commonest first, and lines that show them."""

    values: list[tuple[str, int]]
    evidence: list[Line]


@dataclass(slots=True)
class Difference:
    """One difference between two runs, and the differences that it may follow from."""

    topic: str
    what: str
    kind: Kind
    good: Side
    bad: Side
    unit: str
    means: str
    certainty: str = "certain"
    weight: int = 0
    follows: list[str] = field(default_factory=list)  # topics, and variables by name


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A topic that is missing in one run, or for which the two runs have nothing in common."""

    topic: str
    absent: str  # good, bad or common
    needs: str
    other_values: list[str]  # of the run that has the topic; of both where nothing is in common


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured series over sizes, for both runs."""

    title: str
    unit: str
    points: list[tuple[int, float, float]]  # size, good, bad


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two runs."""

    good: Report
    bad: Report
    differences: list[Difference]  # symptoms first, context last; those that explain most come first
    not_compared: list[NotCompared]
    compared: list[str]  # topics that both runs have
    curves: list[Curve]

    def of(self, kind: Kind) -> list[Difference]:
        """Return the differences of one kind, in order."""
        return [difference for difference in self.differences if difference.kind is kind]

    @property
    def is_enough(self) -> bool:
        """Whether enough was compared to call the runs equal: equal versions, shape or context alone are not enough."""
        minor = {"versions", "shape", *(topic.name for topic in topics() if topic.kind is Kind.CONTEXT)}
        return self.matters or not set(self.compared) <= minor

    @property
    def matters(self) -> bool:
        """Whether there is a difference other than context."""
        return any(difference.kind is not Kind.CONTEXT for difference in self.differences)

    def evidence(self, difference: Difference) -> tuple[list[Row], list[Row]]:
        """Return path, line and text of the evidence in each run."""
        good = [self.good.cited(line.source, line.line) for line in difference.good.evidence]
        return good, [self.bad.cited(line.source, line.line) for line in difference.bad.evidence]


_TOPICS: dict[str, Topic] = {}


def topic(
    *, unit: str = "", needs: str, kind: Kind = Kind.DIFFERENCE, is_absence_different: bool = False
) -> Callable[[Callable[..., pl.DataFrame]], Callable[..., pl.DataFrame]]:
    """Register a function as a topic: of facts if a unit is given, of figures otherwise.

    Raises ValueError if a topic of that name is registered already.
    """

    def register(function: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
        if function.__name__ in _TOPICS:
            raise ValueError(f"two topics are called {function.__name__}")
        _TOPICS[function.__name__] = Topic(function, kind, unit, needs, is_absence_different)
        return function

    return register


def topics() -> list[Topic]:
    """Return all topics, ordered by the names of their modules."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return list(_TOPICS.values())
