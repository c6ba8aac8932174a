"""Lines of a file in the order of the ends of launches: what stands behind one, and what stood last before a line."""

from __future__ import annotations

import polars as pl

STEP = "training_step"  # frame
REPORTS = "elastic_failure"  # frame of torchrun's agents
OF_ONE = ("process", "rank")  # forms of `program_success` that are not of the whole program


def after_ends(rows: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """The rows behind the last end that has one behind it, in each input, with the place of that `end`."""
    placed = with_last_before(rows, ended.select("source", "pos", end="pos")).drop_nulls("end")
    return placed.filter(pl.col("end") == pl.col("end").max().over("source"))


def with_last_before(rows: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Add to each row, by `pos`, the columns of the last one of `lines` before it in its input; null without one."""
    return rows.sort("pos").join_asof(lines.sort("pos"), on="pos", by="source", check_sortedness=False)
