"""Endpoints of links: for each port with counters, the port at the other end, from dumps of the fabric."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import PORT
from ncclforensics.analyses.fabric.fabric_tools import host_and_device
from ncclforensics.frames.registry import analysis

PORT_PEER = {
    "key": pl.String(),  # of counter_increase
    "peer_key": pl.String(),  # null if the other end has no counters
    **{f"peer_{name}": dtype for name, dtype in PORT.items()},
    "rate_Gbps": pl.Float64(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # that shows the link
}


def aliases(rows: pl.DataFrame, prefix: str = "") -> pl.Expr:
    """List the names by which a port may be known: GUID, LID, host and device, node; each with the port number."""

    def name(form: str, *columns: str) -> pl.Expr:
        named = [f"{prefix}{column}" for column in columns]
        return pl.format(form, *named) if set(named) <= set(rows.columns) else pl.lit(None, pl.String)

    return pl.concat_list(
        name("{} {}", "guid", "port"),
        name("LID {} {}", "lid", "port"),
        name("{} {} {}", "host", "device", "port"),
        name("{} {}", "node", "port"),
    )


@analysis(PORT_PEER, of=("port_state",))
def port_peer(port_state: pl.DataFrame, counter_increase: pl.DataFrame) -> pl.DataFrame:
    """One row per port with counters whose link is known: the port at the other end."""
    linked = port_state.filter(pl.col("peer_port").is_not_null()).with_row_index("_link")
    counted = counter_increase.unique("key", keep="first", maintain_order=True).select("key", *PORT)
    by_alias = counted.with_columns(alias=aliases(counted)).explode("alias").drop_nulls("alias")
    keys = by_alias.group_by("alias").agg(pl.col("key").first(), ports=pl.col("key").n_unique())
    keys = keys.filter(pl.col("ports") == 1).drop("ports")

    def end(prefix: str) -> pl.DataFrame:
        ends = linked.with_columns(alias=aliases(linked, prefix)).select("_link", "alias").explode("alias")
        return ends.join(keys, on="alias").group_by("_link").agg(pl.col("key").first())

    hosts = counted.select(peer_key="key", counted_host="host", counted_device="device", counted_guid="guid")
    host, device = host_and_device("peer_node")
    both = (
        linked.join(end(""), on="_link")
        .join(end("peer_").rename({"key": "peer_key"}), on="_link", how="left")
        .join(hosts, on="peer_key", how="left")
        .with_columns(
            peer_host=pl.coalesce("counted_host", host),
            peer_device=pl.coalesce("counted_device", device),
            peer_guid=pl.coalesce("peer_guid", "counted_guid"),
        )
    )
    return both.sort("source", "line").unique("key", keep="last", maintain_order=True)
