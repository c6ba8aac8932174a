"""Batch lines of one dialect, to amortise regex compilation."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.lines import Stretch, of_stretches
from ncclforensics.inputs.windows import Lines

LINE = 128  # bytes of text that take as much memory, while they are matched, as a line does by itself


@dataclass(slots=True)
class Batch:
    """Lines of one dialect that are parsed together, the bytes of their text, and their number."""

    dialect: Dialect
    rows: list[Lines] = field(default_factory=list)
    size: int = 0
    lines: int = 0

    @property
    def weight(self) -> int:
        """What parsing them takes in memory, in bytes of text: many short lines take more than few long ones."""
        return self.size + LINE * self.lines

    def add(self, rows: Lines) -> Batch:
        """Add lines of the batch's dialect, and return the batch."""
        self.rows.append(rows)
        self.size += byte_size(rows)
        self.lines += rows.height
        return self

    def frame(self) -> pl.DataFrame:
        """All lines of the batch as rows."""
        frames = [rows for rows in self.rows if isinstance(rows, pl.DataFrame)]
        if stretches := [rows for rows in self.rows if isinstance(rows, Stretch)]:
            frames.append(of_stretches(stretches))
        return pl.concat(frames, how="diagonal")

    def take(self) -> Batch:
        """Move all lines into a new batch; this one is empty afterwards."""
        taken = Batch(self.dialect, self.rows, self.size, self.lines)
        self.rows, self.size, self.lines = [], 0, 0
        return taken


class Batches:
    """One batch for each dialect."""

    def __init__(self) -> None:
        self._by_dialect: dict[tuple[str, ...], Batch] = {}

    def add(self, dialect: Dialect, rows: Lines) -> None:
        """Add lines to the batch of their dialect."""
        self._by_dialect.setdefault(dialect.detected, Batch(dialect)).add(rows)

    def take(self, at_least: int) -> list[Batch]:
        """Move out every batch that holds lines and has at least this weight."""
        return [batch.take() for batch in self.filled if batch.weight >= at_least]

    @property
    def filled(self) -> list[Batch]:
        """Batches that hold lines."""
        return [batch for batch in self._by_dialect.values() if batch.rows]


def byte_size(rows: Lines) -> int:
    """Bytes of text, ends of lines included."""
    if isinstance(rows, Stretch):
        return len(rows.data)
    return int(rows["text"].estimated_size()) + rows.height
