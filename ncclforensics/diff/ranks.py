"""Whose facts they are: the rank of a process, and what a communicator is in its job, whatever its name."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER, text_of


def of_rank(rows: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Rows of processes with the `rank` of each, null where it is not known."""
    memberships = rank.unique(OWNER, keep="first", maintain_order=True).select(*OWNER, "rank")
    return rows.join(memberships, on=OWNER, how="left", maintain_order="left").with_columns(host=text_of("host"))


def roles(member: pl.DataFrame) -> pl.DataFrame:
    """What each communicator is, by size alone: `world of 16 ranks`, `group of 8 ranks`; columns `job`, `key`, `role`.

    How it was made is not told by all versions, and is not what matters.
    """
    named = member.select("job", "key", "nranks").unique(["job", "key"], keep="first", maintain_order=True)
    is_largest = pl.col("nranks") == pl.col("nranks").max().over("job")
    kind = pl.when(is_largest).then(pl.lit("world")).otherwise(pl.lit("group"))
    return named.select("job", "key", role=pl.format("{} of {} ranks", kind, "nranks"))
