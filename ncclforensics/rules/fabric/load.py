"""Traffic and routes that a fabric spreads unevenly: spines, uplinks, forwarding tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.deviations import SHOWN


def _rows(load_deviation: pl.DataFrame, kind: str) -> list[dict[str, Any]]:
    return load_deviation.filter(pl.col("kind") == kind).to_dicts()


def _lines(row: dict[str, Any]) -> list[Line]:
    *after, before = [(source, line) for source, line in row["evidence"]]
    return [*(Line(*at, "after") for at in after), Line(*before, "before")]


@rule(Category.CONGESTION, Severity.WARNING, of=("load_deviation",))
def fabric_uneven_spines(load_deviation: pl.DataFrame) -> Iterator[Finding]:
    """Some spines carry a multiple of the traffic of the others.

    Means: routes or hashes send most flows through a part of the fabric, so that a job gets a fraction of the bandwidth
    that is there. Between two dumps the busy links have at least twice the load of the idle ones, or four times the
    bytes and wait for credits while the others do not.
    Not when: there is one dump only; the links are mostly idle; the difference is some tens of percent, which few
    large flows show on any static route.
    Do: compare the forwarding tables (dump_lfts) with the map, and the cabling of spines; run the subnet manager's
    routing again, or turn on adaptive routing. On RoCE set NCCL_IB_QPS_PER_CONNECTION and NCCL_IB_SPLIT_DATA_ON_QPS=1,
    so that hashes have more flows to spread.
    Sources: ibdiagnet user manual (ticks of PortXmitWait); Meta, RoCE at scale, SIGCOMM 2024; field guides.
    """
    for row in _rows(load_deviation, "uneven-spines"):
        if row["is_share"]:
            high, low = f"{row['high']:.0%} of their rate", f"{row['low']:.1%}"
        else:
            high, low = f"{row['high'] / 1e9:,.0f} GB a link", f"{row['low'] / 1e9:,.0f} GB"
        times = row["high"] / row["low"] if row["low"] else None
        waited = f"; the busy ones waited {row['lost']:.0%} of the time with data" if row["lost"] >= 0.01 else ""
        yield Finding(
            f"spines carry uneven loads: {some_of(row['names'], SHOWN)} {high}, {some_of(row['others'], SHOWN)} {low}",
            (f"{times:,.0f} times as much" if times else "the others carry nothing") + waited,
            "likely",
            evidence=_lines(row),
        )


@rule(Category.CONGESTION, Severity.WARNING, of=("load_deviation",))
def fabric_hot_uplink(
    load_deviation: pl.DataFrame, fabric_load: pl.DataFrame, fabric_link: pl.DataFrame, route: pl.DataFrame
) -> Iterator[Finding]:
    """One uplink of a leaf is full and waits while its siblings have room.

    Means: several large flows share this link: static routes or a hash put them together. The ranks behind them are
    slower than the rest of the job.
    Not when: there is one dump only, or no times; most uplinks of the leaf are full; the link does not wait.
    Do: with dump_lfts in the folder, the hosts that are reached through the port are named, those that receive most
    first; adaptive routing, or other placements of the job, spread them.
    Sources: ibdiagnet user manual (ticks of PortXmitWait); NVIDIA UFM, bandwidth lost by congestion.
    """
    for row in _rows(load_deviation, "hot-uplink"):
        yield Finding(
            f"{row['names'][0]} port {row['port']} to {row['others'][0]} is full: it carries {row['high']:.0%} of its "
            f"rate, the median of its {row['count']} siblings {row['low']:.0%}",
            f"it waited {row['lost']:.0%} of the time with data" + _hosts_reached(row, fabric_load, fabric_link, route),
            "likely",
            evidence=_lines(row),
        )


def _hosts_reached(
    row: dict[str, Any], fabric_load: pl.DataFrame, fabric_link: pl.DataFrame, route: pl.DataFrame
) -> str:
    """The hosts to which the forwarding table sends through this uplink, those that received most first."""
    lids = route.filter((pl.col("table_guid") == row["guid"]) & (pl.col("out_port") == row["port"])).select("lid")
    hosts = fabric_link.filter(pl.col("kind") == "host").join(lids, on="lid", how="semi")
    received = fabric_load.filter(pl.col("direction") == "host").select("guid", "port", "bytes")
    named = hosts.join(received, left_on=["peer_guid", "peer_port"], right_on=["guid", "port"], how="left")
    ordered = named.sort("bytes", "name", descending=[True, False], nulls_last=True)["name"].unique(maintain_order=True)
    return f"; the table of the leaf sends through it to {some_of(ordered.to_list(), SHOWN)}" if ordered.len() else ""


@rule(Category.CONGESTION, Severity.WARNING, of=("load_deviation",))
def fabric_uneven_load(load_deviation: pl.DataFrame) -> Iterator[Finding]:
    """On most leaves a quarter of the uplinks carries at least three times the traffic of another quarter.

    Means: routes are not spread: flows meet on few uplinks everywhere.
    Not when: the spines as a whole are uneven, which is a finding of its own; few leaves are like that, as where a job
    has few flows; the links are mostly idle.
    Do: compare dump_lfts with the map; run the subnet manager's routing again, or turn on adaptive routing.
    Sources: infiniband-diags check_lft_balance.pl; field guides.
    """
    for row in _rows(load_deviation, "uneven-load"):
        yield Finding(
            f"uplinks of {len(row['names'])} of {row['count']} leaves carry uneven loads, such as {row['names'][0]}: "
            f"{row['low']:.0%} to {row['high']:.0%} of their rate",
            f"routes are not spread over the uplinks of {some_of(row['names'], SHOWN)}",
            "likely",
            evidence=_lines(row),
        )


@rule(Category.CONGESTION, Severity.WARNING, of=("uplink_routes",))
def fabric_uneven_routes(uplink_routes: pl.DataFrame) -> Iterator[Finding]:
    """The forwarding tables send a multiple of the usual number of hosts through one uplink of a leaf.

    Means: however the cables are, traffic meets on these links. OpenSM's ftree, which needs a regular tree, may have
    given way to another engine after a change of cables.
    Not when: adaptive routing is on, because the port in the table is then one of several; the tables are of another
    time than the map; few hosts are reached. On less than half of the leaves it is a note.
    Do: look for the routing engine in the subnet manager's log (and for its fallback), then run the routing again.
    Sources: infiniband-diags check_lft_balance.pl; OpenSM doc/current-routing.txt. The thresholds rest on made tables.
    """
    if uplink_routes.is_empty():
        return
    bent = uplink_routes.filter("is_bent").sort("name", "port")
    leaves, all_leaves = bent["leaf"].n_unique(), uplink_routes["leaf"].n_unique()
    if bent.is_empty():
        return
    first = bent.filter(pl.col("leaf") == bent["leaf"][0])
    idle = first.filter(pl.col("hosts") == 0).height
    spines = bent.group_by("parent").agg(pl.col("hosts").mean()).sort("hosts", "parent", descending=[True, False])
    busy = spines.filter(pl.col("hosts") * 2 >= spines["hosts"].max()).sort("parent")["parent"].to_list()
    others = spines.filter(pl.col("hosts") * 2 < spines["hosts"].max()).sort("parent")
    least = ""
    if others.height:
        most, mean = (float(str(hosts)) for hosts in (spines["hosts"].max(), others["hosts"].mean()))
        least = f"; per link, {most:.0f} hosts go through {some_of(busy, SHOWN)}, "
        least += f"{format(mean, '.0f') if mean >= 1 else 'none'} through {some_of(others['parent'].to_list(), SHOWN)}"
    most_hosts, mean_hosts = int(str(first["hosts"].max())), float(first["mean"][0])
    finding = Finding(
        f"routes are not spread over the uplinks of {leaves} of {all_leaves} leaves: {first['name'][0]} sends "
        f"{most_hosts} hosts through one uplink, {mean_hosts:.0f} on average",
        (f"{idle} of its {first.height} uplinks serve none" if idle else "the cables are not the reason") + least,
        "likely",
        evidence=[
            Line(source, line)
            for source, line in bent.select("source", "line").unique(maintain_order=True).head(3).rows()
        ],
    )
    if 2 * leaves < all_leaves:
        finding.severity, finding.role = Severity.INFO, Role.CONTEXT
    yield finding
