"""InfiniBand and RoCE while the job runs: failed transfers, and ports and devices that go down."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import shown
from ncclforensics.data.networks import INFINIBAND, ROCE
from ncclforensics.data.verbs import DEVICE_DEAD, FLUSHED, LOCAL_PROTECTION, PORT_DOWN, RETRY_EXCEEDED, STATUS
from ncclforensics.frames.columns import OWNER, begins_with, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.completions import NAMED, devices_text, failed_with
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding


def _peers(errors: pl.DataFrame) -> list[str]:
    """The peer hosts, or their addresses where no host is known."""
    return errors.select(pl.coalesce("peer_host", "peer")).to_series().drop_nulls().unique().sort().to_list()


def _suspect(errors: pl.DataFrame) -> str | None:
    """The host that is part of every failed pair, if there are several pairs."""
    pairs = errors.select(text_of("host"), "peer_host").drop_nulls().unique()
    hosts = [set(pair) for pair in pairs.iter_rows()]
    common = set.intersection(*hosts) if hosts else set()
    return common.pop() if len(common) == 1 and len(set.union(*hosts)) > 2 else None


def _completion_finding(errors: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str) -> Finding:
    """Make one finding of failed completions; `{peers}` in the title becomes the peer hosts or the suspect."""
    suspect = _suspect(errors)
    peers = [suspect] if suspect else _peers(errors)
    if suspect:
        errors = errors.filter(pl.col("host") != suspect)
    named = ", ".join(peers[:NAMED]) + (" and others" if len(peers) > NAMED else "") if peers else "a peer"
    finding = group_finding(errors, rank, title.replace("{peers}", named), detail, certainty)
    if suspect:
        finding.detail += f"; {suspect} is part of every failed pair"
        finding.hosts = [suspect]
    else:
        peer_hosts = errors["peer_host"].drop_nulls().unique().to_list()
        finding.hosts = sorted({*finding.hosts, *peer_hosts})
    return finding


def _link(errors: pl.DataFrame) -> str:
    """Return InfiniBand, RoCE, or both where lines do not show which it is."""
    links = set(errors["link"])
    return str(links.pop()) if len(links) == 1 and None not in links else f"{INFINIBAND} or {ROCE}"


ROCE_REMEDY = (
    "Run ib_write_bw between these two devices with NCCL's GID index and traffic class (show_gids); look at ethtool -S "
    "(pause, discards) and dmesg -T | grep mlx5 on both hosts; raise NCCL_IB_TIMEOUT only after that."
)

UNKNOWN_LINK_REMEDY = (
    "See with ibstat which link it is. On RoCE run ib_write_bw between these two devices with NCCL's GID index "
    "(show_gids, NCCL_IB_GID_INDEX); on InfiniBand check the counters of both ports (perfquery -x); on both hosts run "
    "dmesg -T | grep mlx5."
)
REMEDIES = {ROCE: ROCE_REMEDY, INFINIBAND: ""}


def _no_answer(errors: pl.DataFrame, rank: pl.DataFrame, when: str) -> Finding:
    pairs = errors.select(text_of("host"), "peer_host").drop_nulls().unique().rows()
    is_mutual = len(pairs) == 2 and pairs[0] == pairs[1][::-1]
    detail = f"no answer after all retries{devices_text(errors)} (status 12){when}"
    if is_mutual:
        detail += "; both ends report it: check the path between them"
    low = errors.filter(pl.col("timeout").is_not_null())
    if low.height:
        detail += f"; NCCL_IB_TIMEOUT={low['timeout'][0]} is below this version's default of {low['default'][0]}"
    finding = _completion_finding(
        errors, rank, f"{{processes}} got no answer over {_link(errors)} from {{peers}}", detail, "certain"
    )
    finding.evidence += evidence_lines(low.select(*OWNER, source="set_source", line="set_line"), "set")[:1]
    if errors["is_consequence"].any():
        finding.role = Role.CONSEQUENCE
    if errors["is_survived"].all():
        finding.severity, finding.role = Severity.WARNING, Role.CONTEXT
    return finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("unanswered_transfer",), hang=True)
def ib_timeout_at_start(unanswered_transfer: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A peer did not answer over InfiniBand or RoCE in the first calls of the job.

    Means: the two NICs have never reached each other: routing, VLAN, a wrong GID, rails that are not connected. The
    bootstrap connections prove only IP over TCP. A longer time-out does not help.
    Not when: the job had made progress; the job was shutting down.
    Do: run ib_write_bw between exactly these two devices, with the same GID index and traffic class; on RoCE run
    show_gids.
    Sources: nccl#426, nccl#902, pytorch#81628, nccl#1664, nccl#1405.
    """
    errors = unanswered_transfer.filter("is_early")
    if errors.height:
        yield _no_answer(errors, rank, ", in the first calls: the NICs have never reached each other")


@rule(Category.IB_ERROR, Severity.ERROR, of=("unanswered_transfer",), hang=True)
def ib_timeout_mid_run(unanswered_transfer: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A peer did not answer over InfiniBand or RoCE after the first calls, or at an unknown call.

    Means: a link flap, congestion, a switch restart, or a dead peer. The line names the peer; a host that is part of
    every failed pair is the suspect.
    Not when: it happened in the first calls (a rule of its own); the peer was killed, which is then the cause; the job
    was shutting down.
    Do: check port events and counters on both hosts (perfquery -x, dmesg -T | grep mlx5); raise NCCL_IB_TIMEOUT or
    NCCL_IB_RETRY_CNT only after that.
    Sources: nccl#905, nccl#902, nccl#1814; release notes of 2.23.4.
    """
    errors = unanswered_transfer.filter(pl.col("is_early").not_())
    if errors.height:
        calls = errors["calls"].max()
        finding = _no_answer(errors, rank, "" if calls is None else f", after {calls!r} calls")
        finding.remedy = REMEDIES.get(_link(errors), UNKNOWN_LINK_REMEDY)
        yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_local_protection(
    completion_error: pl.DataFrame, gdr_connections: pl.DataFrame, connection: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A NIC could not access the local memory of a transfer.

    Means: the memory registration on this host is not valid: with GPUDirect RDMA usually because PCIe access control
    (ACS) redirects traffic between NIC and GPU; else because a buffer was freed while in use.
    Not when: the GPU failed first (Xid), which is then the cause.
    Do: check lspci -vvv | grep ACSCtl on the bridges (ReqRedir+ and SrcValid+ are bad); switch ACS off; to confirm, run
    once with NCCL_NET_GDR_LEVEL=LOC.
    Sources: nccl#304, nccl#523, nccl#1052, nccl-tests#252; hint of NCCL 2.30.7.
    """
    errors = failed_with(completion_error, LOCAL_PROTECTION)
    if errors.height:
        processes = errors.select(OWNER).unique()
        is_direct = connection.filter(pl.col("gdr").is_not_null()).join(processes, on=OWNER, how="semi").height
        detail = f"the NIC could not access the local memory{devices_text(errors)} (status 4)"
        if is_direct:
            detail += "; GPUDirect RDMA is in use: PCIe access control (ACS) is the usual cause"
        yield _completion_finding(
            errors, rank, "{processes}: local protection error in a transfer with {peers}", detail, "certain"
        )


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_remote_access(completion_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The peer refused a transfer, or was not ready for it.

    Means: status 9, 10 or 11: the peer's memory, GPU or process has a fault; 13: the peer hangs and posts no receives.
    This host logs the error, but the fault is on the peer.
    Not when: the peer was shutting down.
    Do: read the peer's log first: a local protection error, a CUDA error or an abort there; then Xid and PCIe errors.
    Sources: verbs statuses (rdma-core); NCCL documentation, networking.
    """
    errors = failed_with(completion_error, 9, 10, 11, 13)
    for (status,), rows in errors.sort("status").group_by("status", maintain_order=True):
        name, meaning, _ = STATUS[int(str(status))]
        detail = f"{meaning}{devices_text(rows)} (status {status})"
        yield _completion_finding(rows, rank, f"{{processes}}: {name} at {{peers}}", detail, "likely")


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_completion_failed(completion_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A transfer failed with a rare status.

    Means: a fault of the NIC, its driver or its firmware, or sizes that differ between the two ends.
    Not when: a more common status comes before it; the job was shutting down.
    Do: check dmesg -T | grep mlx5 on this host, and compare firmware and NCCL versions of both hosts.
    Sources: verbs statuses (rdma-core v64).
    """
    common = [0, LOCAL_PROTECTION, FLUSHED, 9, 10, 11, RETRY_EXCEEDED, 13]
    errors = completion_error.filter(pl.col("status").is_in(common).not_() & pl.col("at_exit").not_())
    for (status,), rows in errors.sort("status").group_by("status", maintain_order=True):
        name, meaning, _ = STATUS.get(int(str(status)), ("an error", "a status unknown to libibverbs", ""))
        detail = f"{meaning}{devices_text(rows)} (status {status})"
        yield _completion_finding(rows, rank, f"{{processes}}: {name} in a transfer with {{peers}}", detail, "certain")


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def ib_flush_is_secondary(
    completion_error: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Work requests were flushed: the queue pair had failed before.

    Means: rarely the first cause. Look for another status on the same NIC or at the peer; without one, suspect ACS or
    the firmware of the server.
    Not when: it is printed while the job shuts down.
    Do: find the first other status, port event or lost process, and ignore these lines.
    Sources: nccl#1353, nccl#1405, nccl#1737.
    """
    flushed = failed_with(completion_error, FLUSHED)
    causes = completion_error.filter((pl.col("status") != FLUSHED) & pl.col("at_exit").not_())
    form = pl.col("form")
    other_causes = failure.filter(
        form.is_in(["ib_event", "ib_fatal", "peer_closed", "cuda", "ras_dead", "transfer_failed"])
    )
    if flushed.is_empty():
        return
    if causes.height or other_causes.height:
        detail = "the queue pairs had failed before; another line shows the cause"
        finding = group_finding(
            flushed, rank, "{processes}: flushed work requests follow from an earlier failure", detail, "certain"
        )
        finding.severity = Severity.INFO
    else:
        detail = "the queue pairs had failed before; what failed first was not read"
        finding = _completion_finding(
            flushed, rank, "{processes}: work requests to {peers} were flushed", detail, "likely"
        )
        peers = ", ".join(_peers(flushed)[:NAMED])
        finding.detail += f": look at what the process on {peers} printed, and at its port" * bool(peers)
    finding.role = Role.CONSEQUENCE
    yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_port_event(failure: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A port went down, or a device failed, while the job ran.

    Means: later failures on that host, including time-outs and lost connections, follow from it.
    Not when: the event is harmless (port active, a new subnet manager, a changed key or LID).
    Do: check cable and transceiver of that port, the counters link_downed and link_error_recovery, the log of the
    switch; after a catastrophic error check dmesg -T | grep mlx5, then reset the NIC.
    Sources: nccl#905, lit-llama#380, nccl#230; verbs events (rdma-core).
    """
    form = pl.col("form")
    down = failure.filter((form == "ib_event") & begins_with("error", *PORT_DOWN))
    dead = failure.filter((form == "ib_fatal") | ((form == "ib_event") & begins_with("error", *DEVICE_DEAD)))
    later = completion_error.filter(pl.col("at_exit").not_()).height
    if down.height:
        ports = sorted({f"{d}:{p}" for d, p in down.select(text_of("device"), "port").drop_nulls().iter_rows()})
        which = ", ".join(ports[:NAMED]) if ports else "a port"
        detail = f"the link of {which} was lost; " + (
            "later failures follow from it" if later else "no failed transfer after it was read"
        )
        finding = group_finding(down, rank, "{processes}: an InfiniBand port went down", detail, "certain")
        if not later:
            finding.severity = Severity.WARNING
        yield finding
    for (error,), rows in dead.sort("error").group_by("error", maintain_order=True):
        names = rows["device"].cast(pl.String).drop_nulls().unique().sort().to_list()
        where = f" on {', '.join(names[:NAMED])}" if names else ""
        yield group_finding(
            rows, rank, f"{{processes}}: an InfiniBand device failed{where}", f"the event is: {shown(error)}", "certain"
        )


@rule(Category.IB_ERROR, Severity.WARNING, of=("failover",), hang=True)
def ib_port_failover_active(failover: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A NIC failed, and NCCL continues over the others.

    Means: the job runs on fewer NICs and is slower; without a NIC left it ends.
    Not when: the device has recovered, or the log shows only the set-up of this feature.
    Do: check the port and its counters on that host; plan a restart without it.
    Sources: nccl#2157; nccl: src/transport/net_ib (2.30 and later).
    """
    form = pl.col("form")
    failed = failover.filter(form.is_in(["failed", "failed_for_good", "device_lost", "given_up"]))
    ended = failover.filter(form.is_in(["fatal", "too_many", "no_replacement"]))
    recovered = failover.filter(form.is_in(["recovered", "back_in_use", "recovery_succeeded"])).select(OWNER).unique()
    if ended.height:
        detail = "no device is left"
        finding = group_finding(
            ended, rank, "{processes}: the NICs failed, and no replacement is left", detail, "certain"
        )
        finding.severity = Severity.ERROR
        yield finding
        return
    lasting = failed.join(recovered, on=OWNER, how="anti")
    if lasting.height:
        detail = "NCCL moved the transfers to the remaining devices"
        yield group_finding(lasting, rank, "{processes} continue with fewer NICs after a failure", detail, "certain")
