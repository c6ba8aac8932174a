"""Port outliers: ports that are slower, down, unused or unevenly used, compared with other ports and other hosts."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.data.networks import NVLINK
from ncclforensics.data.roce import APART, FARTHER, IDLE, MUCH, MUCH_EVER
from ncclforensics.frames.columns import short_host, short_name, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.port_counters import SHOWN, counter_finding, counter_lines
from ncclforensics.rules.shared.port_text import nics_of, period_text, port_name

PEERS_LEAST = 3  # ports or hosts that are alike, for one to be an outlier


def last_states(port_state: pl.DataFrame) -> pl.DataFrame:
    """Return the last state of each port of a host; `station` is its host, or its source where no host is known."""
    known = port_state.filter(pl.col("device").is_not_null() & pl.col("link_layer").fill_null("").ne(NVLINK))
    station = pl.coalesce("host", pl.col("source").cast(pl.String))
    ordered = known.with_columns(station=station).sort("moment", "source", "line", nulls_last=False)
    attributes = ("state", "physical_state", "rate_Gbps", "width", "speed", "link_layer", "model", "netdev")
    return ordered.group_by("station", "device", "port", maintain_order=True).agg(
        pl.col(*attributes).drop_nulls().last(),
        pl.col("host", "node", "lid", "guid").drop_nulls().first(),
        pl.col("source", "line").filter(pl.col("rate_Gbps").is_not_null() | pl.col("state").is_not_null()).last(),
    )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",))
def ctr_port_below_siblings(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port of a host is slower than the same port of other hosts, or than its other adapters of the same model.

    Means: lanes were lost or a lower speed was negotiated: cable, transceiver, or the port of the switch. Traffic
    through this port is slow, and the whole collective with it.
    Not when: ports of other models, such as those for storage, are slower everywhere; all ports are split in two (2X);
    several adapters of a model are slower; the port is down; fewer than three others are known.
    Do: run ibstat and mlxlink -d DEVICE -m on that host; iblinkinfo shows what both ends support; reseat the cable.
    Sources: NCCL documentation, networking; azurehpc-health-checks check_hw_ib.
    """
    active = last_states(port_state).filter((pl.col("state") == "active") & pl.col("rate_Gbps").is_not_null())
    rate = pl.col("rate_Gbps")
    same = ["device", "port", "link_layer"]
    across = active.with_columns(usual=rate.mode().max().over(same), alike=(rate == rate.mode().max()).sum().over(same))
    slow = across.filter((rate < pl.col("usual")) & (pl.col("alike") >= PEERS_LEAST))
    beside = ["station", "speed"]
    fabric = active.filter((pl.col("link_layer") == "InfiniBand") & pl.col("width").is_not_null())
    lanes = fabric.with_columns(usual=rate.max().over(beside), alike=(rate == rate.max()).sum().over(beside))
    is_alone = pl.len().over(beside) - 1 == pl.col("alike")
    narrow = lanes.filter((rate < pl.col("usual")) & (pl.col("alike") >= PEERS_LEAST) & is_alone)
    card = ["station", "model", "link_layer"]
    known = active.filter(pl.col("model").is_not_null())
    equal = known.with_columns(usual=rate.max().over(card), alike=(rate == rate.max()).sum().over(card))
    single = equal.filter(
        (rate < pl.col("usual")) & (pl.col("alike") >= PEERS_LEAST) & (pl.len().over(card) - 1 == pl.col("alike"))
    )
    reported: set[tuple[str, str]] = set()
    for rows, where in (
        (slow, "the same port of other hosts runs"),
        (narrow, "the other ports of this host run"),
        (single, "the other adapters of this model in this host run"),
    ):
        for row in rows.to_dicts():
            if (row["station"], row["device"]) in reported:
                continue
            reported.add((row["station"], row["device"]))
            yield Finding(
                f"{port_name(row)} runs at {row['rate_Gbps']:g} Gb/s",
                f"{where} at {row['usual']:g} Gb/s",
                "likely",
                hosts=[row["host"]] if row["host"] else [],
                nics=nics_of([row]),
                evidence=[Line(row["source"], row["line"])],
            )


@rule(Category.LINK_ERROR, Severity.ERROR, of=("port_state",))
def ctr_port_down_in_use(
    port_state: pl.DataFrame, net_devices: pl.DataFrame, completion_error: pl.DataFrame
) -> Iterator[Finding]:
    """A port is down that the job uses, that is active on all other hosts, or whose host has active ports.

    Means: its link was lost: cable, transceiver, or the port of the switch is disabled (Polling: the other end does not
    answer; Disabled: switched off by configuration). A job that starts now does not use the NIC, or fails.
    Not when: no log uses it and it is down on all hosts: then it was never connected; no log uses it and fewer than
    three other hosts have it active: then this is a note; an earlier dump shows it active, or its link is up, which are
    findings of their own; the log is from another time than the dump.
    Do: check both ends of the cable; ibportstate, mlxlink -d DEVICE; compare with the switch's view (iblinkinfo).
    Sources: InfiniBand specification, port states; NCCL documentation, networking.
    """
    last = last_states(port_state)
    listed = net_devices.select(short_host("host"), text_of("devices")).drop_nulls().unique().rows()
    others = last.filter(pl.col("state") == "active").group_by("device", "port").agg(active=pl.len())
    down = last.filter(pl.col("state") == "down").join(others, on=["device", "port"], how="left", maintain_order="left")
    stations = last.group_by("device", "port").agg(all=pl.len())
    down = down.join(stations, on=["device", "port"], maintain_order="left")
    active = port_state.filter((pl.col("state") == "active") & pl.col("moment").is_not_null())
    lost = set(active.select("host", "device", "port").iter_rows())  # ctr-port-lost reports these
    has_active = set(last.filter(pl.col("state") == "active")["station"])
    unused = []
    for row in down.to_dicts():
        host = None if row["host"] is None else short_name(row["host"])
        if (row["host"], row["device"], row["port"]) in lost:
            continue
        is_used = any(name == host and f"]{row['device']}:" in devices for name, devices in listed)
        is_outlier = (row["active"] or 0) >= PEERS_LEAST and (row["active"] or 0) == row["all"] - 1
        if not (is_used or is_outlier):
            is_everywhere = row["all"] > 1 and not row["active"]
            unused += [row] * (row["station"] in has_active and row["physical_state"] != "LinkUp" and not is_everywhere)
            continue
        reason = "the log uses it" if is_used else f"it is active on {row['active']} other hosts"
        physical = f" ({row['physical_state']})" if row["physical_state"] else ""
        own = (short_host("host") == host) & (pl.col("hca") == row["device"])
        failed = completion_error.filter((own | (short_host("peer_host") == host)) & ~pl.col("at_exit"))
        evidence = [Line(source, at, "log") for source, at in failed.select("source", "line").head(2).iter_rows()]
        yield Finding(
            f"{port_name(row)} is down{physical}",
            reason + ("; transfers with this host failed" if evidence else ""),
            "certain" if evidence else "likely",
            severity=Severity.ERROR if is_used else Severity.WARNING,
            hosts=[row["host"]] if row["host"] else [],
            nics=nics_of([row]),
            evidence=[Line(row["source"], row["line"]), *evidence],
        )
    if unused:
        names = [port_name(row) + (f" ({row['netdev']})" if row["netdev"] else "") for row in unused]
        yield Finding(
            f"{some_of(names, SHOWN)}: down, beside active ports of the same host",
            "whether a job needs it is not shown; a port without a cable looks the same",
            "certain",
            severity=Severity.INFO,
            role=Role.CONTEXT,
            hosts=sorted({row["host"] for row in unused if row["host"]}),
            nics=nics_of(unused),
            evidence=[Line(row["source"], row["line"]) for row in unused[:SHOWN]],
        )


def _traffic(counter_increase: pl.DataFrame) -> pl.DataFrame:
    """Add `carried`: the bytes that each RDMA port sent between dumps, or with one dump (`is_total`) in total."""
    sent = counter_increase.filter((pl.col("name") == "port_xmit_data") & pl.col("device").is_not_null())
    carried = pl.when(pl.col("dumps") > 1).then(pl.when(~pl.col("is_reset")).then("increase")).otherwise("value")
    station = pl.coalesce("host", pl.col("source").cast(pl.String))
    return sent.with_columns(carried=carried, station=station, is_total=pl.col("dumps") == 1).filter(
        ~pl.col("is_saturated")
    )


def _comparable_traffic(counter_increase: pl.DataFrame, port_state: pl.DataFrame) -> pl.DataFrame:
    """Keep the ports that are up; add the number of `ports` of the same host and rate, and `most` that one carried."""
    states = last_states(port_state).select("station", "device", "port", "rate_Gbps", "link_layer", "state")
    ports = _traffic(counter_increase).join(states, on=["station", "device", "port"], how="left", maintain_order="left")
    up = ports.filter((pl.col("state") == "active").fill_null(value=True))
    alike = ["station", "rate_Gbps", "link_layer", "is_total"]
    return up.with_columns(most=pl.col("carried").max().over(alike), ports=pl.len().over(alike))


def _unlike_others(used: pl.DataFrame) -> pl.DataFrame:
    """Leave out hosts whose ports are as far apart as those of most hosts, unless these use the same port least."""
    hosts = used.group_by("station", "is_total").agg(
        gap=1 - pl.col("carried").min() / pl.col("carried").max(),
        least=pl.col("device").sort_by("carried").first(),
    )
    of_all = pl.len().over("is_total")
    is_usual = pl.col("gap") < FARTHER * pl.col("gap").median().over("is_total")
    is_same_port = 4 * pl.len().over("is_total", "least") > 3 * of_all
    alike = hosts.filter((of_all > PEERS_LEAST) & is_usual & ~is_same_port)
    return used.join(alike, on=["station", "is_total"], how="anti", maintain_order="left")


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def ctr_uneven_traffic(counter_increase: pl.DataFrame, port_state: pl.DataFrame) -> Iterator[Finding]:
    """Equal ports of a host carry unequal traffic.

    Means: rings and channels are not spread over all rails: GPUs far from their NIC, NCCL_IB_HCA or channels that leave
    one out, a port that is slower than its rate, or routing that prefers one path.
    Not when: the ports are within 20 % of each other; a port carries next to nothing, because it serves another
    purpose; little was sent; the ports of most hosts are as far apart, each host's in an order of its own, as where
    every rank sends to others than its neighbours do; there is one dump: then it is a note, because it includes other
    jobs.
    Do: compare `NET/IB : Using` and the channels of that host with another's; look at the NIC of the busiest port.
    Sources: field guides (traffic over equal paths within 20 %).
    """
    ports = _comparable_traffic(counter_increase, port_state)
    limit = pl.when("is_total").then(MUCH_EVER).otherwise(MUCH)
    used = ports.filter((pl.col("most") >= limit) & (pl.col("carried") >= pl.col("most") * IDLE))
    for (_, is_total), rows in _unlike_others(used).group_by("station", "is_total", maintain_order=True):
        apart = rows.filter(pl.col("carried") < pl.col("most") * (1 - APART)).sort("carried")
        if apart.is_empty() or rows.height < 2:
            continue
        least, most = apart.row(0, named=True), rows.sort("carried").row(-1, named=True)
        detail = ", ".join(f"{port_name(row)} sent {row['carried'] / 1e9:,.1f} GB" for row in (least, most))
        both = pl.concat([apart.head(1), rows.sort("carried").tail(1)]).select(counter_increase.columns)
        where = f" of {least['host']}" if least["host"] else ""
        finding = counter_finding(
            both, f"equal ports{where} carry unequal traffic", detail + period_text(least), certainty="possible"
        )
        if is_total:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
            finding.detail += ", in total since the counters were cleared"
        yield finding


@rule(Category.PLACEMENT, Severity.INFO, of=("counter_increase",))
def ctr_idle_port(counter_increase: pl.DataFrame, port_state: pl.DataFrame) -> Iterator[Finding]:
    """An active port carried nothing while the other ports of its host carried much.

    Means: the job does not use this NIC: a variable leaves it out, or it serves another purpose.
    Not when: the port is down; others of that host carried nothing either; there is one dump.
    Do: check NCCL_IB_HCA, and whether `NET/IB : Using` lists the NIC.
    Sources: NCCL documentation, networking.
    """
    ports = _comparable_traffic(counter_increase, port_state).filter(
        ~pl.col("is_total") & (pl.col("state") == "active")
    )
    idle = ports.filter(
        (pl.col("carried") < pl.col("most") * IDLE) & (pl.col("most") >= MUCH) & (pl.col("ports") > PEERS_LEAST)
    )
    for _, rows in idle.group_by("station", maintain_order=True):
        names = ", ".join(port_name(row) for row in rows.to_dicts()[:SHOWN])
        most = rows["most"].max()
        detail = f"the busiest port of the same host and rate sent {float(str(most)) / 1e9:,.1f} GB"
        counters = rows.select(counter_increase.columns)
        finding = counter_finding(counters, f"{names} carried nothing", detail, role=Role.CONTEXT)
        finding.evidence = counter_lines(counters.to_dicts())
        yield finding
