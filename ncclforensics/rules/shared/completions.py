"""InfiniBand completions with an error: selection, and the devices they name."""

from __future__ import annotations

import polars as pl

NAMED = 4  # peers or devices that a title lists


def failed_with(completion_error: pl.DataFrame, *statuses: int) -> pl.DataFrame:
    """Select the completions with one of these statuses, except those of processes that were shutting down."""
    return completion_error.filter(pl.col("status").is_in(statuses) & pl.col("at_exit").not_())


def devices_text(errors: pl.DataFrame) -> str:
    """` on mlx5_0, mlx5_1`."""
    hcas = errors["hca"].drop_nulls().unique().sort().to_list()
    return f" on {', '.join(hcas[:NAMED])}" if hcas else ""
