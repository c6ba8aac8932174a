"""Congestion in the fabric, by port counters: dropped packets, and ports that wait for credits."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.counters import DISCARD_LIMIT, LINK_DOWNED, PEERS_LEAST, WAIT_LEAST, WAIT_RATIO
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.port_counters import SHOWN, LinkCounters, counter_lines, increased
from ncclforensics.rules.shared.port_text import increase_text, nics_of, period_text, port_name

DISCARDS, WAIT, SENT = "port_xmit_discards", "port_xmit_wait", "port_xmit_packets"
# Parts of DISCARDS that some tools print: packets that waited too long.
EXPIRED = ("port_sw_hoq_lifetime_limit_discards", "port_sw_lifetime_limit_discards")


def _other_end(links: LinkCounters, row: Row) -> str:
    return links.peer_name(row) or "the other end of the link"


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def ctr_discards(counter_increase: pl.DataFrame, port_peer: pl.DataFrame) -> Iterator[Finding]:
    """Ports dropped outgoing packets.

    Means: on one port: the other end was down or accepted no data (a slow or dead host); on many ports at once:
    congestion or a credit deadlock. Each dropped packet costs a timeout of the transport.
    Not when: there is only one dump; fewer than 100 packets were dropped; the link of that port went down between the
    dumps, which is then the cause.
    Do: look at the port and the host at the other end; ibqueryerrors --details shows the reason (inactive port, packet
    lifetime exceeded).
    Sources: infiniband-diags error_thresholds; InfiniBand specification, PortXmitDiscards.
    """
    rows = increased(counter_increase, {DISCARDS: DISCARD_LIMIT}).sort(-pl.col("increase"), "source", "line")
    if rows.is_empty():
        return
    ports = rows.to_dicts()
    links = LinkCounters(rows, port_peer)
    down = set(counter_increase.filter((pl.col("name") == LINK_DOWNED) & (pl.col("increase") > 0))["key"])
    lost = [row for row in ports if row["key"] in down or links.peers.get(row["key"], {}).get("peer_key") in down]
    expired = counter_increase.filter(pl.col("name").is_in(EXPIRED) & (pl.col("increase") > 0))
    if len(ports) >= PEERS_LEAST:
        title = f"{len(ports)} ports dropped outgoing packets"
        detail = "many ports at once: congestion or a credit deadlock; the worst: "
        detail += "; ".join(f"{port_name(row)}: {increase_text(row)}" for row in ports[:SHOWN])
    else:
        title = f"{', '.join(port_name(row) for row in ports)} dropped outgoing packets"
        first = ports[0]
        detail = f"{increase_text(first)}{period_text(first)}: {_other_end(links, first)} did not accept them, "
        detail += "or its link was down"
    if expired.height:
        detail += "; some packets had waited too long at the head of a queue"
    finding = Finding(
        title, detail, "likely", hosts=links.hosts(ports), nics=nics_of(ports), evidence=counter_lines(ports)
    )
    if len(lost) == len(ports):
        finding.detail += "; the link went down between the dumps, which is the cause"
        finding.role, finding.severity = Role.CONSEQUENCE, Severity.INFO
    yield finding


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def ctr_congestion(
    counter_increase: pl.DataFrame, port_peer: pl.DataFrame, load_deviation: pl.DataFrame
) -> Iterator[Finding]:
    """A port waited far longer for credits than the other ports with traffic.

    Means: the other end of the link does not accept the data: on a switch port to a host, that host drains slowly (its
    PCIe link, its memory, flow control); on a port between switches, several flows share the link.
    Not when: there is only one dump, because a total since a restart proves nothing; all ports wait alike, as in a job
    that sends to many; the port sent nothing; the counter is saturated; the load of the fabric's uplinks explains it.
    Do: look at the host at the other end (PCIe width and speed, other jobs), or at routing if it is another switch.
    Sources: InfiniBand specification, PortXmitWait; field guides on congestion in GPU clusters.
    """
    sent = counter_increase.filter((pl.col("name") == SENT) & (pl.col("increase") > 0)).select("key")
    waits = counter_increase.filter(
        (pl.col("name") == WAIT) & pl.col("increase").is_not_null() & ~pl.col("is_saturated")
    ).join(sent, on="key", how="semi", maintain_order="left")
    if waits.height <= PEERS_LEAST:
        return
    usual = max(1, int(waits.select(pl.col("increase").median()).item() or 0))
    slow = waits.filter((pl.col("increase") >= WAIT_LEAST) & (pl.col("increase") >= WAIT_RATIO * usual))
    if slow.is_empty() or slow.height * PEERS_LEAST > waits.height:
        return
    slow = slow.filter(~pl.col("key").is_in(load_deviation["keys"].explode().drop_nulls().implode()))
    if slow.is_empty():
        return
    ports = slow.sort(-pl.col("increase"), "source", "line").to_dicts()
    links = LinkCounters(slow, port_peer)
    names = ", ".join(port_name(row) for row in ports[:SHOWN]) + (" and others" if len(ports) > SHOWN else "")
    yield Finding(
        f"{names} waited far longer for credits than the other ports",
        f"{increase_text(ports[0])}{period_text(ports[0])}; the median of the {waits.height} ports with traffic is "
        f"{usual:,}: {_other_end(links, ports[0])} accepts data slowly",
        "possible",
        hosts=links.hosts(ports),
        nics=nics_of(ports),
        evidence=counter_lines(ports),
    )
