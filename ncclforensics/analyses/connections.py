"""How ranks are connected, as NCCL decided it: transports, GPUDirect RDMA, channels of communicators."""

from __future__ import annotations

import polars as pl

from ncclforensics.columns import OWNER, text_of
from ncclforensics.frames import analysis

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
    "actor": pl.Int32(),
    "peer": pl.Int32(),  # actor
    "transport": pl.String(),
    "connections": pl.Int64(),
}

CHANNELS = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "actor": pl.Int32(),
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
def connected(connection: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Which ranks are joined to which, over what, and by how many connections, over all communicators."""
    told = connection.filter(pl.col("from").is_not_null() & pl.col("to").is_not_null())
    told = told.select("host", "pid", "tid", "pos", "from", "to", transport=NAMED)
    placed = of_communicator(told, communicator, member).select("job", "key", "from", "to", "transport")
    seats = member.select("key", "actor", place=pl.col("rank").cast(pl.Int64)).unique(["key", "place"])
    return (
        placed.join(seats, left_on=["key", "from"], right_on=["key", "place"])
        .join(seats.rename({"actor": "peer"}), left_on=["key", "to"], right_on=["key", "place"])
        .group_by("job", "actor", "peer", "transport")
        .agg(connections=pl.len().cast(pl.Int64))
        .sort("job", "actor", "peer", "transport")
    )


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
        of_communicator(told, communicator, member)
        .group_by("job", "key", "actor", maintain_order=True)
        .agg(pl.col("coll", "nvls", "p2p").max(), pl.col("source").first(), pl.col("line").first())
    )


def of_communicator(told: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Rows that were printed while a communicator was made, with its job, key and actor; rows of none are left out."""
    thread = [*OWNER, "tid"]
    is_end = (pl.col("phase") == "COMPLETE") | (pl.col("form") == "completed")
    named = communicator.select("comm", *thread, "pos", at="pos", is_end=is_end.fill_null(False)).sort("pos")
    told = told.sort("pos")
    behind = told.join_asof(named.filter("is_end"), on="pos", by=thread, strategy="forward", check_sortedness=False)
    before = told.join_asof(named, on="pos", by=thread, strategy="backward", check_sortedness=False)
    seats = member.select("host", "pid", "comm", "job", "key", "actor", "born_pos").sort("born_pos")
    return (
        told.with_columns(comm=pl.coalesce(behind["comm"], before["comm"]), at=pl.coalesce(behind["at"], before["at"]))
        .filter(pl.col("comm").is_not_null())
        .sort("at")
        .join_asof(seats, left_on="at", right_on="born_pos", by=[*OWNER, "comm"], check_sortedness=False)
        .filter(pl.col("key").is_not_null())
    )
