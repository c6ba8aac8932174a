"""Ports of the fabric by their state: degraded links, ports without a subnet manager, ports that were lost."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.degraded_links import SAME_PORT, degraded_links, link_hosts, link_target, port_line
from ncclforensics.rules.shared.port_counters import SHOWN, limit_findings
from ncclforensics.rules.shared.port_text import OF_A_HOST, nics_of, port_name, port_names


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",))
def ctr_rate_downshift(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A link runs slower or narrower than both its ends support, than before, or than parallel links.

    Means: lanes were lost, or a lower speed was negotiated: cable or transceiver, or a port that was limited by its
    configuration. The link slows down all traffic on that path.
    Not when: one end supports no more; 2X is a port split in two; a tool that is too old prints `undefined` for a
    speed.
    Do: reseat or replace cable and transceivers, then run iblinkinfo again; mlxlink -d DEVICE -m; check that speed and
    width are not limited at either end.
    Sources: rdma-core iblinkinfo (Could be); NCCL documentation, networking; azurehpc-health-checks check_hw_ib.
    """
    yield from limit_findings(degraded_links(port_state), "more links are degraded")


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",))
def ctr_no_subnet_manager(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port's physical link is up, but no subnet manager has activated the port.

    Means: the port waits in Initializing (or Armed): no subnet manager runs on that fabric, it cannot reach the port,
    or it is configuring the port at this moment. Nothing can be sent over the port.
    Not when: the link is down; the port is Ethernet; a later dump shows the port active.
    Do: run sminfo on that host; start opensm, or check the managed switch or UFM; then run ibstat again.
    Sources: rdma-core ibstat; InfiniBand specification, port states; NCCL documentation, networking.
    """
    waiting = (
        _last_states(port_state)
        .filter(
            pl.col("state").is_in(["initializing", "armed"])
            & (pl.col("physical_state") == "LinkUp").fill_null(value=True)
            & (pl.col("link_layer") != "Ethernet").fill_null(value=True)
        )
        .to_dicts()
    )
    if waiting:
        names = ", ".join(port_name(row) for row in waiting[:SHOWN]) + (" and others" if len(waiting) > SHOWN else "")
        yield Finding(
            f"no subnet manager has activated {names}",
            f"the link is up and the port is {waiting[0]['state']}: nothing can be sent over it",
            "certain",
            hosts=sorted({row["host"] for row in waiting if row["host"]}),
            nics=nics_of(waiting),
            evidence=[port_line(row) for row in waiting[:SHOWN]],
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("port_state",), role=Role.CONTEXT)
def ctr_port_down_with_link(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port is down although its physical link is up.

    Means: the cable and both ends work, but the port was not activated. InfiniBand: mostly a virtual function
    (SR-IOV) without a GUID, or whose link state its host holds down, so that the subnet manager skips it. Ethernet: the
    network interface is switched off.
    Not when: another port of that host is active, so that this one may be meant to be off: a note.
    Do: on the host of the NIC: ip link show; ip link set DEVICE vf N state auto, node_guid and port_guid; on Ethernet
    ip link set INTERFACE up; then ibstat again.
    Sources: InfiniBand specification, port states; network-operator#249; rdma-core ibstat.
    """
    is_down = (pl.col("state") == "down") & (pl.col("physical_state") == "LinkUp")
    stations = _last_states(port_state).with_columns(station=pl.coalesce("host", pl.col("source").cast(pl.String)))
    active = (pl.col("state") == "active").any().over("station")
    for (has_active,), rows in (
        stations.with_columns(has_active=active).filter(is_down).group_by("has_active", maintain_order=True)
    ):
        ports = rows.unique(SAME_PORT, keep="last", maintain_order=True).to_dicts()
        names = some_of([port_name(port) for port in ports], SHOWN)
        is_ethernet = all(port["link_layer"] == "Ethernet" for port in ports)
        yield Finding(
            f"{names}: down, although the physical link is up",
            "the network interface is switched off"
            if is_ethernet
            else "not the cable: it was not activated: a virtual function without a GUID, or that its host holds down",
            "likely",
            severity=Severity.INFO if has_active else None,
            hosts=sorted({port["host"] for port in ports if port["host"]}),
            nics=nics_of(ports),
            evidence=[port_line(port) for port in ports[:SHOWN]],
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("port_state",), hang=True, role=Role.CONTEXT)
def ctr_all_ports_down(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Every port that a host's list shows is down, or the port that a tool was asked for is switched off.

    Means: over these ports nothing can be sent, so that NCCL finds no device there and falls back to sockets, or fails.
    Polling: no cable, or the other end does not answer; Disabled: switched off, at this end.
    Not when: some port of the list is active, then others may be unused; the list is of switches, or of a fabric; a
    port of a switch has no cable; the physical link is up, which is a finding of its own.
    Do: look at the cable and at the other end (iblinkinfo); mlxlink -d DEVICE; for Disabled ibportstate LID PORT
    enable, or ip link set INTERFACE up.
    Sources: InfiniBand specification, port states; rdma-core ibstat.
    """
    is_asked = pl.col("device").is_null() & pl.col("guid").is_null() & pl.col("lid").is_not_null()  # ibportstate
    is_off = is_asked & (pl.col("physical_state") == "Disabled")
    of_hosts = port_state.filter((pl.col("device").is_not_null() | is_off) & pl.col("state").is_not_null())
    asked = pl.when(is_asked).then(pl.format("LID {} port {}", "lid", "port"))
    station = pl.coalesce(asked, "host", pl.col("source").cast(pl.String))
    for _, rows in of_hosts.with_columns(station=station).group_by("station", maintain_order=True):
        ports = rows.unique(SAME_PORT, keep="last", maintain_order=True)
        if not (ports["state"] == "down").all() or (ports["physical_state"] == "LinkUp").any():
            continue
        kinds = ports["physical_state"].drop_nulls().unique(maintain_order=True)
        states = f" ({', '.join(kinds)})" * bool(len(kinds))
        which = (
            f"all {ports.height} ports shown are" if ports.height > 1 else f"{port_name(ports.row(0, named=True))} is"
        )
        host = ports["host"][0]
        yield Finding(
            which + f" down{states}" + f" on {host}" * bool(host and ports.height > 1),
            f"nothing can be sent over {port_names(ports, OF_A_HOST)}"
            if ports.height > 1
            else "nothing can be sent over it; no other port is shown",
            "certain",
            hosts=[host] if host else [],
            nics=nics_of(ports.to_dicts()),
            evidence=[port_line(port) for port in ports.head(SHOWN).to_dicts()],
        )


@rule(Category.LINK_ERROR, Severity.ERROR, of=("port_state",), hang=True)
def ctr_port_lost(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port that was active in an earlier dump is down in a later one.

    Means: its link was lost and has not come back: cable, transceiver, the other end, or the port was disabled.
    Not when: the dumps have no times; the port was down in all of them, as unused ports are.
    Do: look at the other end; reseat or replace the cable; ibportstate LID PORT query.
    Sources: InfiniBand specification, port states; NCCL documentation, networking.
    """
    timed = port_state.filter(pl.col("moment").is_not_null() & pl.col("state").is_not_null()).sort("moment")
    findings = []
    for _, rows in timed.group_by(*SAME_PORT, maintain_order=True):
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        if first["state"] == "active" and last["state"] == "down" and last["moment"] > first["moment"]:
            physical = f" ({last['physical_state']})" if last["physical_state"] else ""
            target = link_target(last)
            findings.append(
                Finding(
                    f"{port_name(last)} was active and is down{physical}" + (target and f", it was connected{target}"),
                    f"its link was lost between {first['moment']} and {last['moment']} and has not come back",
                    "certain",
                    hosts=link_hosts(last),
                    nics=nics_of([last]),
                    evidence=[port_line(last, "after"), port_line(first, "before")],
                )
            )
    yield from limit_findings(findings, "more ports were lost")


@rule(Category.LINK_ERROR, Severity.WARNING, of=("port_state",))
def ctr_port_unsteady(port_state: pl.DataFrame) -> Iterator[Finding]:
    """A port is down in one look of a file and active in another.

    Means: its link came and went between the looks: it does not hold, or it was just being brought up.
    Not when: no LID or GUID shows that both looks are of one port: hosts have ports of the same names; the looks have
    times: a port that was lost is a finding of its own.
    Do: dmesg -T | grep -i link for how often it changed; reseat or replace cable and transceivers; after a start of the
    host or of the subnet manager look again.
    Sources: iproute2 rdma link; rdma-core ibstat.
    """
    known = port_state.filter(
        pl.col("state").is_in(["active", "down"]) & pl.col("moment").is_null() & (_HAS_GUID | _HAS_LID)
    )
    for _, looks in known.group_by("source", *SAME_PORT, "lid", maintain_order=True):
        changes = looks.filter(pl.col("state") != pl.col("state").shift())
        if changes.is_empty():
            continue
        before, last = looks.row(0, named=True), looks.row(-1, named=True)
        yield Finding(
            f"{port_name(last)} was {_state_text(before)} and then {_state_text(last)}"
            if before["state"] != last["state"]
            else f"{port_name(last)} was {_state_text(last)}, was not, and is again",
            f"{looks.height} looks in this file show the port; its link does not hold, or was just coming up",
            "likely",
            hosts=link_hosts(last),
            nics=nics_of([last]),
            evidence=[port_line(row) for row in looks.head(SHOWN).to_dicts()],
        )


_HAS_GUID = pl.col("guid").is_not_null()
_HAS_LID = pl.col("lid").is_not_null() & pl.col("lid").is_in([0, 0xFFFF]).not_()


def _state_text(row: Row) -> str:
    """Return `down (Polling)`."""
    return str(row["state"]) + f" ({row['physical_state']})" * (row["state"] == "down" and bool(row["physical_state"]))


def _last_states(port_state: pl.DataFrame) -> pl.DataFrame:
    """Keep the last row of every port with its state; ports of hosts without a name are told apart by their file."""
    same_port = [*SAME_PORT, "source"] if port_state["host"].null_count() else SAME_PORT
    return port_state.filter(pl.col("state").is_not_null()).unique(same_port, keep="last", maintain_order=True)
