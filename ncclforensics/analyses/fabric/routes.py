"""How many hosts each uplink of a leaf serves, by the forwarding tables of the switches."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.fabric_tools import guid_of
from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above
from ncclforensics.data.fabric import ROUTE_RATIO, ROUTES_APART, ROUTES_LEAST, UPLINKS_LEAST
from ncclforensics.frames.registry import analysis

ROUTE = {
    "table_guid": pl.String(),  # of the switch
    "lid": pl.Int32(),
    "out_port": pl.Int32(),
    "source": pl.Int32(),
    "head_line": pl.Int32(),  # of the switch's table
}
UPLINK_ROUTES = {
    "leaf": pl.String(),  # GUID
    "name": pl.String(),
    "port": pl.Int32(),
    "parent": pl.String(),  # name of the switch above
    "hosts": pl.Int64(),  # ports of hosts on other leaves that are reached through this uplink
    "mean": pl.Float64(),  # of the leaf's uplinks
    "is_bent": pl.Boolean(),  # one uplink of the leaf carries a multiple of the mean, or half of them nothing
    "source": pl.Int32(),  # of the head of the leaf's table
    "line": pl.Int32(),
}


@analysis(ROUTE, of=("route_switch",), is_step=True)
def route(route_switch: pl.DataFrame, route_entry: pl.DataFrame) -> pl.DataFrame:
    """One row per switch and LID: the port by which the switch sends there."""
    heads = route_switch.select(*OUTPUT_KEY, "line", table_guid=guid_of("guid"))
    entries = route_entry.filter(pl.col("out_port").is_not_null()).with_columns(lid=pl.col("route_lid").cast(pl.Int32))
    known = add_heading_above(entries, heads).drop_nulls("table_guid")
    return known.unique(["table_guid", "lid"], keep="last", maintain_order=True)


@analysis(UPLINK_ROUTES, of=("route",))
def uplink_routes(
    route: pl.DataFrame,
    fabric_map: pl.DataFrame,
    fabric_switch: pl.DataFrame,
    fabric_link: pl.DataFrame,
) -> pl.DataFrame:
    """One row per uplink of each leaf with a table: the hosts of other leaves that it serves."""
    latest = fabric_map.filter(pl.col("is_latest") & ~pl.col("is_planar")).select("source")
    links = fabric_link.join(latest, on="source", how="semi")
    leaves = fabric_switch.join(latest, on="source", how="semi").filter(pl.col("level") == 1)
    lids = links.filter((pl.col("kind") == "host") & pl.col("lid").is_not_null()).select("lid").unique()
    uplinks = links.filter(pl.col("kind") == "uplink").select("guid", "port", "name", "peer_guid", parent="peer_name")
    uplinks = uplinks.join(leaves.select("guid"), on="guid", how="semi")
    uplinks = uplinks.filter(pl.len().over("guid") >= UPLINKS_LEAST)
    of_hosts = route.join(lids, on="lid", how="semi", maintain_order="left")
    served = of_hosts.group_by(guid="table_guid", port="out_port").agg(hosts=pl.len().cast(pl.Int64))
    tables = of_hosts.group_by(guid="table_guid").agg(source=pl.col("source").first(), line=pl.col("head_line").first())
    rows = uplinks.join(tables, on="guid", maintain_order="left")
    rows = rows.join(served, on=["guid", "port"], how="left", maintain_order="left")
    hosts = pl.col("hosts")
    rows = rows.with_columns(hosts.fill_null(0)).with_columns(mean=hosts.mean().over("guid"))
    most = hosts.max().over("guid")
    is_bent = (most >= ROUTE_RATIO * pl.col("mean")) & (most - pl.col("mean") >= ROUTES_APART)
    is_bent |= 2 * (hosts == 0).sum().over("guid") >= pl.len().over("guid")
    return rows.filter(pl.col("mean") >= ROUTES_LEAST).with_columns(leaf="guid", is_bent=is_bent)
