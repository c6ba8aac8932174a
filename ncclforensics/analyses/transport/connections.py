"""How ranks are connected, as NCCL decided it: transports, GPUDirect RDMA, channels of communicators."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.frames.registry import analysis

TRANSPORT = {
    "host": pl.Categorical(),  # whose log says it
    "medium": pl.Categorical(),  # P2P, SHM, NET, COLLNET
    "transport": pl.String(),  # P2P/CUMEM, NET/IB/GDRDMA
    "network": pl.Categorical(),
    "is_gdr": pl.Boolean(),
    "connections": pl.Int64(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first of them
}

CONNECTED = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "peer": pl.Int32(),  # actor
    "transport": pl.String(),
    "connections": pl.Int64(),
}

CHANNELS = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "rank_id": pl.Int32(),
    "coll": pl.Int32(),
    "nvls": pl.Int32(),
    "p2p": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}


MEDIUM = text_of("form").str.split("_").list.first().str.to_uppercase()
NAMED = pl.concat_str(
    MEDIUM,
    pl.coalesce(pl.col("network", "means", "copies").cast(pl.String)),
    pl.when(pl.col("gdr").is_not_null()).then(pl.lit("GDRDMA")),
    separator="/",
    ignore_nulls=True,
)


@analysis(TRANSPORT, of=("connection",))
def transport(connection: pl.DataFrame) -> pl.DataFrame:
    """Connections by host and transport.

    A connection over the network is printed at both of its ends: the larger of the two numbers counts.
    """
    by_end = connection.group_by(
        "host",
        "network",
        "direction",
        medium=MEDIUM.cast(pl.Categorical),
        transport=NAMED,
        is_gdr=pl.col("gdr").is_not_null(),
    ).agg(pl.len().cast(pl.Int64).alias("connections"), pl.col("source").first(), pl.col("line").first())
    return (
        by_end.sort("source", "line")
        .group_by("host", "medium", "transport", "network", "is_gdr", maintain_order=True)
        .agg(pl.col("connections").max(), pl.col("source").first(), pl.col("line").first())
    )


@analysis(CONNECTED, of=("connection",))
def rank_connection(connection: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Which ranks are joined to which, over what, and by how many connections, over all communicators.

    The thread that makes a communicator says so; from 2.22 on, others connect when a call first needs it.
    """
    told = connection.filter(pl.col("from").is_not_null() & pl.col("to").is_not_null()).with_row_index("row")
    told = told.select("row", "host", "pid", "tid", "pos", "from", "fromdev", "to", "todev", transport=NAMED)
    placed = join_communicator(told, communicator, member).select("row", "job", "key", "from", "to", "transport")
    memberships = member.select("key", "rank_id", place=pl.col("rank").cast(pl.Int64)).unique(["key", "place"])
    by_thread = placed.join(memberships, left_on=["key", "from"], right_on=["key", "place"]).join(
        memberships.rename({"rank_id": "peer"}), left_on=["key", "to"], right_on=["key", "place"]
    )
    rest = told.join(placed, on="row", how="anti")
    ends = ["job", "rank_id", "peer", "transport"]
    return (
        pl.concat([by_thread.select(ends), _by_device(rest, member).select(ends)])
        .group_by(ends)
        .agg(connections=pl.len().cast(pl.Int64))
        .sort(ends)
    )


def _by_device(told: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Connections whose thread made no communicator: both ends, where all communicators that it may be of agree.

    It may be of those in which this process has its number, and the other number is on the device that is printed.
    """
    memberships = member.select(
        *OWNER, "job", "key", "rank_id", place=pl.col("rank").cast(pl.Int64), dev=pl.col("cudadev").cast(pl.String)
    )
    here = memberships.drop("dev")
    there = memberships.select("key", "place", "dev", other="rank_id")
    found = []
    for near, far, names in (("from", "to", ("rank_id", "other")), ("to", "from", ("other", "rank_id"))):
        dev = pl.col(f"{far}dev").cast(pl.String)
        mine = told.with_columns(dev=dev).join(here, left_on=[*OWNER, near], right_on=[*OWNER, "place"])
        pairs = mine.join(there, left_on=["key", far, "dev"], right_on=["key", "place", "dev"])
        found.append(pairs.select("row", "job", "transport", rank_id=names[0], peer=names[1]))
    candidates = pl.concat(found)
    agreed = pl.struct("rank_id", "peer").n_unique().over("row") == 1
    return candidates.filter(agreed).unique("row", maintain_order=True)


@analysis(CHANNELS, of=("channel_count", "ring"))
def channels(
    channel_count: pl.DataFrame, ring: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """The channels that each rank opened in each communicator.

    The lines name no communicator: they stand before the COMPLETE line (or behind the first line) that the same thread
    prints for it. Versions before the summary line print rings, on rank 0 only.
    """
    thread = [*OWNER, "tid"]
    place = ["source", "line", "pos", *thread]
    counted = channel_count.select(*place, "coll", "nvls", "p2p")
    rings = (
        ring.sort("pos")
        .select(*place, total=pl.coalesce(pl.col("channels"), pl.col("channel") + 1).cast(pl.Int32))
        .join(counted.select("host", "pid").unique(), on=OWNER, how="anti")
    )
    told = pl.concat(
        [counted, rings.select(*place, pl.col("total").alias("coll"), nvls=None, p2p=None)], how="vertical_relaxed"
    )
    return (
        join_communicator(told, communicator, member)
        .group_by("job", "key", "rank_id", maintain_order=True)
        .agg(pl.col("coll", "nvls", "p2p").max(), pl.col("source").first(), pl.col("line").first())
    )


def join_communicator(told: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Rows that were printed while a communicator was made, with its job, key and actor; rows of none are left out."""
    thread = [*OWNER, "tid"]
    is_end = (pl.col("phase") == "COMPLETE") | (pl.col("form") == "completed")
    named = communicator.select("comm", *thread, "pos", at="pos", is_end=is_end.fill_null(False)).sort("pos")
    told = told.sort("pos")
    behind = told.join_asof(named.filter("is_end"), on="pos", by=thread, strategy="forward", check_sortedness=False)
    before = told.join_asof(named, on="pos", by=thread, strategy="backward", check_sortedness=False)
    memberships = member.select("host", "pid", "comm", "job", "key", "rank_id", "created_pos").sort("created_pos")
    return (
        told.with_columns(comm=pl.coalesce(behind["comm"], before["comm"]), at=pl.coalesce(behind["at"], before["at"]))
        .filter(pl.col("comm").is_not_null())
        .sort("at")
        .join_asof(memberships, left_on="at", right_on="created_pos", by=[*OWNER, "comm"], check_sortedness=False)
        .filter(pl.col("key").is_not_null())
    )
