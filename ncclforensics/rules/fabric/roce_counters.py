"""RDMA traffic by the counters of hosts: packet loss, congestion notifications, pauses, receivers not ready."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.roce import (
    DISCARDS_LEAST,
    LOSSES,
    LOSSES_EVER,
    NOT_READY,
    NOTIFIED_LEAST,
    NOTIFIED_SHARE,
    PAUSED_SHARE,
    PAUSES,
    PAUSES_LEAST,
    PROOFS,
    REFUSED,
    SENT,
    STALLED,
    STORMS,
)
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.port_counters import (
    add_failed_transfers,
    counter_finding,
    counter_lines,
    increased,
)
from ncclforensics.rules.shared.port_text import (
    host_counter_text,
    host_counters_text,
    period_text,
    port_name,
    port_names,
)

MANY_PORTS = 3  # from which on the network is at fault rather than one link


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def ctr_roce_loss(
    counter_increase: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """RDMA packets were lost and sent again.

    Means: on one port: its link or its peer; on many ports: the network drops packets that it should not drop, because
    flow control is off or differs between hosts, or congestion control does not work. Each loss stalls a transfer; too
    many end the job with status 12.
    Not when: packets only arrive out of sequence, as with adaptive routing; there is one dump and few packets were
    lost; the counters did not increase between two dumps.
    Do: compare mlnx_qos -i INTERFACE on all hosts and on the switches (one lossless priority that contains the traffic
    class of NCCL_IB_TC); look for discards (ethtool -S) and link errors of these ports.
    Sources: NCCL documentation, networking; nccl#394; kernel documentation of mlx5 counters.
    """
    lost = increased(counter_increase, LOSSES)
    lost = lost.filter(pl.col("name").is_in(PROOFS).any().over("key"))
    if lost.is_empty():
        yield from _loss_totals(counter_increase)
        return
    ports = lost["key"].n_unique()
    rows = lost.sort(-pl.col("increase"), "source", "line").to_dicts()
    detail = host_counters_text(lost) + period_text(rows[0])
    if ports >= MANY_PORTS:
        detail += f"; on {ports} ports: the network drops packets, not one link"
    finding = counter_finding(lost, f"RDMA packets were lost at {port_names(lost)}", detail)
    add_failed_transfers(finding, rows, completion_error, rank)
    yield finding


def _loss_totals(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Report the totals of a single dump that are as large as in a known hang (data/roce.py)."""
    limit = pl.col("name").replace_strict(LOSSES_EVER, default=None, return_dtype=pl.Int64)
    totals = counter_increase.filter((pl.col("dumps") == 1) & (pl.col("value") >= limit))
    if totals.height:
        detail = f"{host_counters_text(totals)}; when they were counted is unknown"
        title = f"RDMA packets were lost at some time at {port_names(totals)}"
        yield counter_finding(totals, title, detail, severity=Severity.INFO, role=Role.CONTEXT)


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def ctr_peer_not_ready(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Packets arrived before the receiver had posted a receive request.

    Means: the receiving process is late: its CPU is busy or starved, or it hangs. `rnr_nak_retry_err` is counted at the
    sender and points to the peer, `out_of_buffer` is counted at the receiver and points to this host.
    Not when: there is one dump; fewer than 100 packets; the counter is the one of the host's own TCP traffic.
    Do: look at the CPUs of the receiving host (top, taskset -p), and for a straggler rank on it.
    Sources: NCCL documentation, networking; kernel documentation of mlx5 counters.
    """
    not_ready = increased(counter_increase, NOT_READY)
    if not_ready.is_empty():
        return
    at_sender = not_ready.filter(pl.col("name") == "rnr_nak_retry_err")
    at_receiver = not_ready.filter(pl.col("name") != "rnr_nak_retry_err")
    period = period_text(not_ready.row(0, named=True))
    if at_receiver.height:
        senders = f"; {port_names(at_sender)}: {host_counters_text(at_sender)}" if at_sender.height else ""
        detail = host_counters_text(at_receiver) + period + senders
        title = f"{port_names(at_receiver)} was not ready to receive"
        yield counter_finding(at_receiver, title, detail, certainty="likely")
    else:
        title = f"the peers of {port_names(at_sender)} were not ready to receive"
        yield counter_finding(at_sender, title, host_counters_text(at_sender) + period, certainty="possible")


@rule(Category.IB_ERROR, Severity.WARNING, of=("counter_increase",))
def ctr_responder(
    counter_increase: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Requests at this port completed with an error, or a memory access was refused.

    Means: NCCL prints these as completions with a status. A refused access (status 10 at the peer) concerns memory
    that is no longer registered: the peer's process ended, or GPUDirect does not work there.
    Not when: only flushed requests are counted, which closing a connection causes; there is one dump.
    Do: find the process that failed first; on the host that refuses check GPUDirect (nvidia-peermem, DMA-BUF) and ACS.
    Sources: kernel documentation of mlx5 counters; rdma-core (status of completions).
    """
    failed = increased(counter_increase, REFUSED)
    if failed.height:
        rows = failed.to_dicts()
        detail = host_counters_text(failed) + period_text(rows[0])
        title = f"transfers failed at {port_names(failed)}"
        finding = counter_finding(failed, title, detail, role=Role.CONSEQUENCE)
        add_failed_transfers(finding, rows, completion_error, rank)
        yield finding


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def roce_notifications(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Senders received congestion notifications for a large share of what they sent.

    Means: switches mark packets because queues fill up: too many senders to one receiver, or paths are shared unevenly.
    Congestion control reduces the rate of these ports.
    Not when: there are fewer than one notification per thousand packets sent, which is how congestion control is meant
    to work; no sent packets are counted; there is one dump.
    Do: find the receiver (np_ecn_marked_roce_packets), and check whether one of several links is overloaded; check ECN
    thresholds.
    Sources: NVIDIA practice on DCQCN (about 0.1 %); NCCL documentation, networking.
    """
    sent = counter_increase.filter(pl.col("name").is_in(SENT) & (pl.col("increase") > 0))
    packets = sent.group_by("key").agg(sent=pl.col("increase").max())
    notified = counter_increase.filter((pl.col("name") == "rp_cnp_handled") & (pl.col("increase") >= NOTIFIED_LEAST))
    slowed = notified.join(packets, on="key", maintain_order="left").filter(
        pl.col("increase") > pl.col("sent") * NOTIFIED_SHARE
    )
    if slowed.height:
        worst = slowed.sort(-pl.col("increase") / pl.col("sent")).row(0, named=True)
        share = worst["increase"] / worst["sent"]
        detail = (
            f"{port_name(worst)}: {worst['increase']:,} notifications for {worst['sent']:,} packets sent ({share:.1%})"
        )
        yield counter_finding(slowed, f"congestion control slowed down {port_names(slowed)}", detail)


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("counter_increase",))
def roce_notifications_ignored(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Senders ignored congestion notifications, because congestion control is switched off there.

    Means: this port keeps sending at full rate while the others slow down: unfair, and a cause of pauses and losses.
    Not when: the counter is zero.
    Do: switch it on, alike on all hosts: echo 1 > /sys/class/net/INTERFACE/ecn/roce_rp/enable/PRIORITY, and roce_np.
    Sources: kernel documentation of mlx5 counters (rp_cnp_ignored); NVIDIA RoCE configuration guide.
    """
    is_counted = pl.coalesce("increase", pl.when(pl.col("dumps") == 1).then("value")) > 0
    ignored = counter_increase.filter((pl.col("name") == "rp_cnp_ignored") & is_counted)
    if ignored.height:
        detail = f"{host_counter_text(ignored.row(0, named=True))}: congestion control is off at these ports"
        yield counter_finding(ignored, f"{port_names(ignored)} ignored congestion notifications", detail)


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def roce_pauses(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """A host pauses the network, or the network pauses it, for much of the time.

    Means: a host that sends pauses is the slow receiver: its PCIe link, its memory or a stalled device does not accept
    the data, and the pause spreads to all its senders. A host that receives pauses is held up by the network.
    Not when: fewer than ten thousand frames; less than a twentieth of the time, where that is known; all hosts alike.
    Of one dump they are totals of unknown age, and a note.
    Do: on the host that sends them: PCIe width and speed of the NIC, ethtool -S for outbound_pci_stalled, other load;
    a watchdog against pause storms on the switches.
    Sources: kernel documentation of mlx5 counters; NVIDIA RoCE configuration guide; IEEE 802.1Qbb.
    """
    yield from _pause_storms(counter_increase)
    sent, received = (_long_pauses(counter_increase, direction) for direction in ("tx", "rx"))
    if sent.height:
        worst = sent.row(0, named=True)
        detail = (
            f"{worst['increase']:,} pauses sent ({worst['name']}){period_text(worst)}: "
            "the host accepts incoming data too slowly"
        )
        yield counter_finding(sent, f"{port_names(sent)} paused the network", detail)
    elif received.height:  # where pauses are sent, the receivers of pauses are only victims
        worst = received.row(0, named=True)
        detail = (
            f"{worst['increase']:,} pauses received ({worst['name']}){period_text(worst)}: "
            "look for the host that sends them"
        )
        title = f"{port_names(received)} was paused by the network"
        yield counter_finding(received, title, detail, role=Role.CONSEQUENCE)
    yield from _pauses_ever(counter_increase)


def _pauses_ever(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Note the pause frames of single dumps."""
    names = [*PAUSES["tx"], *PAUSES["rx"]]
    many = counter_increase.filter(
        (pl.col("dumps") == 1) & pl.col("name").is_in(names) & (pl.col("value") >= PAUSES_LEAST)
    )
    if many.height:
        worst = many.sort("value", "source", "line", descending=[True, False, False])
        first = worst.row(0, named=True)
        way = "sent" if first["name"] in PAUSES["tx"] else "received"
        yield counter_finding(
            worst,
            f"pause frames at {port_names(worst)}, at an unknown time: {first['value']:,} {way} ({first['name']})",
            "totals since the counters were cleared, which do not show whether a port pauses now",
            certainty="certain",
            severity=Severity.INFO,
            role=Role.CONTEXT,
        )


def _pause_storms(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    is_counted = pl.coalesce("increase", pl.when(pl.col("dumps") == 1).then("value")) > 0
    storms = counter_increase.filter(pl.col("name").is_in(STORMS) & is_counted)
    if storms.height:
        detail = f"{host_counter_text(storms.row(0, named=True))}: the device stalled and paused the network "
        detail += "continuously"
        title = f"{port_names(storms)}: a pause storm was cut off"
        severity = Severity.ERROR if storms["increase"].null_count() == 0 else Severity.WARNING
        yield counter_finding(storms, title, detail, severity=severity)


def _long_pauses(counter_increase: pl.DataFrame, direction: str) -> pl.DataFrame:
    """Return ports with many pauses, the most first; where their duration is known, only if they were long."""
    names = PAUSES[direction]
    frames = increased(counter_increase, dict.fromkeys(names, PAUSES_LEAST))
    duration = (
        increased(counter_increase, {f"{name}_duration": 1 for name in names})
        .group_by("key")
        .agg(share=(pl.col("increase") / 1e6 / pl.col("seconds")).max())
    )
    return (
        frames.join(duration, on="key", how="left", maintain_order="left")
        .filter((pl.col("share") >= PAUSED_SHARE).fill_null(value=True))
        .sort(-pl.col("increase"), "source", "line")
        .unique("key", keep="first", maintain_order=True)
    )


@rule(Category.CONGESTION, Severity.WARNING, of=("counter_increase",))
def roce_discards(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """A NIC dropped incoming packets because it had no room for them.

    Means: the host accepts data too slowly (PCIe), or flow control does not stop the senders: on a lossless priority it
    is off somewhere on the path.
    Not when: fewer than 100 packets were dropped; they are of another priority's traffic; there is one dump.
    Do: compare mlnx_qos -i INTERFACE with the switch; PCIe width and speed; ethtool -S for outbound_pci_stalled.
    Sources: kernel documentation of mlx5 counters; infiniband-diags error_thresholds.
    """
    name = text_of("name")
    is_discard = name.str.starts_with("rx_prio") & (name.str.ends_with("_discards") | name.str.ends_with("_discard"))
    is_many = pl.col("increase") >= DISCARDS_LEAST
    dropped = counter_increase.filter((is_discard | (name == "rx_discards_phy")) & is_many)
    if dropped.is_empty():
        return
    worst = dropped.sort(-pl.col("increase")).row(0, named=True)
    detail = host_counters_text(dropped) + period_text(worst)
    stalled = counter_increase.filter(
        name.is_in(STALLED) & (pl.col("increase") > 0) & pl.col("key").is_in(dropped["key"].to_list())
    )
    if stalled.height:
        detail += f"; {host_counter_text(stalled.row(0, named=True))}: its PCIe link does not accept the data"
    finding = counter_finding(dropped, f"{port_names(dropped)} dropped incoming packets", detail)
    finding.evidence += counter_lines(stalled.to_dicts())[:1]
    yield finding
