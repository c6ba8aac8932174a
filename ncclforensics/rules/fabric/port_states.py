"""Ports of the fabric by their state: degraded links, ports without a subnet manager, ports that were lost."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.degraded_links import SAME_PORT, degraded_links, link_hosts, link_target, port_line
from ncclforensics.rules.shared.port_counters import SHOWN, limit_findings
from ncclforensics.rules.shared.port_text import nics_of, port_name


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
    last = port_state.filter(pl.col("state").is_not_null()).unique(
        [*SAME_PORT, "source"] if port_state["host"].null_count() else SAME_PORT, keep="last", maintain_order=True
    )
    waiting = last.filter(
        pl.col("state").is_in(["initializing", "armed"])
        & (pl.col("physical_state") == "LinkUp").fill_null(value=True)
        & (pl.col("link_layer") != "Ethernet").fill_null(value=True)
    ).to_dicts()
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
                    role=Role.CAUSE,
                    evidence=[port_line(last, "after"), port_line(first, "before")],
                )
            )
    yield from limit_findings(findings, "more ports were lost")
