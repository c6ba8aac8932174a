"""Lines that wait to be parsed together, for every pattern costs its compilation, whatever it is applied to."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar.dialect import Dialect


@dataclass(slots=True)
class Batch:
    """Lines of one language that are to be parsed together, and the bytes of their text."""

    dialect: Dialect
    rows: list[pl.DataFrame] = field(default_factory=list)
    size: int = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Add lines of its language."""
        self.rows.append(rows)
        self.size += size_of(rows)

    def taken(self) -> Batch:
        """All of them; this batch is empty afterwards."""
        taken = Batch(self.dialect, self.rows, self.size)
        self.rows, self.size = [], 0
        return taken


class Batches:
    """A batch for each language."""

    def __init__(self) -> None:
        self._by_language: dict[tuple[str, ...], Batch] = {}

    def add(self, dialect: Dialect, rows: pl.DataFrame) -> None:
        """Add lines of a language."""
        self._by_language.setdefault(dialect.detected, Batch(dialect)).add(rows)

    def ready(self, size: int) -> list[Batch]:
        """Those that hold so many bytes, taken."""
        return [batch.taken() for batch in self.batches if batch.size >= size]

    @property
    def batches(self) -> list[Batch]:
        """Those that hold lines."""
        return [batch for batch in self._by_language.values() if batch.rows]


def size_of(rows: pl.DataFrame) -> int:
    """Bytes of text, ends of lines included."""
    return int(rows["text"].estimated_size()) + rows.height
