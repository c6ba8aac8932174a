"""How NCCL connected the ranks: transports, GPUDirect RDMA, channels per communicator."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, OWNER, text_of
from ncclforensics.frames.registry import analysis

TRANSPORT = {
    "host": pl.Categorical(),  # of the process that printed it
    "medium": pl.Categorical(),  # P2P, SHM, NET, COLLNET
    "transport": pl.String(),  # P2P/CUMEM, NET/IB/GDRDMA
    "network": pl.Categorical(),
    "is_gdr": pl.Boolean(),
    "connections": pl.Int64(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first connection
}

RANK_CONNECTION = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "peer": pl.Int32(),  # rank id of the other end
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
    **LINE,
}

MEDIUM = text_of("form").str.split("_").list.first().str.to_uppercase()
TRANSPORT_NAME = pl.concat_str(
    MEDIUM,
    pl.coalesce(pl.col("network", "means", "copies").cast(pl.String)),
    pl.when(pl.col("gdr").is_not_null()).then(pl.lit("GDRDMA")),
    separator="/",
    ignore_nulls=True,
)


@analysis(TRANSPORT, of=("connection",))
def transport(connection: pl.DataFrame) -> pl.DataFrame:
    """One row per host and transport, with the number of connections.

    NCCL prints a network connection at both ends: the larger of the two numbers counts.
    """
    by_end = connection.group_by(
        "host",
        "network",
        "direction",
        medium=MEDIUM.cast(pl.Categorical),
        transport=TRANSPORT_NAME,
        is_gdr=pl.col("gdr").is_not_null(),
    ).agg(pl.len().cast(pl.Int64).alias("connections"), pl.col("source").first(), pl.col("line").first())
    return (
        by_end.sort("source", "line")
        .group_by("host", "medium", "transport", "network", "is_gdr", maintain_order=True)
        .agg(pl.col("connections").max(), pl.col("source").first(), pl.col("line").first())
    )


@analysis(RANK_CONNECTION, of=("connection",))
def rank_connection(connection: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """One row per pair of ranks and transport, with the number of connections in all communicators.

    The thread that creates a communicator prints its connections; from NCCL 2.22 on, other threads connect when a call
    first needs it.
    """
    printed = connection.filter(pl.col("from").is_not_null() & pl.col("to").is_not_null()).with_row_index("row")
    printed = printed.select(
        "row", "host", "pid", "tid", "pos", "from", "fromdev", "to", "todev", transport=TRANSPORT_NAME
    )
    assigned = join_communicator(printed, communicator, member).select("row", "job", "key", "from", "to", "transport")
    memberships = member.select("key", "rank_id", place=pl.col("rank").cast(pl.Int64)).unique(["key", "place"])
    by_thread = assigned.join(memberships, left_on=["key", "from"], right_on=["key", "place"]).join(
        memberships.rename({"rank_id": "peer"}), left_on=["key", "to"], right_on=["key", "place"]
    )
    rest = printed.join(assigned, on="row", how="anti")
    ends = ["job", "rank_id", "peer", "transport"]
    return (
        pl.concat([by_thread.select(ends), _by_device(rest, member).select(ends)])
        .group_by(ends)
        .agg(connections=pl.len().cast(pl.Int64))
        .sort(ends)
    )


def _by_device(connections: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Find both ends of connections whose thread created no communicator, if all candidate communicators agree.

    A communicator is a candidate if this process has the printed rank in it and the other rank has the printed device.
    """
    memberships = member.select(
        *OWNER, "job", "key", "rank_id", place=pl.col("rank").cast(pl.Int64), dev=pl.col("cudadev").cast(pl.String)
    )
    local = memberships.drop("dev")
    remote = memberships.select("key", "place", "dev", other="rank_id")
    pairs = []
    for near, far, names in (("from", "to", ("rank_id", "other")), ("to", "from", ("other", "rank_id"))):
        dev = pl.col(f"{far}dev").cast(pl.String)
        ends = connections.with_columns(dev=dev).join(local, left_on=[*OWNER, near], right_on=[*OWNER, "place"])
        both_ends = ends.join(remote, left_on=["key", far, "dev"], right_on=["key", "place", "dev"])
        pairs.append(both_ends.select("row", "job", "transport", rank_id=names[0], peer=names[1]))
    candidates = pl.concat(pairs)
    is_unique = pl.struct("rank_id", "peer").n_unique().over("row") == 1
    return candidates.filter(is_unique).unique("row", maintain_order=True)


@analysis(CHANNELS, of=("channel_count", "ring"))
def channels(
    channel_count: pl.DataFrame, ring: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """One row per rank and communicator: the number of channels of each kind.

    The lines name no communicator: the same thread prints them before the COMPLETE line (or after the first line) of
    the communicator. NCCL versions without the summary line print rings, on rank 0 only.
    """
    thread = [*OWNER, "tid"]
    place = ["source", "line", "pos", *thread]
    counted = channel_count.select(*place, "coll", "nvls", "p2p")
    rings = (
        ring.sort("pos")
        .select(*place, total=pl.coalesce(pl.col("channels"), pl.col("channel") + 1).cast(pl.Int32, strict=False))
        .join(counted.select("host", "pid").unique(), on=OWNER, how="anti")
    )
    printed = pl.concat(
        [counted, rings.select(*place, pl.col("total").alias("coll"), nvls=None, p2p=None)], how="vertical_relaxed"
    )
    return (
        join_communicator(printed, communicator, member)
        .group_by("job", "key", "rank_id", maintain_order=True)
        .agg(pl.col("coll", "nvls", "p2p").max(), pl.col("source").first(), pl.col("line").first())
    )


def join_communicator(rows: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Add job, key and rank id to rows that a thread printed while it created a communicator; drop all other rows."""
    thread = [*OWNER, "tid"]
    is_end = (pl.col("phase") == "COMPLETE") | (pl.col("form") == "completed")
    named = communicator.select("comm", *thread, "pos", at="pos", is_end=is_end.fill_null(False)).sort("pos")
    rows = rows.sort("pos")
    following = rows.join_asof(named.filter("is_end"), on="pos", by=thread, strategy="forward", check_sortedness=False)
    preceding = rows.join_asof(named, on="pos", by=thread, strategy="backward", check_sortedness=False)
    memberships = member.select("host", "pid", "comm", "job", "key", "rank_id", "created_pos").sort("created_pos")
    return (
        rows.with_columns(pl.coalesce(following[name], preceding[name]).alias(name) for name in ("comm", "at"))
        .filter(pl.col("comm").is_not_null())
        .sort("at")
        .join_asof(memberships, left_on="at", right_on="created_pos", by=[*OWNER, "comm"], check_sortedness=False)
        .filter(pl.col("key").is_not_null())
    )
