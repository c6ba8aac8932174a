"""The switches and links of each map of a fabric, with levels, siblings and hosts; the graph that rules judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.fabric.fabric_graph import End, Graph, Name, Node, switch_names
from ncclforensics.data.fabric import BOTH_ENDS_LEAST, NO_HOST_NAMES, PLANAR_DEVICE, PLANAR_SPEED, PLANE_DEVICE, VENDOR
from ncclforensics.frames.columns import LINE, frame_of_rows
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import find_values

FABRIC_SWITCH = {
    "source": pl.Int32(),  # the map
    "line": pl.Int32(),
    "guid": pl.String(),
    "name": pl.String(),  # with the GUID, where several switches have one name
    "kind": pl.String(),  # switch, router
    "ports": pl.Int32(),
    "device_number": pl.String(),
    "lid": pl.Int32(),
    "logical": pl.String(),  # equal for the chips of one director; its own GUID otherwise
    "logical_name": pl.String(),
    "level": pl.Int32(),  # 1: leaves; null where no host reaches it
    "siblings": pl.Int32(),  # number of the group of switches of its level with the same parents; null on top
    "hosts": pl.Int32(),  # ports that lead to hosts
    "uplinks": pl.Int32(),
    "downlinks": pl.Int32(),
}
FABRIC_LINK = {
    **LINE,
    "kind": pl.String(),  # host, uplink, level (between switches of one level), inside (a director), aggregation, other
    "guid": pl.String(),  # the lower end: the host, or the switch of the lower level
    "port": pl.Int32(),
    "peer_guid": pl.String(),
    "peer_port": pl.Int32(),
    "name": pl.String(),  # of the switch, or the description of the host
    "peer_name": pl.String(),
    "host": pl.String(),  # of links of hosts, where the description names it
    "device": pl.String(),
    "device_number": pl.String(),
    "system": pl.String(),  # of the host's adapter: equal for its ports
    "lid": pl.Int32(),  # of the lower end
    "rate_Gbps": pl.Float64(),
    "width": pl.String(),
    "speed": pl.String(),
}
FABRIC_MAP = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the first switch
    "switches": pl.Int32(),
    "levels": pl.Int32(),
    "links": pl.Int32(),
    "ends": pl.Int32(),  # ports with a link
    "is_whole": pl.Boolean(),  # both ends of nearly all links between switches are shown
    "is_planar": pl.Boolean(),  # ports of several planes: the shape is not judged
    "is_laboratory": pl.Boolean(),  # fewer ports of hosts than switches
    "is_latest": pl.Boolean(),  # no later map shows the same switches
}


def maps_of(members: pl.DataFrame, ends: pl.DataFrame) -> Iterator[tuple[int, Graph]]:
    """Yield the graph of each map, by the frames `fabric_member` and `fabric_end`."""
    names = _switch_names(members)
    by_source = ends.partition_by("source", as_dict=True)
    for (source,), nodes in members.partition_by("source", as_dict=True, maintain_order=True).items():
        yield int(str(source)), _graph(nodes, by_source.get((source,), ends.clear()), names)


def _switch_names(members: pl.DataFrame) -> dict[str, Name]:
    """The name in the description of each switch, and its number where it ends in one."""
    texts = members.filter(pl.col("kind") != "host").select(pl.col("node").drop_nulls().unique()).with_row_index("text")
    key = pl.col("text").cast(pl.UInt32)
    managed = find_values(texts["node"], "switch_description").select(key, name=pl.col("switch_name").cast(pl.String))
    named = texts.join(managed, on="text", how="left").with_columns(name=pl.coalesce("name", "node")).sort("text")
    numbers = find_values(named["name"], "numbered_name").select(
        key, stem=pl.col("stem").cast(pl.String), number=pl.col("number_of_name").cast(pl.String)
    )
    rows = named.join(numbers, on="text", how="left").select("node", "name", "stem", "number")
    return {node: Name(name, stem or "", number or "") for node, name, stem, number in rows.iter_rows()}


def _graph(nodes: pl.DataFrame, ends: pl.DataFrame, names: dict[str, Name]) -> Graph:
    at: dict[str, dict[int, End]] = defaultdict(dict)
    columns = [
        ends[name].to_list()
        for name in ("guid", "port", "peer_guid", "peer_port", "rate_Gbps", "width", "speed", "line")
    ]
    for guid, port, peer, peer_port, rate, width, speed, line in zip(*columns, strict=True):
        at[guid][port] = End(port, peer, peer_port, rate, width or "", speed or "", line)
    for guid, ports in list(at.items()):
        for port, end in list(ports.items()):
            others = at[end.peer]
            if end.peer_port not in others:
                others[end.peer_port] = end._replace(port=end.peer_port, peer=guid, peer_port=port)
    known: dict[str, Node] = {}
    for row in nodes.iter_rows(named=True):
        guid = row["guid"]
        if guid in at:
            description = row["node"] or ""
            kind = row["kind"] or ("switch" if len(at[guid]) > 2 else "host")
            known[guid] = Node(
                guid, description, names.get(description, Name(description, "", "")), kind, row["ports"] or 0,
                row["device_number"] or "", row["system"] or "", row["line"], row["lid"],
            )  # fmt: skip
    return Graph(known, {guid: [ports[port] for port in sorted(ports)] for guid, ports in at.items()})


def host_and_device(description: str) -> tuple[str, str] | None:
    """Split the description of an adapter that names its host; None for those that nothing set.

    >>> host_and_device("gpu-a012 mlx5_0"), host_and_device("MT4123 ConnectX6   Mellanox Technologies")
    (('gpu-a012', 'mlx5_0'), None)
    """
    words = description.split()
    if len(words) != 2 or VENDOR in description or words[0].lower() in NO_HOST_NAMES:
        return None
    if words[0].startswith("MT") and words[0][2:].isdecimal():
        return None
    return words[0], words[1]


@analysis(FABRIC_SWITCH, of=("fabric_member",))
def fabric_switch(fabric_member: pl.DataFrame, fabric_end: pl.DataFrame) -> pl.DataFrame:
    """One row per switch of each map: its level, its siblings, and the number of its links upwards and downwards."""
    rows: list[dict[str, Any]] = []
    for source, graph in maps_of(fabric_member, fabric_end):
        names = switch_names(graph.nodes.values(), graph.logical)
        group = {
            guid: number
            for number, members in enumerate(m for level in range(1, graph.top) for m in graph.siblings(level))
            for guid in members
        }
        for guid in graph.switches():
            node, level = graph.nodes[guid], graph.level.get(guid)
            below = [end for end in graph.switch_ends(guid) if graph.level.get(end.peer, 0) + 1 == (level or 0)]
            rows.append(
                {
                    "source": source,
                    "line": node.line,
                    "guid": guid,
                    "name": names[guid],
                    "kind": node.kind,
                    "ports": node.ports or None,
                    "device_number": node.device_number or None,
                    "lid": node.lid,
                    "logical": graph.logical[guid],
                    "logical_name": names[graph.logical[guid]],
                    "level": level,
                    "siblings": group.get(guid),
                    "hosts": len(graph.host_ends(guid)),
                    "uplinks": len(graph.uplinks(guid)),
                    "downlinks": len(below),
                }
            )
    return frame_of_rows(rows, FABRIC_SWITCH)


@analysis(FABRIC_LINK, of=("fabric_member",))
def fabric_link(fabric_member: pl.DataFrame, fabric_end: pl.DataFrame) -> pl.DataFrame:
    """One row per link of each map, from its lower end to its upper end."""
    rows: list[dict[str, Any]] = []
    for source, graph in maps_of(fabric_member, fabric_end):
        names = switch_names(graph.nodes.values(), graph.logical)
        for guid, node in graph.nodes.items():
            for end in graph.ends.get(guid, ()):
                peer = graph.nodes[end.peer]
                kind = _kind(graph, node, peer)
                order = (
                    (graph.level.get(guid, 0), guid, end.port),
                    (graph.level.get(end.peer, 0), end.peer, end.peer_port),
                )
                if order[0] > order[1]:
                    continue
                named = host_and_device(node.description) if kind == "host" else None
                rows.append(
                    {
                        "source": source,
                        "line": end.line,
                        "kind": kind,
                        "guid": guid,
                        "port": end.port,
                        "peer_guid": end.peer,
                        "peer_port": end.peer_port,
                        "name": names.get(guid, node.description),
                        "peer_name": names.get(end.peer, peer.description),
                        "host": named and named[0],
                        "device": named and named[1],
                        "lid": node.lid,
                        "device_number": node.device_number or None,
                        "system": node.system or None,
                        "rate_Gbps": end.rate,
                        "width": end.width or None,
                        "speed": end.speed or None,
                    }
                )
    return frame_of_rows(rows, FABRIC_LINK)


def _kind(graph: Graph, node: Node, peer: Node) -> str:
    if node.guid in graph.aggregation or peer.guid in graph.aggregation:
        return "aggregation"
    if "host" in (node.kind, peer.kind):
        return "host"
    if node.guid != peer.guid and graph.logical[node.guid] == graph.logical[peer.guid]:
        return "inside"
    if node.guid not in graph.level or peer.guid not in graph.level or node.guid == peer.guid:
        return "other"
    return "level" if graph.level[node.guid] == graph.level[peer.guid] else "uplink"


@analysis(FABRIC_MAP, of=("fabric_member",))
def fabric_map(
    fabric_member: pl.DataFrame, fabric_end: pl.DataFrame, fabric_switch: pl.DataFrame, fabric_link: pl.DataFrame
) -> pl.DataFrame:
    """One row per map: how large it is, and whether its shape can be judged."""
    ends = fabric_end.group_by("source").agg(
        ends=pl.len(), is_planar=(pl.col("speed") == PLANAR_SPEED).any().fill_null(value=False)
    )
    switch = pl.col("kind") != "host"
    planar = (pl.col("device_number") == PLANAR_DEVICE) | pl.col("node").str.contains(f" {PLANE_DEVICE}", literal=True)
    members = fabric_member.group_by("source").agg(has_planes=planar.any().fill_null(value=False))
    shown = fabric_end.select("source", "guid", "port", is_shown=pl.lit(value=True))
    between = fabric_link.filter(pl.col("kind").is_in(["uplink", "level", "inside"]))
    for side in ("", "peer_"):
        between = between.join(
            shown.rename({"is_shown": f"is_{side}shown"}),
            left_on=["source", f"{side}guid", f"{side}port"], right_on=["source", "guid", "port"], how="left",
        )  # fmt: skip
    both = (pl.col("is_shown") & pl.col("is_peer_shown")).fill_null(value=False)
    shown_twice = between.group_by("source").agg(share=both.mean())
    hosts = fabric_link.filter(pl.col("kind") == "host").group_by("source").agg(host_ports=pl.len())
    links = fabric_link.group_by("source").agg(links=pl.len())
    times = fabric_member.group_by("source").agg(pl.col("moment").max())
    maps = (
        fabric_switch.filter(switch)
        .group_by("source", maintain_order=True)
        .agg(pl.col("line").min(), switches=pl.len(), levels=pl.col("level").max(), _guids=pl.col("guid"))
    )
    for more in (ends, members, shown_twice, hosts, links, times):
        maps = maps.join(more, on="source", how="left", maintain_order="left")
    latest = _latest(maps)
    return maps.with_columns(
        is_whole=pl.col("share").fill_null(1.0) >= BOTH_ENDS_LEAST,
        is_planar=pl.col("is_planar") | pl.col("has_planes"),
        is_laboratory=pl.col("host_ports").fill_null(0) < pl.col("switches"),
        is_latest=pl.col("source").is_in(latest),
    )


def _latest(maps: pl.DataFrame) -> list[int]:
    """The maps of which no later one shows most of the switches; of those of one time, the larger one is the later."""
    ordered = maps.sort("moment", "links", "source", nulls_last=False).select("source", "_guids").rows()
    sets = [(source, set(guids)) for source, guids in ordered]
    return [
        source
        for place, (source, guids) in enumerate(sets)
        if not any(2 * len(guids & later) > len(guids) for _, later in sets[place + 1 :])
    ]
