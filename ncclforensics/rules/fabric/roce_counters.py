"""RDMA traffic by the counters of hosts: losses, congestion notifications, pauses, peers that are not ready."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import printable
from ncclforensics.data.roce import (
    COUNTER_TEXTS,
    DISCARDS_LEAST,
    LOSSES,
    LOSSES_EVER,
    NOT_READY,
    NOTIFIED_LEAST,
    NOTIFIED_SHARE,
    PAUSED_SHARE,
    PAUSES_LEAST,
    PROOFS,
    REFUSED,
    SENT,
    STALLED,
    STORMS,
)
from ncclforensics.rules.fabric.links import CERTAINTY, SHOWN, Row, grown, lines, port_name, times, told_by_log
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule

MANY = 3  # ports from which on it is not one link


def counted(row: Row) -> str:
    """`91,234 time-outs without an answer`, of a row of `counter_growth`; of all time where there is one dump."""
    least = "at least " if row["is_least"] or row["is_saturated"] else ""
    amount = row["value"] if row["growth"] is None else row["growth"]
    name = row["name"]
    words = (
        name.removeprefix("nvlink_").replace("_", " ") if name.startswith("nvlink_") else COUNTER_TEXTS.get(name, name)
    )
    return printable(f"{least}{amount:,} {words}")


def summed(rows: pl.DataFrame) -> str:
    """The same of several ports together, what proves most first."""
    amount = pl.coalesce("growth", "value")
    totals = rows.group_by("name", maintain_order=True).agg(
        amount.sum().alias("growth"), pl.col("is_least", "is_saturated").any(), value=pl.lit(0)
    )
    order = {name: place for place, name in enumerate(COUNTER_TEXTS)}
    told = sorted(totals.to_dicts(), key=lambda row: order.get(row["name"], len(order)))
    return ", ".join(map(counted, told[:SHOWN]))


def ports_named(rows: pl.DataFrame) -> str:
    """The ports of these rows, a few by name."""
    names = list(dict.fromkeys(port_name(row) for row in rows.to_dicts()))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def on_ports(rows: pl.DataFrame, title: str, detail: str, **more: object) -> Finding:
    """One finding on counters that grew; the weakest order of dumps among them tells how sure it is."""
    told = rows.sort("source", "line").to_dicts()
    grades = [CERTAINTY.get(row["order"] or "", "possible") for row in told]
    certainty = max(grades, key=["certain", "likely", "possible"].index)
    hosts = sorted({row["host"] for row in told if row["host"]})
    finding = Finding(title, detail, certainty, hosts=hosts, evidence=lines(told))
    for name, value in more.items():
        setattr(finding, name, value)
    return finding


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def ctr_roce_loss(
    counter_growth: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """RDMA packets were lost and sent again.

    Means: on one port: its link or its peer; on many: the network drops what it should not, for flow control is off or
    set up unequally, or congestion is not held back. Each loss stalls a transfer; too many end the job with status 12.
    Not when: packets only arrive out of sequence, which is what adaptive routing does; there is one dump and few were
    lost; the counters did not grow between two dumps.
    Do: compare mlnx_qos -i INTERFACE on all hosts and on the switches (one lossless priority, with the traffic class of
    NCCL_IB_TC in it); look for discards (ethtool -S) and link errors of the ports named.
    Sources: NCCL documentation, networking; nccl#394; kernel documentation of mlx5 counters.
    """
    lost = grown(counter_growth, LOSSES)
    lost = lost.filter(pl.col("name").is_in(PROOFS).any().over("key"))
    if lost.is_empty():
        yield from _lost_at_some_time(counter_growth)
        return
    ports = lost["key"].n_unique()
    told = lost.sort(-pl.col("growth"), "source", "line").to_dicts()
    detail = summed(lost) + times(told[0])
    if ports >= MANY:
        detail += f"; on {ports} ports: the network drops packets, not one link"
    finding = on_ports(lost, f"RDMA packets were lost at {ports_named(lost)}", detail)
    told_by_log(finding, told, completion_error, rank)
    yield finding


def _lost_at_some_time(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """What a single dump tells, where it is as much as stopped a job of others."""
    limit = pl.col("name").replace_strict(LOSSES_EVER, default=None, return_dtype=pl.Int64)
    ever = counter_growth.filter((pl.col("dumps") == 1) & (pl.col("value") >= limit))
    if ever.height:
        detail = f"{summed(ever)}, since nobody knows when"
        title = f"RDMA packets were lost at some time at {ports_named(ever)}"
        yield on_ports(ever, title, detail, severity=Severity.INFO, role=Role.CONTEXT)


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def ctr_peer_not_ready(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """Packets came for which nobody had posted a receive.

    Means: the receiving process comes too late: its CPU is busy or starved, or it hangs. `rnr_nak_retry_err` is
    counted where data is sent and accuses the peer, `out_of_buffer` where it comes in and accuses this host.
    Not when: there is one dump; fewer than a hundred came; the counter is the one of the host's own TCP traffic.
    Do: look at the CPUs of the receiving host (top, taskset -p), and for a rank that comes late.
    Sources: NCCL documentation, networking; kernel documentation of mlx5 counters.
    """
    late = grown(counter_growth, NOT_READY)
    if late.is_empty():
        return
    told_so = late.filter(pl.col("name") == "rnr_nak_retry_err")
    own = late.filter(pl.col("name") != "rnr_nak_retry_err")
    when = times(late.row(0, named=True))
    if own.height:
        detail = summed(own) + when + (f"; {ports_named(told_so)}: {summed(told_so)}" if told_so.height else "")
        yield on_ports(own, f"{ports_named(own)} was not ready to receive", detail, certainty="likely")
    else:
        title = f"the peers of {ports_named(told_so)} were not ready to receive"
        yield on_ports(told_so, title, summed(told_so) + when, certainty="possible")


@rule(Category.IB_ERROR, Severity.WARNING, of=("counter_growth",))
def ctr_responder(
    counter_growth: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Requests ended with an error at this port, or an access to memory was refused.

    Means: what NCCL prints as completions with a status. Refused accesses (status 10 at the peer) are of memory whose
    registration has gone: the peer's process ended, or GPUDirect does not work there.
    Not when: only flushed requests are counted, which is how connections are closed; there is one dump.
    Do: see which process failed first; on the host that refuses look at GPUDirect (nvidia-peermem, DMA-BUF) and at ACS.
    Sources: kernel documentation of mlx5 counters; rdma-core (status of completions).
    """
    failed = grown(counter_growth, REFUSED)
    if failed.height:
        told = failed.to_dicts()
        detail = summed(failed) + times(told[0])
        finding = on_ports(failed, f"transfers failed at {ports_named(failed)}", detail, role=Role.CONSEQUENCE)
        told_by_log(finding, told, completion_error, rank)
        yield finding


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def roce_notifications(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """Senders were told to slow down for a good part of what they sent.

    Means: switches mark packets because queues fill up: too many send to one, or paths are shared unevenly. The rate of
    these ports is held down.
    Not when: they are fewer than one in a thousand packets sent, which is how congestion control is meant to work; no
    packets are counted beside them; there is one dump.
    Do: see who receives (np_ecn_marked_roce_packets), and whether one link of many is overused; check ECN thresholds.
    Sources: NVIDIA practice on DCQCN (about 0.1 %); NCCL documentation, networking.
    """
    sent = counter_growth.filter(pl.col("name").is_in(SENT) & (pl.col("growth") > 0))
    packets = sent.group_by("key").agg(sent=pl.col("growth").max())
    told = counter_growth.filter((pl.col("name") == "rp_cnp_handled") & (pl.col("growth") >= NOTIFIED_LEAST))
    slowed = told.join(packets, on="key", maintain_order="left").filter(
        pl.col("growth") > pl.col("sent") * NOTIFIED_SHARE
    )
    if slowed.height:
        worst = slowed.sort(-pl.col("growth") / pl.col("sent")).row(0, named=True)
        share = worst["growth"] / worst["sent"]
        detail = (
            f"{port_name(worst)}: {worst['growth']:,} notifications for {worst['sent']:,} packets sent ({share:.1%})"
        )
        title = f"congestion held back {ports_named(slowed)}"
        yield on_ports(slowed, title, detail)


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("counter_growth",))
def roce_notifications_ignored(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """Senders were told to slow down and did not, for congestion control is switched off there.

    Means: this port goes on at full rate while the others yield: unfair, and a cause of pauses and losses.
    Not when: the counter is zero.
    Do: switch it on, alike on all hosts: echo 1 > /sys/class/net/INTERFACE/ecn/roce_rp/enable/PRIORITY, and roce_np.
    Sources: kernel documentation of mlx5 counters (rp_cnp_ignored); NVIDIA RoCE configuration guide.
    """
    grew = pl.coalesce("growth", pl.when(pl.col("dumps") == 1).then("value")) > 0
    deaf = counter_growth.filter((pl.col("name") == "rp_cnp_ignored") & grew)
    if deaf.height:
        detail = f"{counted(deaf.row(0, named=True))}: congestion control is off at these ports"
        yield on_ports(deaf, f"{ports_named(deaf)} ignored notifications of congestion", detail)


def _pauses(counter_growth: pl.DataFrame, way: str, what: str) -> pl.DataFrame:
    name = pl.col("name")
    of_priority = name.str.starts_with(f"{way}_prio") & name.str.ends_with(f"_{what}")
    return counter_growth.filter(of_priority & (pl.col("growth") > 0))


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def roce_pauses(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """A host pauses the network in front of it, or is paused by it, for much of the time.

    Means: a host that sends pauses is the slow receiver: its PCIe link, its memory or a stalled device does not take
    what comes in, and the pause spreads to all that send to it. A host that receives them is held up by the network.
    Not when: fewer than ten thousand frames; less than a twentieth of the time, where that is known; all hosts alike.
    Do: on the host that sends them: PCIe width and speed of the NIC, ethtool -S for outbound_pci_stalled, other load;
    a watchdog against pause storms on the switches.
    Sources: kernel documentation of mlx5 counters; NVIDIA RoCE configuration guide; IEEE 802.1Qbb.
    """
    yield from _storms(counter_growth)
    sent, received = (_much_paused(counter_growth, way) for way in ("tx", "rx"))
    if sent.height:
        told = sent.to_dicts()
        detail = (
            f"{told[0]['growth']:,} pauses sent ({told[0]['name']}){times(told[0])}: it takes too slowly what comes in"
        )
        yield on_ports(sent, f"{ports_named(sent)} paused the network", detail)
    elif received.height:  # who is paused is a victim of who pauses
        told = received.to_dicts()
        detail = f"{told[0]['growth']:,} pauses received ({told[0]['name']}){times(told[0])}: look for who sends them"
        yield on_ports(received, f"{ports_named(received)} was paused by the network", detail, role=Role.CONSEQUENCE)


def _storms(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    grew = pl.coalesce("growth", pl.when(pl.col("dumps") == 1).then("value")) > 0
    storms = counter_growth.filter(pl.col("name").is_in(STORMS) & grew)
    if storms.height:
        detail = f"{counted(storms.row(0, named=True))}: the device stood still and paused the network all the time"
        title = f"{ports_named(storms)}: a storm of pauses was cut off"
        severity = Severity.ERROR if storms["growth"].null_count() == 0 else Severity.WARNING
        yield on_ports(storms, title, detail, severity=severity)


def _much_paused(counter_growth: pl.DataFrame, way: str) -> pl.DataFrame:
    """Ports with many pauses; where their length and the time are known, only those that were paused for long."""
    frames = _pauses(counter_growth, way, "pause").filter(pl.col("growth") >= PAUSES_LEAST)
    length = (
        _pauses(counter_growth, way, "pause_duration")
        .group_by("key")
        .agg(share=(pl.col("growth") / 1e6 / pl.col("seconds")).max())
    )
    return (
        frames.join(length, on="key", how="left", maintain_order="left")
        .filter((pl.col("share") >= PAUSED_SHARE).fill_null(value=True))
        .sort(-pl.col("growth"), "source", "line")
        .unique("key", keep="first", maintain_order=True)
    )


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_growth",))
def roce_discards(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """A NIC dropped packets that came in, for it had no room for them.

    Means: the host takes data too slowly (PCIe), or flow control does not stop the senders: on a priority that should
    be without loss it is off somewhere on the way.
    Not when: fewer than a hundred were dropped; they are of another priority's traffic; there is one dump.
    Do: compare mlnx_qos -i INTERFACE with the switch; PCIe width and speed; ethtool -S for outbound_pci_stalled.
    Sources: kernel documentation of mlx5 counters; infiniband-diags error_thresholds.
    """
    name = pl.col("name")
    of_priority = name.str.starts_with("rx_prio") & (name.str.ends_with("_discards") | name.str.ends_with("_discard"))
    dropped = counter_growth.filter((of_priority | (name == "rx_discards_phy")) & (pl.col("growth") >= DISCARDS_LEAST))
    if dropped.is_empty():
        return
    told = dropped.sort(-pl.col("growth")).to_dicts()
    detail = summed(dropped) + times(told[0])
    stalled = counter_growth.filter(
        name.is_in(STALLED) & (pl.col("growth") > 0) & pl.col("key").is_in(dropped["key"].to_list())
    )
    if stalled.height:
        detail += f"; {counted(stalled.row(0, named=True))}: its PCIe link does not take the data"
    finding = on_ports(dropped, f"{ports_named(dropped)} dropped packets that came in", detail)
    finding.evidence += lines(stalled.to_dicts())[:1]
    yield finding
