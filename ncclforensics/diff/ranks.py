"""Ranks of processes, and kinds of communicators: what two runs have in common, whatever their pids and keys."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER, text_of


def add_rank(rows: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Add `rank` to rows of processes; null where it is not known."""
    memberships = rank.unique(OWNER, keep="first", maintain_order=True).select(*OWNER, "rank")
    return rows.join(memberships, on=OWNER, how="left", maintain_order="left").with_columns(host=text_of("host"))


def communicator_kinds(member: pl.DataFrame) -> pl.DataFrame:
    """Return `job`, `key` and `kind` of each communicator; the kind is `world of 16 ranks` or `group of 8 ranks`.

    The size is enough: not all versions log how a communicator was created.
    """
    named = member.select("job", "key", "nranks").unique(["job", "key"], keep="first", maintain_order=True)
    is_largest = pl.col("nranks") == pl.col("nranks").max().over("job")
    name = pl.when(is_largest).then(pl.lit("world")).otherwise(pl.lit("group"))
    return named.select("job", "key", kind=pl.format("{} of {} ranks", name, "nranks"))
