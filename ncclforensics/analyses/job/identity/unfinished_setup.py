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
REQUESTED = ("connected", "connected_rank")  # forms of `proxy_call` that the connecting rank itself prints
COLLECTIVE = 0  # the index of connections of collectives; those of Send and Recv have no milestone


@analysis(UNFINISHED_SETUP, of=("connection", "proxy_call"))
def unfinished_setup(
    connection: pl.DataFrame,
    proxy_call: pl.DataFrame,
    milestone: pl.DataFrame,
    last_call: pl.DataFrame,
    call: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """The last connection of each rank that stands behind its last call, without the line that ends the set-up.

    From 2.22 on NCCL connects ranks at the first call that needs it (NCCL 2.22: NCCL_RUNTIME_CONNECT). It asks the
    proxy for all connections of a peer before it prints the first one; as it does so for registered buffers, too, a
    request alone shows a set-up only behind the first collective of a communicator.
    """
    is_collective = (pl.col("conn") == COLLECTIVE) & pl.col("form").is_in(["net", "p2p", "shm"])
    connections = connection.filter(is_collective).select(*OWNER, "source", "line", "pos", is_request=False)
    requests = proxy_call.filter(pl.col("form").is_in(REQUESTED)).select(
        *OWNER, "source", "line", "pos", is_request=True
    )
    last_calls = call.filter(pl.col("pos").is_in(last_call["pos"].unique().implode())).select("rank_id", "pos", "nth")
    called = last_calls.sort("pos").group_by("rank_id").agg(called=pl.col("pos").last(), nth=pl.col("nth").last())
    connected = milestone.filter(pl.col("form").is_in(CONNECTED)).group_by(OWNER).agg(connected=pl.col("pos").max())
    ranks = rank.select("rank_id", *OWNER).join(called, on="rank_id").join(connected, on=OWNER, how="left")
    rows = pl.concat([connections, requests]).join(ranks, on=OWNER)
    is_behind = (pl.col("pos") > pl.col("called")) & (pl.col("pos") > pl.col("connected").fill_null(-1))
    is_first = (pl.col("nth") == 0) & (pl.col("connected").fill_null(-1) < pl.col("called"))
    unfinished = rows.filter(is_behind & (~pl.col("is_request") | is_first)).sort("pos")
    return unfinished.group_by("rank_id").last().select(list(UNFINISHED_SETUP)).sort("rank_id")
