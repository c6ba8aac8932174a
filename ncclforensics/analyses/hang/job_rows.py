"""Rows of frames as dictionaries, which all jobs of a run share: each frame is converted and divided once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

Row = dict[str, Any]
MANY_ROWS = 10_000
# Columns that no verdict rests on. There may be a million rows, and a dictionary of few columns takes half the memory.
LEFT_OUT = {
    "member": ("comm", "incarnation", "cudadev", "busid", "commid", "parent", "child", "color", "creator", "parent_key",
               "child_number"),
}  # fmt: skip


class JobRows:
    """The rows of the frames that verdicts rest on, by the values of some columns."""

    def __init__(self, frames: dict[str, pl.DataFrame]) -> None:
        self._frames = frames
        self._rows: dict[str, list[Row]] = {}
        self._divided: dict[tuple[str, ...], dict[tuple[Any, ...], list[Row]]] = {}

    def of(self, name: str) -> list[Row]:
        """All rows of a frame."""
        if name not in self._rows:
            self._rows[name] = _dictionaries(self._frames[name].drop(LEFT_OUT.get(name, ())))
        return self._rows[name]

    def where(self, name: str, **values: Any) -> list[Row]:
        """The rows of a frame that have these values."""
        if (name, *values) not in self._divided:
            divided: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
            for row in self.of(name):
                divided[tuple(row[column] for column in values)].append(row)
            self._divided[name, *values] = divided
        return self._divided[name, *values].get(tuple(values.values()), [])


def _dictionaries(rows: pl.DataFrame) -> list[Row]:
    """The rows as dictionaries, which share equal texts of Categorical columns."""
    if len(rows) < MANY_ROWS:
        return rows.to_dicts()
    names = rows.columns
    columns = [_values(column) if column.dtype == pl.Categorical else column.to_list() for column in rows]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pl.Series) -> list[str | None]:
    codes = column.to_physical()
    texts = dict(zip(codes.unique(maintain_order=True), column.unique(maintain_order=True), strict=True))
    return [texts[code] for code in codes]
