"""Ranks that print lines of an init whose START is not in their log: an excerpt, a rotated log, or a lost line."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER, no_rows
from ncclforensics.frames.registry import analysis

UNSEEN_START = {
    "rank_id": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first such line
}


@analysis(UNSEEN_START, of=("mnnvl", "affinity", "placement", "channel_count"))
def unseen_start(
    mnnvl: pl.DataFrame,
    affinity: pl.DataFrame,
    placement: pl.DataFrame,
    channel_count: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """The first line of each rank that only an init prints, of ranks of which no line names a communicator.

    NCCL prints these lines in src/init.cc (initTransportsRank), so the rank has begun an init.
    """
    frames = (mnnvl.filter(form="fabric"), affinity, placement, channel_count)
    inside = pl.concat([frame.select(*OWNER, "source", "line", "pos") for frame in frames])
    inside = inside.join(communicator_lifetime, on=OWNER, how="anti")
    if inside.is_empty():
        return no_rows(UNSEEN_START)
    first = inside.sort("pos").unique(OWNER, keep="first", maintain_order=True)
    return first.join(rank.select("rank_id", *OWNER), on=OWNER).select(list(UNSEEN_START)).sort("rank_id")
