"""How findings and views name ports and state what their counters counted."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.data.counters import LINK_DOWNED, LINK_RETRAINED, WHAT
from ncclforensics.data.fabric import VENDOR
from ncclforensics.data.names import printable, short_ranks, some_of
from ncclforensics.data.roce import COUNTER_TEXTS
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Nic

SHOWN = 4  # ports or counters that are named; the others are only counted
OF_A_HOST = 8
OF_NODE = ("host", "device", "lid", "guid", "node")  # columns that tell whose a port is
ALL_PORTS = 255  # InfiniBand's number for all ports of a node together


def port_name(row: Row, prefix: str = "") -> str:
    """Return `gpu-a012 mlx5_0 port 1`, `leaf-4 port 7` or `LID 12 port 1`: as much as is known of a port.

    The row holds the columns of PORT, each with the prefix.
    """
    host, device, node, lid, guid, port = (
        row.get(f"{prefix}{name}") for name in ("host", "device", "node", "lid", "guid", "port")
    )
    switch = str(node).removeprefix("MF0;").split(":")[0] if node else None
    if switch and guid and VENDOR in switch:  # what switches without a name are called, all of them
        switch = f"{switch} {guid}"
    known = " ".join(filter(None, (host, device))) if host else switch or device
    owner = known or (f"LID {lid}" if lid is not None else guid)
    if owner is None and port is None:
        return "an unnamed port"
    owner = owner or "unknown device"
    if port is None and device:  # an interface of a switch, or an adapter of which a tool prints no port
        return printable(owner)
    return printable(f"{owner} all ports" if port == ALL_PORTS else f"{owner} port {'?' if port is None else port}")


def nics_of(rows: Iterable[Row]) -> set[Nic]:
    """Return the ports of hosts among these rows, for a finding about all of them; ports of switches are left out."""
    return {(row["host"], row["device"], row["port"]) for row in rows if row["host"] and row["device"]}


def port_names(rows: pl.DataFrame, most: int = SHOWN) -> str:
    """Name the ports of these rows, the first few of many: `node1 mlx5_0 port 1, node2 mlx5_0 port 1 and 6 more`."""
    names = list(dict.fromkeys(port_name(row) for row in rows.to_dicts()))
    return some_of(names, most)


def ports_by_node(rows: pl.DataFrame, most: int = OF_A_HOST) -> str:
    """Name ports, those of one node with their numbers alone: `leaf-04 ports 33-36, 41; leaf-05 port 1`."""
    names = []
    for _, of_node in rows.group_by(*OF_NODE, maintain_order=True):
        numbers = of_node["port"].drop_nulls().unique().sort().to_list()
        first = of_node.row(0, named=True)
        name = port_name(first)
        if len(numbers) > 1:
            name = name.removesuffix(f"port {first['port']}") + short_ranks(numbers, noun="port")
        names.append(name)
    return "; ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def period_text(row: Row) -> str:
    """Return ` between 11:04:00 and 11:05:00`, the dumps between which a counter first increased; or nothing."""
    if row["first_increase"] is not None and row["last_unchanged"] is not None:
        return f" between {row['last_unchanged']} and {row['first_increase']}"
    return ""


def increase_text(row: Row) -> str:
    """Return `12 symbol errors`, `at least 65,532 symbol errors` (saturated or reset), `the link went down once`.

    The row is one of `counter_increase`, of a counter of the fabric.
    """
    least = "at least " if row["is_lower_bound"] else ""
    what = WHAT[row["name"]]
    if row["name"] in (LINK_DOWNED, LINK_RETRAINED):
        return f"{what} {least}{row['increase']:,} times" if row["increase"] != 1 or least else f"{what} once"
    return f"{least}{row['increase']:,} {what}"


def host_counter_text(row: Row) -> str:
    """Return `91,234 ACK timeouts`: the increase of a host's counter, or its total where there is one dump."""
    least = "at least " if row["is_lower_bound"] or row["is_saturated"] else ""
    amount = row["value"] if row["increase"] is None else row["increase"]
    name = row["name"]
    words = (
        name.removeprefix("nvlink_").replace("_", " ") if name.startswith("nvlink_") else COUNTER_TEXTS.get(name, name)
    )
    return printable(f"{least}{amount:,} {words}")


def host_counters_text(rows: pl.DataFrame) -> str:
    """Sum each counter over all ports and list at most SHOWN of the sums, those that prove most first."""
    amount = pl.coalesce("increase", "value")
    totals = rows.group_by("name", maintain_order=True).agg(
        amount.sum().alias("increase"), pl.col("is_lower_bound", "is_saturated").any(), value=pl.lit(0)
    )
    order = {name: place for place, name in enumerate(COUNTER_TEXTS)}
    ordered = sorted(totals.to_dicts(), key=lambda row: order.get(row["name"], len(order)))
    return ", ".join(map(host_counter_text, ordered[:SHOWN]))
