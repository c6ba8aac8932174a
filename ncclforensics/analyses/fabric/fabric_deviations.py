"""What deviates in each map of a fabric; rules put it into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.fabric.fabric_graph import Graph, switch_names
from ncclforensics.analyses.fabric.fabric_map import host_and_device, maps_of
from ncclforensics.analyses.fabric.rails import Nic, nics_of_hosts, rail_deviations
from ncclforensics.analyses.fabric.uplinks import (
    leaf_ratio,
    level_links,
    ratio_deviations,
    slow_links,
    uplink_deviations,
)
from ncclforensics.frames.columns import LINE, frame_of_rows
from ncclforensics.frames.registry import analysis

FABRIC_DEVIATION = {
    "source": pl.Int32(),  # the map
    "line": pl.Int32(),  # of what deviates
    "kind": pl.String(),  # uneven-uplinks, uplinks-missing, spine-short, spine-absent, single-links, level-link, …
    "guid": pl.String(),
    "name": pl.String(),  # of the switch or logical switch
    "level": pl.Int32(),
    "hosts": pl.List(pl.String()),  # of deviations of hosts
    "devices": pl.List(pl.String()),
    "sibling": pl.String(),  # name of one that is as usual
    "parents": pl.List(pl.String()),  # names of the upper switches, or of the leaves where the devices should lead
    "others": pl.List(pl.String()),  # names of further switches: lacking ones, or where the devices lead
    "links": pl.List(pl.Int32()),  # to each of the parents
    "sibling_links": pl.List(pl.Int32()),
    "have": pl.Int32(),
    "usual": pl.Int32(),
    "absent": pl.Int32(),
    "count": pl.Int32(),  # of the group
    "ports": pl.List(pl.Int32()),
    "names": pl.List(pl.String()),  # of what is not in the map
    "ratio": pl.Float64(),
    "rate": pl.Float64(),  # Gb/s
    "usual_rate": pl.Float64(),
    "is_regular": pl.Boolean(),
    "is_director": pl.Boolean(),
    "evidence": pl.List(pl.Int32()),  # lines
}
FABRIC_SHAPE = {
    **LINE,
    "switches": pl.Int32(),
    "systems": pl.Int32(),  # logical switches: the chips of a director are one
    "levels": pl.Int32(),  # to which half of the switches below has links; branches of managers are left out
    "links": pl.Int32(),  # of switches and hosts; without those inside of directors, and of SHARP
    "hosts": pl.Int32(),
    "usual_hosts": pl.Int32(),  # with the usual number of ports
    "host_ports": pl.Int32(),
    "nics": pl.Int32(),  # of most ports' host
    "leaves_of_host": pl.Int32(),  # to which these lead
    "ratio": pl.Float64(),  # bandwidth of hosts to that of uplinks, at the leaf of the median port
    "unnamed": pl.Int32(),  # ports of hosts that no description names
    "unlinked": pl.List(pl.String()),  # switches of which no port has another end in this map; not among `switches`
}


def _named_hosts(graph: Graph) -> tuple[dict[str, list[Nic]], int]:
    """The ports of hosts by the name of their host, and the number of those without one."""
    names: dict[str, tuple[str, str]] = {}
    unnamed = 0
    for guid, node in graph.nodes.items():
        if node.kind == "host" and guid not in graph.aggregation:
            if found := host_and_device(node.description):
                names[guid] = found
            else:
                unnamed += 1
    return nics_of_hosts(graph, names), unnamed


def _nics_of_most(hosts: dict[str, list[Nic]]) -> int:
    """The number of ports of the host that the median port is of."""
    counts = sorted(len(nics) for nics in hosts.values())
    return counts[len(counts) // 2] if counts else 0


@analysis(FABRIC_SHAPE, of=("fabric_map",))
def fabric_shape(
    fabric_map: pl.DataFrame, fabric_member: pl.DataFrame, fabric_end: pl.DataFrame, fabric_link: pl.DataFrame
) -> pl.DataFrame:
    """One row per map that is the last of its fabric: what kind of fabric it is."""
    rows: list[dict[str, Any]] = []
    outside = fabric_link.filter(~pl.col("kind").is_in(["inside", "aggregation"]))
    counted = dict(outside.group_by("source").len().iter_rows())
    listed = fabric_member.filter(pl.col("kind") == "switch").select("source", "guid", "node")
    linked = pl.concat([fabric_end.select("source", "guid"), fabric_end.select("source", guid="peer_guid")])
    lone = listed.join(linked, on=["source", "guid"], how="anti", maintain_order="left")
    unlinked = dict(lone.group_by("source").agg(pl.coalesce("node", "guid")).iter_rows())
    for map_row, graph in _judged(fabric_map, fabric_member, fabric_end):
        hosts, unnamed = _named_hosts(graph)
        nics = Counter(len(ports) for ports in hosts.values() for _ in ports).most_common(1)
        like = [ports for ports in hosts.values() if nics and len(ports) == nics[0][0]]
        leaves = Counter(len({nic.leaf for nic in ports}) for ports in like).most_common(1)
        ratio = leaf_ratio(graph)
        rows.append(
            {
                **map_row,
                "links": counted.get(map_row["source"], 0),
                "systems": len(set(graph.logical.values())),
                "levels": _levels(graph),
                "hosts": len(hosts),
                "usual_hosts": len(like),
                "host_ports": sum(map(len, hosts.values())) + unnamed,
                "nics": nics[0][0] if nics else None,
                "leaves_of_host": leaves[0][0] if leaves else None,
                "ratio": ratio and ratio[0],
                "unnamed": unnamed,
                "unlinked": unlinked.get(map_row["source"], []),
            }
        )
    return frame_of_rows(rows, FABRIC_SHAPE)


def _levels(graph: Graph) -> int:
    """The number of levels, without those that only few switches of the level below have links to."""
    for level in range(1, graph.top):
        below = graph.at(level)
        if 2 * sum(bool(graph.uplinks(guid)) for guid in below) < len(below):
            return level
    return graph.top


def _judged(
    fabric_map: pl.DataFrame, fabric_member: pl.DataFrame, fabric_end: pl.DataFrame
) -> Iterator[tuple[dict[str, Any], Graph]]:
    latest = fabric_map.filter(pl.col("is_latest"))
    rows = {row["source"]: row for row in latest.to_dicts()}
    members = fabric_member.filter(pl.col("source").is_in(list(rows)))
    for source, graph in maps_of(members, fabric_end):
        yield rows[source], graph


@analysis(FABRIC_DEVIATION, of=("fabric_map",))
def fabric_deviation(fabric_map: pl.DataFrame, fabric_member: pl.DataFrame, fabric_end: pl.DataFrame) -> pl.DataFrame:
    """One row per deviation of a map from its own rule: wiring of switches, of hosts, and the ratio of the leaves."""
    rows: list[dict[str, Any]] = []
    for map_row, graph in _judged(fabric_map, fabric_member, fabric_end):
        if not map_row["is_whole"] or map_row["is_planar"]:
            continue
        hosts, _ = _named_hosts(graph)
        names = switch_names(graph.nodes.values(), graph.logical)
        found = [
            *level_links(graph),
            *slow_links(graph),
            *rail_deviations(hosts),
            *ratio_deviations(graph, _nics_of_most(hosts)),
        ]
        if not map_row["is_laboratory"]:
            found += uplink_deviations(graph)
        rows += [_printed(row, map_row["source"], graph, names) for row in found]
    return frame_of_rows(rows, FABRIC_DEVIATION)


def _printed(row: dict[str, Any], source: int, graph: Graph, names: dict[str, str]) -> dict[str, Any]:
    """A row with names and lines in place of GUIDs."""
    lines = [graph.nodes[guid].line for guid in row.get("evidence", ())]
    known = list(dict.fromkeys(line for line in lines if line is not None))
    own = [row["line"]] if "line" in row else []
    return {
        **row, "source": source, "line": (own or known or [None])[0], "evidence": [*own, *known],
        "name": names.get(row.get("guid", ""), row.get("guid")),
        "sibling": names.get(row.get("sibling") or "", row.get("sibling")),
        "parents": [names.get(guid, guid) for guid in row.get("parents", ())],
        "others": [names.get(guid, guid) for guid in row.get("others", ())],
    }  # fmt: skip
