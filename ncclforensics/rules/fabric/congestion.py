"""Congestion in the fabric by its counters: packets dropped for lack of room, ports that wait for credits."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.counters import DISCARD_LIMIT, SIBLINGS, WAIT_LEAST, WAIT_RATIO
from ncclforensics.rules.fabric.links import DOWN, SHOWN, Links, Row, amount, grown, lines, port_name, times
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule

DISCARDS, WAIT, SENT = "port_xmit_discards", "port_xmit_wait", "port_xmit_packets"
TOO_OLD = ("port_sw_hoq_lifetime_limit_discards", "port_sw_lifetime_limit_discards")  # within DISCARDS, where told


def _opposite(links: Links, row: Row) -> str:
    return links.opposite(row) or "what is connected to it"


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def ctr_discards(counter_growth: pl.DataFrame, port_peer: pl.DataFrame) -> Iterator[Finding]:
    """Ports dropped packets on their way out.

    Means: on one port: what is connected to it was down, or takes nothing (a host that drains slowly, a dead peer); on
    many at once: congestion or a deadlock of credits. Each packet costs a time-out of the transport.
    Not when: there is only one dump; fewer than a hundred were dropped; the link of that port went down meanwhile,
    which is then the cause.
    Do: look at the port and the host at the other end; ibqueryerrors --details tells the reason (inactive, too old).
    Sources: infiniband-diags error_thresholds; InfiniBand specification, PortXmitDiscards.
    """
    rows = grown(counter_growth, {DISCARDS: DISCARD_LIMIT}).sort(-pl.col("growth"), "source", "line")
    if rows.is_empty():
        return
    ports = rows.to_dicts()
    links = Links(rows, port_peer)
    down = set(counter_growth.filter((pl.col("name") == DOWN) & (pl.col("growth") > 0))["key"])
    lost = [row for row in ports if row["key"] in down or links.peers.get(row["key"], {}).get("peer_key") in down]
    aged = counter_growth.filter(pl.col("name").is_in(TOO_OLD) & (pl.col("growth") > 0))
    if len(ports) >= SIBLINGS:
        title = f"{len(ports)} ports dropped packets on their way out"
        detail = "many at once: congestion, or credits that do not come back; the worst: "
        detail += "; ".join(f"{port_name(row)}: {amount(row)}" for row in ports[:SHOWN])
    else:
        title = f"{', '.join(port_name(row) for row in ports)} dropped packets on the way out"
        detail = f"{amount(ports[0])}{times(ports[0])}: {_opposite(links, ports[0])} does not take them, or was down"
    if aged.height:
        detail += "; some had waited too long at the head of a queue"
    finding = Finding(title, detail, "likely", hosts=links.hosts(ports), evidence=lines(ports))
    if len(lost) == len(ports):
        finding.detail += "; the link itself went down meanwhile: that is the cause"
        finding.role, finding.severity = Role.CONSEQUENCE, Severity.INFO
    yield finding


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def ctr_congestion(counter_growth: pl.DataFrame, port_peer: pl.DataFrame) -> Iterator[Finding]:
    """A port waited far longer for credits than the others that carried traffic.

    Means: what it is connected to does not take the data: on a switch's port to a host, that host drains slowly (its
    PCIe link, its memory, flow control); on a port between switches, traffic meets there.
    Not when: there is only one dump, for the total since a restart says nothing; all ports wait alike, which a job that
    sends to many does; the port sent nothing; the counter is full.
    Do: look at the host at the other end (PCIe width and speed, other jobs), at routing if it is another switch.
    Sources: InfiniBand specification, PortXmitWait; field guides on congestion in GPU clusters.
    """
    sent = counter_growth.filter((pl.col("name") == SENT) & (pl.col("growth") > 0)).select("key")
    waits = counter_growth.filter(
        (pl.col("name") == WAIT) & pl.col("growth").is_not_null() & ~pl.col("is_saturated")
    ).join(sent, on="key", how="semi", maintain_order="left")
    if waits.height <= SIBLINGS:
        return
    usual = max(1, int(waits.select(pl.col("growth").median()).item() or 0))
    odd = waits.filter((pl.col("growth") >= WAIT_LEAST) & (pl.col("growth") >= WAIT_RATIO * usual))
    if odd.is_empty() or odd.height * SIBLINGS > waits.height:
        return
    ports = odd.sort(-pl.col("growth"), "source", "line").to_dicts()
    links = Links(odd, port_peer)
    names = ", ".join(port_name(row) for row in ports[:SHOWN]) + (" and others" if len(ports) > SHOWN else "")
    yield Finding(
        f"{names} waited far longer for credits than the other ports",
        f"{amount(ports[0])}{times(ports[0])}; half of the {waits.height} ports with traffic waited less than "
        f"{usual:,}: {_opposite(links, ports[0])} takes its data slowly",
        "possible",
        hosts=links.hosts(ports),
        evidence=lines(ports),
    )
