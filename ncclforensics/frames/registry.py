"""Registry of analyses: functions from frames to a frame, by name, with the columns they promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from ncclforensics.grammar import folders

Analysis = Callable[..., pl.DataFrame]
# Frames that `frames.run.Run` provides itself.
RUN_FRAMES = frozenset(
    {
        "source",
        "speaker",
        "repeated_line",
        "calls_between",
        "call_template",
        "call_occurrence",
        "expected_machine",
        "threshold",
    }
)


@dataclass(frozen=True, slots=True)
class RegisteredAnalysis:
    """An analysis: the function, and the columns it promises."""

    function: Analysis
    columns: Mapping[str, pl.DataType]
    of: tuple[str, ...]  # if these frames are all empty, so is the result
    is_step: bool  # only a step towards other frames: a saved run does not hold it


_ANALYSES: dict[str, RegisteredAnalysis] = {}


def analysis(
    columns: Mapping[str, pl.DataType], *, of: tuple[str, ...] = (), is_step: bool = False
) -> Callable[[Analysis], Analysis]:
    """Register a function as the analysis that computes the frame of its own name.

    `of`: if these frames are all empty, the function is not called and the frame is empty. `is_step`: a saved run
    leaves the frame out, and computes it again if another analysis needs it.
    Raises ValueError if a grammar rule, another analysis or the run itself already provides a frame of that name.
    """

    def register(function: Analysis) -> Analysis:
        name = function.__name__
        if taken := provider(name):
            raise ValueError(f"two frames are called {name}: {taken} and {_place(function)}")
        _ANALYSES[name] = RegisteredAnalysis(function, columns, of, is_step)
        return function

    return register


def provider(name: str) -> str:
    """The place that already provides a frame of this name, or an empty text."""
    if name in _ANALYSES:
        return _place(_ANALYSES[name].function)
    return "frames.run" if name in RUN_FRAMES else _grammar_rules(folders.folders()).get(name, "")


@cache
def _grammar_rules(grammar_folders: tuple[Path, ...]) -> Mapping[str, str]:
    """Rule name -> its grammar. Reads only the names, because loading all grammars takes seconds at the first time."""
    return {
        line.partition(b":")[0].partition(b".")[0].decode(): folders.shown(path)
        for folder in grammar_folders
        for path in folder.glob("*.lark")
        for line in path.read_bytes().split(b"\n")
        if line[:1].islower() and b":" in line
    }


def _place(function: Analysis) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def analyses() -> Mapping[str, RegisteredAnalysis]:
    """Every analysis that has been imported."""
    return _ANALYSES
