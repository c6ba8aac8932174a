"""Registry of analyses: functions from frames to a frame, by name, with the columns they promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

Analysis = Callable[..., pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Computed:
    """An analysis: the function, and the columns it promises."""

    function: Analysis
    columns: Mapping[str, pl.DataType]
    of: tuple[str, ...]  # the frames whose rows it tells of


_ANALYSES: dict[str, Computed] = {}


def analysis(columns: Mapping[str, pl.DataType], *, of: tuple[str, ...] = ()) -> Callable[[Analysis], Analysis]:
    """Declare a function to be the analysis of its own name; a second one of that name is refused.

    `of`: the frames whose rows it tells of. Where these are all empty it is not asked, for it has nothing to tell.
    """

    def register(function: Analysis) -> Analysis:
        name = function.__name__
        if name in _ANALYSES:
            raise ValueError(f"two analyses are called {name}: {_ANALYSES[name].function.__module__}")
        _ANALYSES[name] = Computed(function, columns, of)
        return function

    return register


def analyses() -> Mapping[str, Computed]:
    """Every analysis that has been imported."""
    return _ANALYSES
