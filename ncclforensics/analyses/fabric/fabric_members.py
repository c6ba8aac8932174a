"""Nodes and ends of links in each map of a fabric: ibnetdiscover, iblinkinfo, ibdiagnet."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.fabric_tools import guid_of, node_of
from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis

FABRIC_MEMBER = {
    "source": pl.Int32(),  # the map
    "line": pl.Int32(),  # of the node's own record; null if it is only named as a peer
    "guid": pl.String(),  # 0x and 16 digits; `LID 12` where the map shows no GUID
    "node": pl.String(),  # its description
    "kind": pl.String(),  # switch, host, router; null if the map does not say
    "ports": pl.Int32(),
    "device_number": pl.String(),  # devid, as the vendor numbers its devices; without zeros in front
    "system": pl.String(),  # sysimgguid: equal for the chips of a director, and for the ports of a card
    "lid": pl.Int32(),
    "moment": pl.Datetime("us"),  # at which the map was made
}
FABRIC_END = {
    **LINE,
    "guid": pl.String(),
    "port": pl.Int32(),
    "peer_guid": pl.String(),
    "peer_port": pl.Int32(),
    "rate_Gbps": pl.Float64(),
    "width": pl.String(),
    "speed": pl.String(),
}
KINDS = {
    "S": "switch", "H": "host", "R": "router", "SW": "switch", "CA": "host", "RT": "router", "Switch": "switch",
    "Ca": "host", "Router": "router",
}  # fmt: skip
NO_LID = (0, 65535)


def _kind(column: str) -> pl.Expr:
    return text_of(column).replace_strict(KINDS, default=None, return_dtype=pl.String)


def _key(guid: str, lid: str) -> pl.Expr:
    """A node's key: its GUID, or its LID where that is all that is shown."""
    is_valid = pl.col(lid).is_not_null() & ~pl.col(lid).is_in(NO_LID)
    return pl.coalesce(guid, pl.when(is_valid).then(pl.format("LID {}", lid)))


@analysis(FABRIC_END, of=("map_port", "listed_port", "link_line", "tabled_link"), is_step=True)
def fabric_end(fabric_port: pl.DataFrame) -> pl.DataFrame:
    """One row per end of a link that a map shows; the GUID of a peer is looked up by its LID within the same map."""
    linked = fabric_port.filter(pl.col("peer_port").is_not_null())
    ends = pl.concat(
        [
            linked.select("source", "guid", "lid"),
            linked.select("source", guid="peer_guid", lid="peer_lid"),
        ]
    ).filter(pl.col("guid").is_not_null() & pl.col("lid").is_not_null() & ~pl.col("lid").is_in(NO_LID))
    by_lid = ends.group_by("source", "lid").agg(pl.col("guid").first(), nodes=pl.col("guid").n_unique())
    unique = by_lid.filter(pl.col("nodes") == 1).select("source", peer_lid="lid", _guid="guid")
    named = linked.join(unique, on=["source", "peer_lid"], how="left", maintain_order="left")
    named = named.with_columns(guid=_key("guid", "lid"), peer_guid=pl.coalesce("peer_guid", "_guid"))
    keyed = named.with_columns(peer_guid=_key("peer_guid", "peer_lid"))
    return keyed.drop_nulls(["guid", "port", "peer_guid"]).unique(
        ["source", "guid", "port"], keep="last", maintain_order=True
    )


@analysis(FABRIC_MEMBER, of=("map_port", "listed_port", "link_line", "tabled_link"))
def fabric_member(
    fabric_port: pl.DataFrame,
    map_node: pl.DataFrame,
    map_number: pl.DataFrame,
    map_port: pl.DataFrame,
    listed_port: pl.DataFrame,
    listed_node: pl.DataFrame,
    linked_node: pl.DataFrame,
    tabled_node: pl.DataFrame,
) -> pl.DataFrame:
    """One row per node of a map, with what the map says about it."""
    heads = _numbered(map_node, map_number).with_columns(guid=guid_of("node_guid"), kind=text_of("form"))
    listed = listed_node.with_columns(
        guid=guid_of("guid"), kind=_kind("node_kind"), device_number=text_of("device_number")
    )
    linked = linked_node.with_columns(guid=guid_of("guid"), node=pl.col("named"), kind=_kind("node_kind"))
    linked = linked.with_columns(node=node_of("node"))
    tabled = tabled_node.with_columns(guid=guid_of("guid"))
    peers = [
        map_port.with_columns(guid=guid_of("peer_guid"), node=pl.col("peer_node"), kind=_kind("peer_kind")),
        *(
            listed_port.with_columns(guid=guid_of(f"{side}guid"), node=pl.col(f"{side}node"), kind=_kind(f"{side}kind"))
            for side in ("", "peer_")
        ),
    ]
    own = ["source", "line", "guid", "node", "kind", "ports", "device_number", "system", "lid"]
    shown = ["source", "guid", "node", "kind"]
    ends = fabric_port.filter(pl.col("peer_port").is_not_null())
    found = [
        *(rows.select([name for name in own if name in rows.columns]) for rows in (heads, listed, linked, tabled)),
        ends.select("source", "node", "lid", "moment", guid=_key("guid", "lid"), at=pl.col("line")),
        ends.select("source", node="peer_node", lid="peer_lid", guid=_key("peer_guid", "peer_lid")),
        *(rows.select(shown) for rows in peers),
    ]
    rows = pl.concat([row.with_columns(node=node_of("node")) for row in found], how="diagonal_relaxed")
    # iblinkinfo prints no GUID in the heading of a host: its links below do, with the same description.
    hosts = rows.filter(pl.col("guid").is_null()).drop_nulls("node").select("source", "node", _kind="kind").unique()
    hosts = hosts.unique(["source", "node"], keep="none")
    of_one = pl.all().exclude("source", "guid", "moment").drop_nulls().first()
    members = (
        rows.drop_nulls("guid").group_by("source", "guid", maintain_order=True).agg(of_one, pl.col("moment").max())
    )
    members = members.join(hosts, on=["source", "node"], how="left", maintain_order="left")
    return members.with_columns(kind=pl.coalesce("kind", "_kind"), line=pl.coalesce("line", "at")).drop("_kind", "at")


def _numbered(map_node: pl.DataFrame, map_number: pl.DataFrame) -> pl.DataFrame:
    """Add to each node `device_number` and `system` from the numbers between it and the node above."""
    nodes = map_node.sort("source", "line").with_columns(head_line="line")
    named = map_number.select("source", "line", name=text_of("number_name"), number=text_of("number_value"))
    numbers = named.sort("source", "line").join_asof(
        nodes.select("source", "line", "head_line"),
        on="line", by="source", strategy="forward", check_sortedness=False,
    )  # fmt: skip

    def last(name: str) -> pl.Expr:
        return pl.col("number").filter(pl.col("name") == name).last()

    of_node = (
        numbers.drop_nulls("head_line")
        .group_by("source", "head_line")
        .agg(device_number=last("devid").str.strip_chars_start("0"), system=last("sysimgguid"))
    )
    return nodes.join(of_node, on=["source", "head_line"], how="left", maintain_order="left")
