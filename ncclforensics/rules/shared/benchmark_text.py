"""Texts on benchmarks in the titles of findings."""

from __future__ import annotations

from typing import Any

import polars as pl

Row = dict[str, Any]


def called(row: Row) -> str:
    """`all_reduce on 8 ranks`, of a row of `benchmark`."""
    return f"{row['collective'] or 'a test'}" + (
        f" on {row['nranks']} rank{'s' * (row['nranks'] > 1)}" if row["nranks"] else ""
    )


def rows_of(measurement: pl.DataFrame, row: Row) -> pl.DataFrame:
    """Return the measurements of one benchmark."""
    return measurement.filter(pl.col("benchmark") == row["benchmark"])
