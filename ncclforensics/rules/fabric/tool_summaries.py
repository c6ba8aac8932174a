"""What tools of the fabric say in their own words: ibdiagnet's summary, PFC of switches, the service of NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines


@rule(Category.LINK_ERROR, Severity.WARNING, of=("ibdiagnet_stage",))
def ibdiagnet_counts_errors(ibdiagnet_stage: pl.DataFrame) -> Iterator[Finding]:
    """The summary of ibdiagnet counts errors or warnings.

    Means: a stage found ports, links, counters or settings that are not as they should be; errors of `Speed / Width
    checks` are links below what both their ends support, of `Port Counters` counters above their thresholds.
    Not when: all counts are zero.
    Do: look for the lines of that stage in ibdiagnet2.log (-E- and -W-), which name the ports; then mlxlink -d
    DEVICE -m.
    Sources: NVIDIA, ibdiagnet user manual.
    """
    stages = ibdiagnet_stage.filter(pl.col("stage").is_not_null()).sort("source", "line")
    for column, noun, severity in (("errors", "error", Severity.WARNING), ("warnings", "warning", Severity.INFO)):
        found = stages.filter(pl.col(column) > 0)
        for (source,), rows in found.group_by("source", maintain_order=True):
            listed = [f"{count_of(row[column], noun)} in {row['stage']}" for row in rows.to_dicts()]
            checked = stages.filter(pl.col("source") == source).height
            yield Finding(
                title=f"ibdiagnet counts {', '.join(listed[:SHOWN])}"
                + f" and in {count_of(len(listed) - SHOWN, 'other stage')}" * (len(listed) > SHOWN),
                detail=f"{count_of(checked, 'stage')} in its summary; its log names the ports",
                certainty="certain",
                severity=severity,
                role=Role.CAUSE if severity is Severity.WARNING else Role.CONTEXT,
                evidence=evidence_lines(rows),
            )


@rule(Category.CONGESTION, Severity.WARNING, of=("watchdog_queue",))
def switch_pfc_storm(watchdog_queue: pl.DataFrame) -> Iterator[Finding]:
    """The PFC watchdog of a switch found a queue that was paused for too long.

    Means: the neighbour of that port sent pause frames without end: a host whose NIC or PCIe is stuck, or a loop of
    ports that wait for one another. What waits in the queue is dropped meanwhile, so that RDMA sends it again, or
    gives up (retry exceeded).
    Not when: no storm was detected. One that ended is a note: its time is not known.
    Do: look at what is behind the port (its dmesg, ethtool -S: tx_prio3_pause); show pfc counters on both sides.
    Sources: SONiC command reference, show pfcwd stats; SONiC, PFC watchdog design.
    """
    queues = watchdog_queue.filter(pl.col("storms") > 0).sort("source", "line")
    last = queues.unique(["source", "switch_port", "queue"], keep="last", maintain_order=True)
    stormed = text_of("queue_status") == "stormed"
    for (is_stormed,), rows in last.group_by(stormed, maintain_order=True):
        texts = [
            f"{row['switch_port']} queue {row['queue']} ({row['dropped'] + row['dropped_received']:,} packets dropped)"
            for row in rows.head(SHOWN).to_dicts()
        ]
        yield Finding(
            title=f"PFC watchdog: {', '.join(texts)} {'is' if rows.height == 1 else 'are'} in a storm of pause frames"
            if is_stormed
            else f"PFC watchdog: {', '.join(texts)} had a storm of pause frames, which ended",
            detail=f"{count_of(int(rows['storms'].sum()), 'storm')} detected, {int(rows['storms_ended'].sum())} ended",
            certainty="certain",
            severity=Severity.WARNING if is_stormed else Severity.INFO,
            role=Role.CAUSE if is_stormed else Role.CONTEXT,
            evidence=evidence_lines(rows),
        )


SERVICE = {
    "mismatch": ("its version differs from the driver's", Severity.ERROR),
    "no_switch": ("it found no NVSwitch to manage; without NVSwitches it is not needed", Severity.INFO),
    "ended": ("it ended with an error", Severity.ERROR),
    "refused": ("it did not start", Severity.ERROR),
    "stopped": ("it was stopped, and no line shows that it started again", Severity.WARNING),
}


WITHOUT_SWITCHES = (
    "a machine without NVSwitches needs none: disable it; else install the package nvidia-fabricmanager of exactly the "
    "driver's version; systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager has the reason"
)
ADVICE = {
    "ended": WITHOUT_SWITCHES,
    "refused": WITHOUT_SWITCHES,
    "no_switch": "where lspci lists NVSwitches, look at the driver (dmesg -T); else disable the service",
    "stopped": "systemctl status nvidia-fabricmanager; start it on a host with NVSwitches before jobs run there",
}


@rule(Category.NVLS, Severity.ERROR, of=("manager_service",))
def fabric_manager_failed(manager_service: pl.DataFrame) -> Iterator[Finding]:
    """Fabric Manager did not start, ended, or was stopped, so that the NVSwitches of the host are not set up.

    Means: CUDA then reports `system not yet initialized` (802), or GPUs reach one another without NVLink only.
    GPUs that were in use when it stopped keep their NVLinks, but a program that starts then may not.
    Not when: the machine has no NVSwitch, where the service has nothing to do; it started again and configured them.
    Do: install the package nvidia-fabricmanager of exactly the driver's version; systemctl restart
    nvidia-fabricmanager.
    Sources: NVIDIA Fabric Manager user guide.
    """
    ordered = manager_service.sort("source", "line").with_columns(kind=text_of("form"))
    last = ordered.group_by("source", maintain_order=True).agg(
        configured=pl.col("line").filter(pl.col("kind") == "configured").max(),
        started=pl.col("line").filter(pl.col("kind").is_in(["started", "script"])).max(),
    )
    is_later = pl.col("line") > pl.max_horizontal("configured", pl.when(kind="stopped").then("started")).fill_null(-1)
    rows = ordered.join(last, on="source", how="left", maintain_order="left").filter(
        pl.col("kind").is_in(list(SERVICE)) & is_later
    )
    for (_,), alike in rows.group_by("source", maintain_order=True):
        first = min(alike.to_dicts(), key=lambda row: list(SERVICE).index(row["kind"]))
        text, severity = SERVICE[first["kind"]]
        versions = f" ({first['manager_version']} and {first['driver_version']})" if first["kind"] == "mismatch" else ""
        hosts = sorted(alike["launcher_node"].cast(pl.String).drop_nulls().unique().to_list())
        yield Finding(
            title=f"Fabric Manager{' on ' * bool(hosts)}{', '.join(hosts[:SHOWN])}: {text}{versions}",
            detail=f"reason: {first['reason'] or first['result']}" if first["reason"] or first["result"] else
            "no line after it that was read shows that the NVSwitches were configured",
            certainty="certain",
            remedy=ADVICE.get(first["kind"], ""),
            severity=severity,
            role=Role.CAUSE if severity is Severity.ERROR else Role.CONTEXT,
            hosts=hosts,
            evidence=evidence_lines(alike),
        )  # fmt: skip
