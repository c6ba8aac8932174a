"""Processes whose log ends while NCCL sets up connections: after their last call, and before the set-up is complete."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER
from ncclforensics.frames.registry import analysis

UNFINISHED_SETUP = {
    "rank_id": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the last connection of a collective
}

CONNECTED = ("rings", "trees", "nvls_trees", "binomial_trees")  # forms of `milestone` behind the connections
COLLECTIVE = 0  # the index of connections of collectives; those of Send and Recv have no milestone


@analysis(UNFINISHED_SETUP, of=("connection",))
def unfinished_setup(
    connection: pl.DataFrame, milestone: pl.DataFrame, last_call: pl.DataFrame, rank: pl.DataFrame
) -> pl.DataFrame:
    """The last connection of each rank that stands behind its last call, without the line that ends the set-up.

    From 2.22 on NCCL connects ranks at the first call that needs it (NCCL 2.22: NCCL_RUNTIME_CONNECT).
    """
    is_collective = (pl.col("conn") == COLLECTIVE) & pl.col("form").is_in(["net", "p2p", "shm"])
    last = connection.filter(is_collective).sort("pos").group_by(OWNER).last().select(*OWNER, "source", "line", "pos")
    connected = milestone.filter(pl.col("form").is_in(CONNECTED)).group_by(OWNER).agg(connected=pl.col("pos").max())
    called = last_call.group_by("rank_id").agg(called=pl.col("pos").max())
    ranks = last.join(rank.select("rank_id", *OWNER), on=OWNER).join(called, on="rank_id")
    ranks = ranks.join(connected, on=OWNER, how="left")
    is_unfinished = (pl.col("pos") > pl.col("called")) & (pl.col("pos") > pl.col("connected").fill_null(-1))
    return ranks.filter(is_unfinished).select(list(UNFINISHED_SETUP)).sort("rank_id")
