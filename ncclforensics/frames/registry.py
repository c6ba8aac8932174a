"""Registry of analyses: functions from frames to a frame, by name, with the columns they promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, cast

import polars as pl

from ncclforensics.frames.columns import columns_of, no_rows
from ncclforensics.frames.declarations import declarations
from ncclforensics.grammar import folders
from ncclforensics.grammar.column_types import dtype_of
from ncclforensics.grammar.grammar_file import grammar_of

Analysis = Callable[..., "pl.DataFrame"]
# Frames that `frames.run.Run` provides itself.
RUN_FRAMES = frozenset(
    {
        "source",
        "speaker",
        "voice",
        "repeated_line",
        "earlier_launch",
        "stated_line",
        "calls_between",
        "call_template",
        "call_occurrence",
        "expected_machine",
        "threshold",
    }
)


class RegisteredAnalysis:
    """An analysis: where its function is, and the columns it promises.

    `declared`: the class of its rows, or column -> its data type, or what `_described` gave of it. `of`: if these
    frames are all empty, so is the result. `is_step`: only a step towards other frames, which a saved run does not
    hold. `imported`: the function, if its module was imported when this was registered.
    """

    def __init__(
        self,
        name: str,
        module: str,
        declared: type | Mapping[str, Any],
        of: tuple[str, ...],
        is_step: bool,
        imported: Analysis | None = None,
    ) -> None:
        self.name, self.module, self.imported = name, module, imported
        self.declared, self.of, self.is_step = declared, of, is_step

    @cached_property
    def columns(self) -> dict[str, pl.DataType]:
        """The columns it promises; of most analyses no start asks for them."""
        if isinstance(self.declared, type):
            return columns_of(self.declared)
        return {name: _dtype(declared) for name, declared in self.declared.items()}

    @cached_property
    def no_rows(self) -> pl.DataFrame:
        """Its frame where there is nothing to analyse, as in most runs."""
        return no_rows(self.columns)

    @property
    def function(self) -> Analysis:
        """The function; its module is imported if need be."""
        return self.imported or cast(Analysis, getattr(import_module(self.module), self.name))


_ANALYSES: dict[str, RegisteredAnalysis] = {}


def analysis(
    columns: type | Mapping[str, pl.DataType], *, of: tuple[str, ...] = (), is_step: bool = False
) -> Callable[[Analysis], Analysis]:
    """Register a function as the analysis that computes the frame of its own name.

    `columns`: of that frame, or the class of its rows. `of`: if these frames are all empty, the function is not called
    and the frame is empty. `is_step`: a saved run leaves the frame out, and computes it again if another one needs it.
    Raises ValueError if a grammar rule, another analysis or the run itself already provides a frame of that name.
    """

    def register(function: Analysis) -> Analysis:
        name, module = function.__name__, function.__module__
        declared = _ANALYSES.get(name)
        is_declared = declared is not None and declared.imported is None and declared.module == module
        if not is_declared and (taken := provider(name)):
            raise ValueError(f"two frames are called {name}: {taken} and {module}.{name}")
        known = declared.declared if is_declared and declared else columns
        _ANALYSES[name] = RegisteredAnalysis(name, module, known, of, is_step, function)
        return function

    return register


def declare_analyses(package: str) -> None:
    """Register the analyses in all modules of a package of the program, without importing these if they are known."""

    def describe() -> list[Any]:
        return [
            [
                entry.name,
                entry.module,
                {name: _described(dtype) for name, dtype in entry.columns.items()},
                entry.of,
                entry.is_step,
            ]
            for entry in _ANALYSES.values()
        ]

    for name, module, columns, of, is_step in declarations(package, describe):
        _ANALYSES.setdefault(name, RegisteredAnalysis(name, module, columns, tuple(of), is_step))


def _described(dtype: pl.DataType) -> Any:
    """A data type as JSON: its name, and what is inside of it."""
    if isinstance(dtype, pl.List):
        return ["List", _described(cast(pl.DataType, dtype.inner))]
    if isinstance(dtype, pl.Struct):
        return ["Struct", {field.name: _described(cast(pl.DataType, field.dtype)) for field in dtype.fields}]
    return type(dtype).__name__


def _dtype(described: Any) -> pl.DataType:
    """The data type that was described, or given as it is."""
    match described:
        case pl.DataType():
            return described
        case ["List", inner]:
            return pl.List(_dtype(inner))
        case ["Struct", fields]:
            return pl.Struct({name: _dtype(inner) for name, inner in fields.items()})
    return dtype_of(described)


def provider(name: str) -> str:
    """The place that already provides a frame of this name, or an empty text."""
    if name in _ANALYSES:
        return f"{_ANALYSES[name].module}.{name}"
    if name in RUN_FRAMES:
        return "frames.run"
    grammar = grammar_of(name)
    return folders.shown(folders.path_of(grammar)) if grammar else ""


def analyses() -> Mapping[str, RegisteredAnalysis]:
    """Every analysis: of the program, once the package `analyses` is imported, and of a user's own modules."""
    return _ANALYSES
