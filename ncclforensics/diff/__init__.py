"""What differs between two runs that matters: topics, each of which tells facts or figures of one run.

A topic is a function that reads frames of one run, as a rule does, and returns rows: what is told, its value, where it
stands. It is asked of both runs, and `compared` compares the answers. Pointers, process ids, ports and times are never
facts; ranks and hosts only say of whom a fact is.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from inspect import cleandoc

import polars as pl

from ncclforensics.report.build import Report, Row
from ncclforensics.rules.finding import Line

# A topic returns some of these; what it leaves out is null.
FACT = {
    "what": pl.String(),
    "value": pl.String(),
    "size": pl.Int64(),  # bytes; sizes next to one another with the same difference become one
    "key": pl.String(),  # name of the communicator
    "rank": pl.Int32(),
    "host": pl.String(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}
FIGURE = {
    "what": pl.String(),
    "side": pl.String(),  # such as out-of-place; sides are compared each for itself, and told together
    "size": pl.Int64(),  # bytes; null where there is none
    "value": pl.Float64(),
    "unit": pl.String(),  # GB/s: more is better; us: less is better
    "source": pl.Int32(),
    "line": pl.Int32(),
}


class Kind(StrEnum):
    """What a difference is to the reader."""

    SYMPTOM = "symptom"  # how it came out: a verdict, a bandwidth
    DIFFERENCE = "difference"  # what may explain it
    CONTEXT = "context"  # to be known, and no reason by itself


@dataclass(frozen=True, slots=True)
class Topic:
    """A registered topic."""

    function: Callable[..., pl.DataFrame]
    kind: Kind
    unit: str  # what a row of a fact stands for; empty for figures
    needs: str  # what makes a run tell it
    absence_tells: bool  # where both runs tell any fact of the topic, a fact that one lacks is a difference

    @property
    def name(self) -> str:
        """The word for it in reports."""
        return self.function.__name__.replace("_", "-")

    @property
    def means(self) -> str:
        """What a difference means, in a sentence."""
        return cleandoc(self.function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Side:
    """What one run says: each value with how many say so, the commonest first."""

    values: list[tuple[str, int]]
    evidence: list[Line]


@dataclass(slots=True)
class Difference:
    """One thing that differs, and what others it may follow from."""

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
    """What one run does not tell, and what the other says of it; or what each tells, where nothing is in common."""

    topic: str
    absent: str  # good, bad or common
    needs: str
    told: list[str]


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured series over sizes, of both runs."""

    title: str
    unit: str
    points: list[tuple[int, float, float]]  # size, good, bad


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything a view shows."""

    good: Report
    bad: Report
    differences: list[Difference]  # symptoms first, context last; between them what explains most is first
    not_compared: list[NotCompared]
    compared: list[str]  # topics that both runs tell
    curves: list[Curve]

    def of(self, kind: Kind) -> list[Difference]:
        """Those of one kind, in order."""
        return [one for one in self.differences if one.kind is kind]

    @property
    def is_enough(self) -> bool:
        """Both runs tell something in common that could differ and matter; that the versions agree says nothing yet."""
        slight = {"versions", "shape", *(one.name for one in topics() if one.kind is Kind.CONTEXT)}
        return self.matters or not set(self.compared) <= slight

    @property
    def matters(self) -> bool:
        """Something differs that is not mere context."""
        return any(one.kind is not Kind.CONTEXT for one in self.differences)

    def evidence(self, difference: Difference) -> tuple[list[Row], list[Row]]:
        """Path, line and text of what each run says."""
        good = [self.good.cited(line.source, line.line) for line in difference.good.evidence]
        return good, [self.bad.cited(line.source, line.line) for line in difference.bad.evidence]


_TOPICS: dict[str, Topic] = {}


def topic(
    *, unit: str = "", needs: str, kind: Kind = Kind.DIFFERENCE, absence_tells: bool = False
) -> Callable[[Callable[..., pl.DataFrame]], Callable[..., pl.DataFrame]]:
    """Register a function as a topic: of facts where a unit is given, of figures otherwise."""

    def register(function: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
        if function.__name__ in _TOPICS:
            raise ValueError(f"two topics are called {function.__name__}")
        _TOPICS[function.__name__] = Topic(function, kind, unit, needs, absence_tells)
        return function

    return register


def topics() -> list[Topic]:
    """Every topic, in the order of the modules' names."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return list(_TOPICS.values())
