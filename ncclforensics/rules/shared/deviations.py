"""How findings cite and name what deviates in the map of a fabric."""

from __future__ import annotations

from typing import Any

import polars as pl

from ncclforensics.rules.finding import Line

SHOWN = 4  # names in a sentence


def rows_of(fabric_deviation: pl.DataFrame, kind: str) -> list[dict[str, Any]]:
    """The deviations of one kind, with evidence to cite."""
    return fabric_deviation.filter((pl.col("kind") == kind) & pl.col("line").is_not_null()).to_dicts()


def lines_of(row: dict[str, Any]) -> list[Line]:
    """The lines of a deviation: of what deviates, then of one that is as usual."""
    return [Line(row["source"], line) for line in dict.fromkeys(row["evidence"])]
