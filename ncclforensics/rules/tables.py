"""How findings on a benchmark speak of it: what it is called, and which of its lines prove them."""

from __future__ import annotations

from typing import Any

import polars as pl

from ncclforensics.rules import Line

SHOWN = 4  # lines of evidence
Row = dict[str, Any]


def called(row: Row) -> str:
    """`all_reduce on 8 ranks`, of a row of `benchmark`."""
    return f"{row['collective'] or 'a test'}" + (
        f" on {row['nranks']} rank{'s' * (row['nranks'] > 1)}" if row["nranks"] else ""
    )


def rows_of(measurement: pl.DataFrame, row: Row) -> pl.DataFrame:
    """What was measured in one benchmark."""
    return measurement.filter(pl.col("benchmark") == row["benchmark"])


def lines_of(rows: pl.DataFrame, what: str = "") -> list[Line]:
    """The first lines of these rows, each once, in their order."""
    places = rows.select("source", "line").unique(maintain_order=True).head(SHOWN)
    return [Line(source, line, what) for source, line in places.iter_rows()]
