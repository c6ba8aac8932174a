"""Ports of the fabric by their state: slower or narrower than they could be, without a manager, lost."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.counters import ADAPTERS
from ncclforensics.rules.fabric.links import SHOWN, Row, at_most, port_name
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import DumpFault


def _line(row: Row, what: str = "") -> Line:
    return Line(row["source"], row["line"], what)


def _speed(row: Row, suffix: str = "") -> str:
    words = [row[f"width{suffix}"] or row["width"], row[f"speed{suffix}"] or row["speed"]]
    return " ".join(word for word in words if word)


def _to(row: Row) -> str:
    return f" to {port_name(row, 'peer_')}" if row["peer_port"] is not None else ""


def _hosts(row: Row) -> list[str]:
    """The hosts at the ends of a link."""
    words = str(row["peer_node"] or "").split(" ")
    peer = words[0] if len(words) == len(("host", "device")) and words[1].startswith(ADAPTERS) else None
    return sorted({host for host in (row["host"], peer) if host})


def _slowed(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Links of which the tool says that both ends could do more. Both ends say so: one of them is told."""
    hinted = port_state.filter(pl.col("width_supported").is_not_null() | pl.col("speed_supported").is_not_null())
    told: set[tuple[object, ...]] = set()
    for row in hinted.to_dicts():
        own, peer = (row["lid"], row["port"]), (row["peer_lid"], row["peer_port"])
        if own in told or peer in told:
            continue
        told.add(own)
        yield Finding(
            f"the link of {port_name(row)}{_to(row)} runs at {_speed(row)} and could do {_speed(row, '_supported')}",
            "both ends are able to more: the cable, a transceiver, or a port that was limited",
            "certain",
            hosts=_hosts(row),
            evidence=[_line(row)],
        )


def _unequal(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Links between the same two switches of which one is slower than the others, or has one lane."""
    known = port_state.filter(
        pl.col("rate_Gbps").is_not_null() & pl.col("guid").is_not_null() & pl.col("peer_guid").is_not_null()
    ).filter(pl.col("width_supported").is_null() & pl.col("speed_supported").is_null())
    pair = pl.concat_list("guid", "peer_guid").list.sort()
    last = known.with_columns(_pair=pair).unique(["guid", "port"], keep="last", maintain_order=True)
    last = last.filter(pl.col("guid") == pl.col("_pair").list.first())  # each link once
    most = pl.col("rate_Gbps").max().over("_pair")
    full = (pl.col("rate_Gbps") == most).sum().over("_pair")
    slow = last.with_columns(_most=most, _full=full).filter(
        (pl.col("rate_Gbps") < pl.col("_most")) & (pl.col("_full") * 2 >= pl.len().over("_pair"))
    )
    for row in slow.to_dicts():
        yield Finding(
            f"the link of {port_name(row)}{_to(row)} runs at {row['rate_Gbps']:g} Gb/s",
            f"the {row['_full']} others between the same two run at {row['_most']:g} Gb/s",
            "likely",
            hosts=_hosts(row),
            evidence=[_line(row)],
        )


def _fell(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Ports that run slower in a later dump than in an earlier one."""
    timed = port_state.filter(pl.col("moment").is_not_null() & pl.col("rate_Gbps").is_not_null())
    for _, rows in timed.sort("moment").group_by(*_SAME, maintain_order=True):
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        if last["moment"] > first["moment"] and last["rate_Gbps"] < first["rate_Gbps"]:
            rates = f"from {first['rate_Gbps']:g} to {last['rate_Gbps']:g} Gb/s"
            yield Finding(
                f"the link of {port_name(last)}{_to(last)} fell {rates}",
                f"between {first['moment']} and {last['moment']}",
                "certain",
                hosts=_hosts(last),
                evidence=[_line(last, "after"), _line(first, "before")],
            )


def degraded(port_state: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    """Hosts with a link that is slower than it could be, for what is slow on them."""
    for finding in _degraded(port_state):
        for host in finding.hosts:
            yield host, DumpFault(finding.title, finding.detail, Severity.WARNING, finding.certainty, finding.evidence)


def _degraded(port_state: pl.DataFrame) -> list[Finding]:
    return [*_fell(port_state), *_slowed(port_state), *_unequal(port_state)]


_SAME = ["host", "device", "guid", "port"]


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",))
def ctr_rate_downshift(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A link runs slower or narrower than both its ends are able to, or than its siblings.

    Means: lanes were lost, or a lower speed was agreed on: cable or transceiver, or a port that somebody limited. All
    traffic of that path is held up by it.
    Not when: one end can do no more; 2X is a port split in two; a tool that is too old prints `undefined` for a speed.
    Do: reseat or exchange cable and transceivers, then iblinkinfo again; mlxlink -d DEVICE -m; see that speed and width
    are not limited at either end.
    Sources: rdma-core iblinkinfo (Could be); NCCL documentation, networking; azurehpc-health-checks check_hw_ib.
    """
    yield from at_most(_degraded(port_state), "more links are degraded")


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",))
def ctr_no_subnet_manager(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port's link is up, but no subnet manager has brought the port up.

    Means: the port waits in Initializing (or Armed): no manager runs on that fabric, it cannot reach the port, or it is
    at work just now. Nothing can be sent over it.
    Not when: the link is down; the port is Ethernet; another dump shows the port active later.
    Do: sminfo on that host; start opensm or see the managed switch or UFM; then ibstat again.
    Sources: rdma-core ibstat; InfiniBand specification, port states; NCCL documentation, networking.
    """
    last = port_state.filter(pl.col("state").is_not_null()).unique(
        [*_SAME, "source"] if port_state["host"].null_count() else _SAME, keep="last", maintain_order=True
    )
    waiting = last.filter(
        pl.col("state").is_in(["initializing", "armed"])
        & (pl.col("physical_state") == "LinkUp").fill_null(value=True)
        & (pl.col("link_layer") != "Ethernet").fill_null(value=True)
    ).to_dicts()
    if waiting:
        names = ", ".join(port_name(row) for row in waiting[:SHOWN]) + (" and others" if len(waiting) > SHOWN else "")
        yield Finding(
            f"no subnet manager has brought up {names}",
            f"the link is up and the port is {waiting[0]['state']}: nothing can be sent over it",
            "certain",
            hosts=sorted({row["host"] for row in waiting if row["host"]}),
            evidence=[_line(row) for row in waiting[:SHOWN]],
        )


@rule(Category.LINK_ERROR, Severity.ERROR, of=("port_state",))
def ctr_port_lost(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port that was active in an earlier dump is down in a later one.

    Means: its link was lost and has not come back: cable, transceiver, the other end, or somebody disabled it.
    Not when: the dumps do not tell their times; the port was down in all of them, which is what unused ports are.
    Do: see what is at the other end; reseat or exchange the cable; ibportstate LID PORT query.
    Sources: InfiniBand specification, port states; NCCL documentation, networking.
    """
    timed = port_state.filter(pl.col("moment").is_not_null() & pl.col("state").is_not_null()).sort("moment")
    findings = []
    for _, rows in timed.group_by(*_SAME, maintain_order=True):
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        if first["state"] == "active" and last["state"] == "down" and last["moment"] > first["moment"]:
            where = f" ({last['physical_state']})" if last["physical_state"] else ""
            findings.append(
                Finding(
                    f"{port_name(last)} was active and is down{where}" + (_to(first) and f", it led{_to(first)}"),
                    f"its link was lost between {first['moment']} and {last['moment']} and has not come back",
                    "certain",
                    hosts=_hosts(last),
                    role=Role.CAUSE,
                    evidence=[_line(last, "after"), _line(first, "before")],
                )
            )
    yield from at_most(findings, "more ports were lost")
