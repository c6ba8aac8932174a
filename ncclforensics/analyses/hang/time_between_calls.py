"""Compute how long each rank of a capture stays outside of calls, by its own clock.

A journal has a line before each call and one after its return. The time between them is shared by all ranks; the time
from one return to the next call is the rank's own, and no clock of another host is needed to compare it.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.stragglers import SECOND, YEAR
from ncclforensics.frames.columns import LINE, OWNER
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import time_of

TIME_BETWEEN_CALLS = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "nranks": pl.Int32(),
    "ordinal": pl.Int32(),  # of the call that follows
    "seconds": pl.Float64(),  # from the return of the call before
    "excess": pl.Float64(),  # seconds beyond the median of the other ranks over all calls
    **LINE,
}


@analysis(TIME_BETWEEN_CALLS, of=("journal_done",))
def time_between_calls(
    journal_call: pl.DataFrame, journal_done: pl.DataFrame, journal_init: pl.DataFrame, rank: pl.DataFrame
) -> pl.DataFrame:
    """One row per rank and call of a capture whose predecessor and which itself returned before the next call."""
    pointer = [*OWNER, "comm"]
    done = _with_time(journal_done)
    previous = done.select(*pointer, pl.col("ordinal") + 1, returned="time")
    created = journal_init.filter(pl.col("phase") == "START").select(*pointer, "nranks")
    gaps = (
        _with_time(journal_call)
        .join(previous, on=[*pointer, "ordinal"])
        .join(done.select(*pointer, "ordinal"), on=[*pointer, "ordinal"], how="semi")
        .join(created.unique(pointer), on=pointer)
        .join(rank.filter(pl.len().over(OWNER) == 1).select("job", "rank_id", *OWNER), on=OWNER)
        .with_columns(seconds=(pl.col("time") - pl.col("returned")) / SECOND)
    )
    typical = gaps.group_by("job", "rank_id").agg(pl.col("seconds").median())
    others = (
        typical.select("job", "rank_id")
        .join(typical.rename({"rank_id": "other"}), on="job")
        .filter(pl.col("rank_id") != pl.col("other"))
        .group_by("job", "rank_id")
        .agg(usual=pl.col("seconds").median())
    )
    return (
        gaps.join(others, on=["job", "rank_id"])
        .with_columns(excess=pl.col("seconds") - pl.col("usual"))
        .sort("rank_id", "ordinal")
    )


def _with_time(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows whose time is readable, with it in microseconds."""
    time = time_of("stamp", YEAR).dt.epoch("us")
    return rows.with_columns(time=time).filter(pl.col("time").is_not_null())
