"""Ports of a host against one another, and against the same ports of other hosts: slower, down, unused, uneven."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.roce import APART, IDLE, MUCH, MUCH_EVER
from ncclforensics.frames.columns import short_host, text_of
from ncclforensics.rules.fabric.links import SHOWN, Row, lines, port_name, times
from ncclforensics.rules.fabric.roce_counters import on_ports
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

OTHERS = 3  # ports or hosts alike, for one that is not
RDMA = ("InfiniBand", "Ethernet")


def last_states(port_state: pl.DataFrame) -> pl.DataFrame:
    """Each port of a host's device as it was told last; `station`: its host, or the file where none is named."""
    known = port_state.filter(pl.col("device").is_not_null() & pl.col("link_layer").fill_null("").ne("NVLink"))
    station = pl.coalesce("host", pl.col("source").cast(pl.String))
    told = known.with_columns(station=station).sort("moment", "source", "line", nulls_last=False)
    attributes = ("state", "physical_state", "rate_Gbps", "width", "speed", "link_layer")
    return told.group_by("station", "device", "port", maintain_order=True).agg(
        pl.col(*attributes).drop_nulls().last(),
        pl.col("host", "node", "lid", "guid").drop_nulls().first(),
        pl.col("source", "line").filter(pl.col("rate_Gbps").is_not_null() | pl.col("state").is_not_null()).last(),
    )


def _at(row: Row, what: str = "") -> Line:
    return Line(row["source"], row["line"], what)


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",))
def ctr_port_below_siblings(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port of a host is slower than the same port of the other hosts, or has fewer lanes than those beside it.

    Means: lanes were lost or a lower speed was agreed on: cable, transceiver, or the port of the switch. What goes by
    this port is held up, and with it the whole collective.
    Not when: ports of other models, such as those for storage, are slower everywhere; all ports are split in two (2X);
    the port is down; fewer than three others are known.
    Do: run ibstat and mlxlink -d DEVICE -m on that host; iblinkinfo shows what both ends could do; reseat the cable.
    Sources: NCCL documentation, networking; azurehpc-health-checks check_hw_ib.
    """
    active = last_states(port_state).filter((pl.col("state") == "active") & pl.col("rate_Gbps").is_not_null())
    rate = pl.col("rate_Gbps")
    same = ["device", "port", "link_layer"]
    across = active.with_columns(usual=rate.mode().max().over(same), alike=(rate == rate.mode().max()).sum().over(same))
    slow = across.filter((rate < pl.col("usual")) & (pl.col("alike") >= OTHERS))
    beside = ["station", "speed"]
    fabric = active.filter((pl.col("link_layer") == "InfiniBand") & pl.col("width").is_not_null())
    lanes = fabric.with_columns(usual=rate.max().over(beside), alike=(rate == rate.max()).sum().over(beside))
    is_alone = pl.len().over(beside) - 1 == pl.col("alike")
    narrow = lanes.filter((rate < pl.col("usual")) & (pl.col("alike") >= OTHERS) & is_alone)
    told: set[tuple[str, str]] = set()
    for rows, whose in ((slow, "on other hosts"), (narrow, "on the others of this host")):
        for row in rows.to_dicts():
            if (row["station"], row["device"]) in told:
                continue
            told.add((row["station"], row["device"]))
            yield Finding(
                f"{port_name(row)} runs at {row['rate_Gbps']:g} Gb/s",
                f"{row['usual']:g} Gb/s {whose}",
                "likely",
                hosts=[row["host"]] if row["host"] else [],
                evidence=[_at(row)],
            )


@rule(Category.LINK_ERROR, Severity.ERROR, of=("port_state",))
def ctr_port_down_in_use(
    port_state: pl.DataFrame, net_devices: pl.DataFrame, completion_error: pl.DataFrame
) -> Iterator[Finding]:
    """A port is down that the job uses, or that is active on all other hosts.

    Means: its link was lost: cable, transceiver, or the port of the switch is disabled (Polling: nobody answers at the
    other end; Disabled: somebody switched it off). A job that begins now leaves the NIC out, or fails.
    Not when: the port is down on other hosts too, and no log uses it: then it was never connected; an earlier dump
    shows it active, which is a finding of its own; the log is of another time than the dump.
    Do: look at both ends of the cable; ibportstate, mlxlink -d DEVICE; compare with the switch's view (iblinkinfo).
    Sources: InfiniBand specification, port states; NCCL documentation, networking.
    """
    last = last_states(port_state)
    listed = net_devices.select(short_host("host"), text_of("devices")).drop_nulls().unique().rows()
    others = last.filter(pl.col("state") == "active").group_by("device", "port").agg(active=pl.len())
    down = last.filter(pl.col("state") == "down").join(others, on=["device", "port"], how="left", maintain_order="left")
    stations = last.group_by("device", "port").agg(all=pl.len())
    down = down.join(stations, on=["device", "port"], maintain_order="left")
    told = port_state.filter((pl.col("state") == "active") & pl.col("moment").is_not_null())
    lost = set(told.select("host", "device", "port").iter_rows())  # a rule of its own
    for row in down.to_dicts():
        host = None if row["host"] is None else row["host"].split(".")[0]
        if (row["host"], row["device"], row["port"]) in lost:
            continue
        is_used = any(where == host and f"]{row['device']}:" in devices for where, devices in listed)
        is_odd = (row["active"] or 0) >= OTHERS and (row["active"] or 0) == row["all"] - 1
        if not (is_used or is_odd):
            continue
        why = "the log uses it" if is_used else f"it is active on {row['active']} other hosts"
        how = f" ({row['physical_state']})" if row["physical_state"] else ""
        own = (short_host("host") == host) & (pl.col("hca") == row["device"])
        failed = completion_error.filter((own | (short_host("peer_host") == host)) & ~pl.col("at_exit"))
        evidence = [Line(source, at, "log") for source, at in failed.select("source", "line").head(2).iter_rows()]
        yield Finding(
            f"{port_name(row)} is down{how}",
            why + ("; transfers with this host failed" if evidence else ""),
            "certain" if evidence else "likely",
            severity=Severity.ERROR if is_used else Severity.WARNING,
            hosts=[row["host"]] if row["host"] else [],
            evidence=[_at(row), *evidence],
        )


def _traffic(counter_growth: pl.DataFrame) -> pl.DataFrame:
    """What the RDMA ports of each host sent: between dumps, or (with one dump) since they were cleared."""
    sent = counter_growth.filter((pl.col("name") == "port_xmit_data") & pl.col("device").is_not_null())
    grown = pl.when(pl.col("dumps") > 1).then(pl.when(~pl.col("is_reset")).then("growth")).otherwise("value")
    station = pl.coalesce("host", pl.col("source").cast(pl.String))
    return sent.with_columns(carried=grown, station=station, once=pl.col("dumps") == 1).filter(~pl.col("is_saturated"))


def _equal(counter_growth: pl.DataFrame, port_state: pl.DataFrame) -> pl.DataFrame:
    """Traffic of ports that have the same rate, with what the busiest beside them carried."""
    states = last_states(port_state).select("station", "device", "port", "rate_Gbps", "link_layer", "state")
    ports = _traffic(counter_growth).join(states, on=["station", "device", "port"], how="left", maintain_order="left")
    up = ports.filter((pl.col("state") == "active").fill_null(value=True))
    alike = ["station", "rate_Gbps", "link_layer", "once"]
    return up.with_columns(most=pl.col("carried").max().over(alike), beside=pl.len().over(alike))


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def ctr_uneven_traffic(counter_growth: pl.DataFrame, port_state: pl.DataFrame) -> Iterator[Finding]:
    """Equal ports of a host carry unequal traffic.

    Means: rings and channels are not spread over all rails: GPUs far from their NIC, NCCL_IB_HCA or channels that leave
    one out, a port that is slower than it says, or routing that prefers one path.
    Not when: the ports are within 20 % of each other; a port carries next to nothing, which is one for another purpose;
    little was sent; there is one dump: then it is a note, for other jobs are in it.
    Do: compare `NET/IB : Using` and the channels of that host with another's; look at the NIC of the busiest port.
    Sources: field guides (traffic over equal paths within 20 %).
    """
    ports = _equal(counter_growth, port_state)
    limit = pl.when("once").then(MUCH_EVER).otherwise(MUCH)
    used = ports.filter((pl.col("most") >= limit) & (pl.col("carried") >= pl.col("most") * IDLE))
    for (_, once), rows in used.group_by("station", "once", maintain_order=True):
        apart = rows.filter(pl.col("carried") < pl.col("most") * (1 - APART)).sort("carried")
        if apart.is_empty() or rows.height < 2:
            continue
        least, most = apart.row(0, named=True), rows.sort("carried").row(-1, named=True)
        detail = ", ".join(f"{port_name(row)} sent {row['carried'] / 1e9:,.1f} GB" for row in (least, most))
        both = pl.concat([apart.head(1), rows.sort("carried").tail(1)]).select(counter_growth.columns)
        where = f" of {least['host']}" if least["host"] else ""
        finding = on_ports(
            both, f"equal ports{where} carry unequal traffic", detail + times(least), certainty="possible"
        )
        if once:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
            finding.detail += ", since nobody knows when"
        yield finding


@rule(Category.PLACEMENT, Severity.INFO, of=("counter_growth",))
def ctr_idle_port(counter_growth: pl.DataFrame, port_state: pl.DataFrame) -> Iterator[Finding]:
    """An active port carried nothing while those beside it carried much.

    Means: the job does not use this NIC: a variable leaves it out, or it is meant for something else.
    Not when: the port is down; others of that host carried nothing either; there is one dump.
    Do: see NCCL_IB_HCA, and whether `NET/IB : Using` lists it.
    Sources: NCCL documentation, networking.
    """
    ports = _equal(counter_growth, port_state).filter(~pl.col("once") & (pl.col("state") == "active"))
    idle = ports.filter(
        (pl.col("carried") < pl.col("most") * IDLE) & (pl.col("most") >= MUCH) & (pl.col("beside") > OTHERS)
    )
    for _, rows in idle.group_by("station", maintain_order=True):
        names = ", ".join(port_name(row) for row in rows.to_dicts()[:SHOWN])
        most = rows["most"].max()
        detail = f"the busiest beside {'them' if rows.height > 1 else 'it'} sent {float(str(most)) / 1e9:,.1f} GB"
        told = rows.select(counter_growth.columns)
        finding = on_ports(told, f"{names} carried nothing", detail, role=Role.CONTEXT)
        finding.evidence = lines(told.to_dicts())
        yield finding
