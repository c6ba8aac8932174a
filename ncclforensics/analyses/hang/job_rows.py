"""Rows of frames as dictionaries, which all jobs of a run share: each frame is converted and divided once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

Row = dict[str, Any]


class JobRows:
    """The rows of the frames that verdicts rest on, by the values of some columns."""

    def __init__(self, frames: dict[str, pl.DataFrame]) -> None:
        self._frames = frames
        self._rows: dict[str, list[Row]] = {}
        self._divided: dict[tuple[str, ...], dict[tuple[Any, ...], list[Row]]] = {}

    def of(self, name: str) -> list[Row]:
        """All rows of a frame."""
        if name not in self._rows:
            self._rows[name] = self._frames[name].to_dicts()
        return self._rows[name]

    def where(self, name: str, **values: Any) -> list[Row]:
        """The rows of a frame that have these values."""
        if (name, *values) not in self._divided:
            divided: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
            for row in self.of(name):
                divided[tuple(row[column] for column in values)].append(row)
            self._divided[name, *values] = divided
        return self._divided[name, *values].get(tuple(values.values()), [])
