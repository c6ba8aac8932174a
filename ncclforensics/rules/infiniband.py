"""InfiniBand and RoCE while the job runs: transfers that fail, ports that go down, devices that cannot be set up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.columns import OWNER, text_of
from ncclforensics.data.networks import GID_FOUND, IB_TIMEOUTS
from ncclforensics.data.verbs import (
    BAD_ADDRESS,
    DEVICE_DEAD,
    EARLY_CALLS,
    FLUSHED,
    GID_CHANGED,
    INVALID,
    LOCAL_PROTECTION,
    MODIFY_QP,
    NO_MEMORY,
    PORT_DOWN,
    RETRY_EXCEEDED,
    STATUS,
    TIMED_OUT,
    UNREACHABLE,
)
from ncclforensics.data.versions import releases
from ncclforensics.rules import Category, Finding, Line, Role, Severity, rule
from ncclforensics.rules.grouped import shown, together

NAMED = 4  # peers, in a title
REGISTRATIONS = ["ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "mlx5dv_reg_dmabuf_mr"]


def _begins(column: str, texts: list[str]) -> pl.Expr:
    return pl.any_horizontal(text_of(column).str.starts_with(text) for text in texts).fill_null(value=False)


def _peers(errors: pl.DataFrame) -> list[str]:
    """The hosts that the lines name as the other end, or their addresses."""
    address = pl.col("peer").str.split("<").list.first()
    return errors.select(pl.coalesce("peer_host", address)).to_series().drop_nulls().unique().sort().to_list()


def _suspect(errors: pl.DataFrame) -> str | None:
    """The host that has a part in every failed pair, where several others report."""
    pairs = errors.select(text_of("host"), "peer_host").drop_nulls().unique()
    ends = [set(pair) for pair in pairs.iter_rows()]
    common = set.intersection(*ends) if ends else set()
    return common.pop() if len(common) == 1 and len(set.union(*ends)) > 2 else None


def _accused(errors: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str) -> Finding:
    """One finding on failed completions; `{peers}` in the title becomes the other ends."""
    suspect = _suspect(errors)
    peers = [suspect] if suspect else _peers(errors)
    if suspect:
        errors = errors.filter(pl.col("host") != suspect)
    named = ", ".join(peers[:NAMED]) + (" and others" if len(peers) > NAMED else "") if peers else "a peer"
    finding = together(errors, rank, title.replace("{peers}", named), detail, certainty)
    if suspect:
        finding.detail += f"; {suspect} has a part in every failed pair"
        finding.hosts = [suspect]
    else:
        known = errors["peer_host"].drop_nulls().unique().to_list()
        finding.hosts = sorted({*finding.hosts, *known})
    return finding


def _failed(completion_error: pl.DataFrame, *statuses: int) -> pl.DataFrame:
    return completion_error.filter(pl.col("status").is_in(statuses) & pl.col("at_exit").not_())


def _devices(errors: pl.DataFrame) -> str:
    hcas = errors["hca"].drop_nulls().unique().sort().to_list()
    return f" on {', '.join(hcas[:NAMED])}" if hcas else ""


def _time_out(setting: pl.DataFrame, version: pl.DataFrame) -> tuple[str, list[Line]]:
    """What is to be said of a time-out that was set below NCCL's default."""
    told = setting.filter(pl.col("variable") == "NCCL_IB_TIMEOUT").with_columns(
        given=text_of("value").cast(pl.Int64, strict=False)
    )
    versions = releases(version["version"])
    if told.is_empty() or not versions:
        return "", []
    default = [value for since, value in IB_TIMEOUTS.items() if since <= min(versions)][-1]
    low = told.filter(pl.col("given") < default)
    if low.is_empty():
        return "", []
    return f"; NCCL_IB_TIMEOUT={low['given'][0]} is below this version's default of {default}", shown(low, "set")[:1]


def _down(failure: pl.DataFrame) -> set[str]:
    """The hosts on which a port or a device failed."""
    form = pl.col("form")
    is_event = (form == "ib_event") & _begins("error", [*PORT_DOWN, *DEVICE_DEAD])
    return set(failure.filter(is_event | (form == "ib_fatal"))["host"].cast(pl.String).drop_nulls().to_list())


def _no_answer(
    errors: pl.DataFrame,
    failure: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
    setting: pl.DataFrame,
    version: pl.DataFrame,
    when: str,
) -> Finding:
    pairs = errors.select(text_of("host"), "peer_host").drop_nulls().unique().rows()
    ends = {*errors["host"].cast(pl.String).drop_nulls().to_list(), *(peer for _, peer in pairs)}
    mutual = len(pairs) == 2 and pairs[0] == pairs[1][::-1]  # each of the other
    between = "; both ends say so of each other: look at what is between them" if mutual else ""
    said, lines = _time_out(setting, version)
    detail = f"no answer came after all retries{_devices(errors)} (status 12){when}{between}{said}"
    finding = _accused(errors, rank, "{who} got no answer over InfiniBand from {peers}", detail, "certain")
    finding.evidence += lines
    died = verdict.filter(pl.col("verdict") == "rank-died")["job"].to_list()
    if errors["job"].drop_nulls().is_in(died).any() or ends & _down(failure):
        finding.role = Role.CONSEQUENCE
    if errors["is_survived"].all():
        finding.severity, finding.role = Severity.WARNING, Role.CONTEXT
    return finding


def _is_early() -> pl.Expr:
    return pl.col("calls") <= EARLY_CALLS


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_timeout_at_start(
    completion_error: pl.DataFrame,
    failure: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
    setting: pl.DataFrame,
    version: pl.DataFrame,
) -> Iterator[Finding]:
    """A peer did not answer over InfiniBand or RoCE in the first calls of the job.

    Means: the two NICs have never reached each other: routing, VLAN, a wrong GID, rails that are not connected. That
    the ranks met over TCP proves IP only. A longer time-out does not help.
    Not when: the job had made progress; the job was being shut down.
    Do: run ib_write_bw between exactly these two devices, with the same GID index and traffic class; on RoCE see
    show_gids.
    Sources: nccl#426, nccl#902, pytorch#81628, nccl#1664, nccl#1405.
    """
    errors = _failed(completion_error, RETRY_EXCEEDED).filter(_is_early().fill_null(value=False))
    if errors.height:
        yield _no_answer(
            errors, failure, rank, verdict, setting, version, ", in the first calls: they have never reached each other"
        )


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_timeout_mid_run(
    completion_error: pl.DataFrame,
    failure: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
    setting: pl.DataFrame,
    version: pl.DataFrame,
) -> Iterator[Finding]:
    """A peer did not answer over InfiniBand or RoCE, in a job that had run or of which the log does not tell.

    Means: a link that flaps, congestion, a switch that restarts, or a peer that died. The line names the other end; a
    host that has a part in every failed pair is the suspect.
    Not when: it happened in the first calls (a rule of its own); the peer was killed, which is then the cause; the job
    was being shut down.
    Do: on both ends look for port events and counters (perfquery -x, dmesg -T | grep mlx5); raise NCCL_IB_TIMEOUT or
    NCCL_IB_RETRY_CNT only after that.
    Sources: nccl#905, nccl#902, nccl#1814; release notes of 2.23.4.
    """
    errors = _failed(completion_error, RETRY_EXCEEDED)
    early = errors.filter(_is_early()).select("job").unique()  # the others of that job have seen the same
    errors = errors.join(early, on="job", how="anti", nulls_equal=True)
    if errors.height:
        calls = errors["calls"].drop_nulls().to_list()
        yield _no_answer(
            errors, failure, rank, verdict, setting, version, f", after {max(calls)} calls" if calls else ""
        )


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_local_protection(
    completion_error: pl.DataFrame, direct_access: pl.DataFrame, connection: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A NIC was not allowed to read or write the memory it was given.

    Means: this host's memory registration does not hold: with GPUDirect RDMA usually PCIe access control (ACS), which
    redirects traffic between NIC and GPU; else a buffer that was freed while in use.
    Not when: the GPU failed first (Xid), which is then the cause.
    Do: see lspci -vvv | grep ACSCtl on the bridges (ReqRedir+, SrcValid+ are bad); switch ACS off; to confirm run once
    with NCCL_NET_GDR_LEVEL=LOC.
    Sources: nccl#304, nccl#523, nccl#1052, nccl-tests#252; hint of NCCL 2.30.7.
    """
    errors = _failed(completion_error, LOCAL_PROTECTION)
    if errors.height:
        here = errors.select(OWNER).unique()
        is_direct = connection.filter(pl.col("gdr").is_not_null()).join(here, on=OWNER, how="semi").height
        detail = f"the NIC may not access the memory it was given{_devices(errors)} (status 4)"
        if is_direct:
            detail += "; GPUDirect RDMA is in use: PCIe access control (ACS) is the usual cause"
        yield _accused(errors, rank, "{who}: local protection error in a transfer with {peers}", detail, "certain")


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_remote_access(completion_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The peer refused a transfer, or was not ready for it.

    Means: status 9, 10 or 11: the other end's memory, GPU or process has a fault; 13: it posts no receives, for it
    hangs. The line stands on this host, the fault is on the other.
    Not when: the peer was shutting down.
    Do: read the peer's log first: a local protection error, a CUDA error or an abort there; then Xid and PCIe errors.
    Sources: verbs statuses (rdma-core); NCCL documentation, networking.
    """
    errors = _failed(completion_error, 9, 10, 11, 13)
    for (status,), rows in errors.sort("status").group_by("status", maintain_order=True):
        name, meaning, _ = STATUS[int(str(status))]
        detail = f"{meaning}{_devices(rows)} (status {status})"
        yield _accused(rows, rank, f"{{who}}: {name}, reported of {{peers}}", detail, "likely")


@rule(Category.IB_ERROR, Severity.ERROR, of=("completion_error",), hang=True)
def ib_completion_failed(completion_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A transfer failed with a status that is seldom seen.

    Means: the NIC, its driver or its firmware, or sizes that differ between the two ends.
    Not when: a commoner status stands before it; the job was being shut down.
    Do: see dmesg -T | grep mlx5 on this host, and compare firmware and NCCL versions of the two ends.
    Sources: verbs statuses (rdma-core v64).
    """
    common = [0, LOCAL_PROTECTION, FLUSHED, 9, 10, 11, RETRY_EXCEEDED, 13]
    errors = completion_error.filter(pl.col("status").is_in(common).not_() & pl.col("at_exit").not_())
    for (status,), rows in errors.sort("status").group_by("status", maintain_order=True):
        name, meaning, _ = STATUS.get(int(str(status)), ("an error", "a status that verbs do not describe", ""))
        detail = f"{meaning}{_devices(rows)} (status {status})"
        yield _accused(rows, rank, f"{{who}}: {name} in a transfer with {{peers}}", detail, "certain")


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def ib_flush_is_secondary(
    completion_error: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Work requests were flushed: the queue pair had failed before.

    Means: rarely a first cause. Look for another status on the same NIC or at the peer; if there is none anywhere, ACS
    or the server's firmware.
    Not when: it is printed while the job shuts down.
    Do: find the first other status, port event or lost process, and leave these lines aside.
    Sources: nccl#1353, nccl#1405, nccl#1737.
    """
    flushed = _failed(completion_error, FLUSHED)
    causes = completion_error.filter((pl.col("status") != FLUSHED) & pl.col("at_exit").not_())
    form = pl.col("form")
    causes_too = failure.filter(
        form.is_in(["ib_event", "ib_fatal", "peer_closed", "cuda", "ras_dead", "transfer_failed"])
    )
    if flushed.is_empty():
        return
    if causes.height or causes_too.height:
        detail = "the queue pairs had failed before; another line says why"
        finding = together(
            flushed, rank, "{who}: flushed work requests follow from an earlier failure", detail, "certain"
        )
        finding.severity = Severity.INFO
    else:
        detail = "the queue pairs had failed before; what failed first is not in these logs"
        finding = _accused(flushed, rank, "{who}: work requests to {peers} were flushed", detail, "likely")
    finding.role = Role.CONSEQUENCE
    yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_port_event(failure: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A port went down, or a device died, under the job.

    Means: everything that fails on that host afterwards, time-outs and lost connections included, follows from it.
    Not when: the event is one that does no harm (port active, a new subnet manager, a changed key or LID).
    Do: check cable and transceiver of that port, link_downed and link_error_recovery counters, the switch's log; for a
    catastrophic error dmesg -T | grep mlx5, then a reset of the NIC.
    Sources: nccl#905, lit-llama#380, nccl#230; verbs events (rdma-core).
    """
    form = pl.col("form")
    down = failure.filter((form == "ib_event") & _begins("error", PORT_DOWN))
    dead = failure.filter((form == "ib_fatal") | ((form == "ib_event") & _begins("error", DEVICE_DEAD)))
    later = completion_error.filter(pl.col("at_exit").not_()).height
    if down.height:
        ports = sorted({f"{d}:{p}" for d, p in down.select(text_of("device"), "port").drop_nulls().iter_rows()})
        which = ", ".join(ports[:NAMED]) if ports else "a port"
        detail = f"the link of {which} was lost; " + (
            "what fails afterwards follows from it" if later else "no transfer is seen to fail after it"
        )
        finding = together(down, rank, "{who}: an InfiniBand port went down", detail, "certain")
        if not later:
            finding.severity = Severity.WARNING
        yield finding
    for (error,), rows in dead.sort("error").group_by("error", maintain_order=True):
        names = rows["device"].cast(pl.String).drop_nulls().unique().sort().to_list()
        where = f" on {', '.join(names[:NAMED])}" if names else ""
        yield together(
            rows, rank, f"{{who}}: an InfiniBand device failed{where}", f"the event says: {error}", "certain"
        )


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_modify_qp_einval(failure: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A queue pair could not be set up: an argument was refused.

    Means: the GID index that was forced does not exist, or is of another RoCE version than the peer's.
    Not when: a later attempt succeeded.
    Do: unset NCCL_IB_GID_INDEX on NCCL 2.21 and later; before that set the index of RoCE v2 that show_gids tells.
    Sources: NCCL documentation, networking; hint of NCCL 2.30.7.
    """
    rows = _modified(failure, INVALID)
    if rows.height:
        forced = setting.filter(pl.col("variable") == "NCCL_IB_GID_INDEX").join(
            rows.select(OWNER), on=OWNER, how="semi"
        )
        because = f"; NCCL_IB_GID_INDEX={forced['value'][0]} is set" if forced.height else ""
        finding = together(
            rows,
            rank,
            "{who} could not set up a queue pair: invalid argument",
            f"usually a GID index that does not fit{_ends(rows)}{because}",
            "likely",
        )
        finding.evidence += shown(forced, "set")[:1]
        yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_modify_qp_timeout(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A queue pair could not be set up: the peer's address was not resolved in time.

    Means: no path between these two ports: a link-local GID (fe80::) was chosen, or rails are not connected crosswise.
    Not when: a later attempt succeeded (the line then ends with "retrying").
    Do: choose the GID of the routed address; NCCL_CROSS_NIC=0 as a test for rails; ping between the two addresses.
    Sources: nccl#769, nccl#2193; hint of NCCL 2.30.7.
    """
    rows = _modified(failure, TIMED_OUT)
    if rows.height:
        detail = f"the ports have no path to each other{_ends(rows)}"
        if rows["local_gid"].cast(pl.String).str.starts_with("fe80").any():
            detail += "; the GID in use is link-local, which is not routed"
        yield together(rows, rank, "{who} could not set up a queue pair: timed out", detail, "likely")


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_modify_qp_unreachable(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A queue pair could not be set up: no route, or no such device in this network namespace.

    Means: the GID has no route to the peer's subnet, or its interface is not in the container.
    Not when: a later attempt succeeded.
    Do: try ip route get the peer's address over that interface; give the pod the interfaces of its NICs.
    Sources: nccl-tests#185, nccl#925, mscclpp#431.
    """
    rows = _modified(failure, UNREACHABLE)
    if rows.height:
        reason = rows["reason"].cast(pl.String)[0]
        detail = f"the system says: {reason}{_ends(rows)}"
        yield together(rows, rank, "{who} could not set up a queue pair: no route to the peer", detail, "likely")


def _modified(failure: pl.DataFrame, reasons: list[str]) -> pl.DataFrame:
    """Attempts to set up a queue pair that failed for one of these reasons."""
    tried = failure.filter(pl.col("form").is_in(["verbs_call", "modify_qp"]) & (pl.col("operation") == MODIFY_QP))
    return tried.filter(pl.col("reason").is_in(reasons))


def _ends(rows: pl.DataFrame) -> str:
    told = rows.select(text_of("device"), "port", text_of("local_gid"), text_of("remote_gid")).drop_nulls()
    if told.is_empty():
        return ""
    device, port, local, remote = told.row(0)
    return f" ({device}:{port}, {local} to {remote})"


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_call_failed(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A call into the verbs library failed, and with it the set-up of a connection.

    Means: the kernel or the NIC refused a resource: completion queues, queue pairs, protection domains.
    Not when: memory could not be registered, or a queue pair not be connected, which are rules of their own.
    Do: print ulimit -l in the job; see rdma resource show; dmesg -T | grep mlx5 on that host.
    Sources: nccl: src/misc/ibvwrap.cc; nccl-tests#206.
    """
    calls = failure.filter(pl.col("form").is_in(["verbs_call", "modify_qp", "verbs_post"]))
    known = [*INVALID, *TIMED_OUT, *UNREACHABLE]
    is_told = ((pl.col("operation") == MODIFY_QP) & pl.col("reason").is_in(known)).fill_null(value=False)
    others = calls.filter(pl.col("operation").is_in(REGISTRATIONS).not_() & is_told.not_())
    for (operation, reason), rows in others.sort(text_of("operation"), text_of("reason")).group_by(
        "operation", "reason", maintain_order=True
    ):
        yield together(rows, rank, f"{{who}}: {operation} failed", f"the system says: {reason}", "certain")


@rule(Category.MEMORY_REGISTRATION, Severity.ERROR, of=("failure",), hang=True)
def ib_registration_failed_memlock(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The NIC could not pin memory: the limit on locked memory is the usual reason.

    Means: registering a buffer or creating a queue needs locked memory, and the process may not lock enough.
    Not when: the system says something else than "Cannot allocate memory"; the host is out of memory altogether.
    Do: print ulimit -l inside the launcher's context (srun, mpirun, the pod), and make it unlimited there: limits.conf,
    LimitMEMLOCK of the daemon, Slurm's PropagateResourceLimits.
    Sources: NCCL documentation; nccl-tests#206, nccl#380.
    """
    needs = [*REGISTRATIONS, "ibv_create_qp", "ibv_create_cq"]
    rows = failure.filter(
        (pl.col("form") == "verbs_call") & pl.col("operation").is_in(needs) & pl.col("reason").is_in(NO_MEMORY)
    )
    if rows.height:
        calls = ", ".join(sorted(rows["operation"].cast(pl.String).unique().to_list()))
        title = "{who} may not lock enough memory for the NIC"
        yield together(rows, rank, title, f"the call of {calls} failed: Cannot allocate memory", "likely")


@rule(Category.MEMORY_REGISTRATION, Severity.ERROR, of=("failure",), hang=True)
def ib_registration_failed(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A buffer could not be registered with the NIC.

    Means: of GPU memory, the kernel module or DMA-BUF that NCCL counted on does not work; of host memory, a bad
    mapping.
    Not when: the system says "Cannot allocate memory": then the limit on locked memory.
    Do: see lsmod | grep nvidia_peermem and dmesg -T for nvidia and mlx5; to confirm run once with
    NCCL_NET_GDR_LEVEL=LOC, or with NCCL_DMABUF_ENABLE=0.
    Sources: nccl: src/misc/ibvwrap.cc; nccl#1537, nccl#1939 (a module that is loaded and not registered).
    """
    rows = failure.filter((pl.col("form") == "verbs_call") & pl.col("operation").is_in(REGISTRATIONS))
    rows = rows.filter(pl.col("reason").is_in(NO_MEMORY).not_()).sort(text_of("operation"), text_of("reason"))
    for (operation, reason), group in rows.group_by("operation", "reason", maintain_order=True):
        why = "; of GPU memory: nvidia-peermem or DMA-BUF does not work there" if str(reason) in BAD_ADDRESS else ""
        detail = f"the call of {operation} failed: {reason}{why}"
        yield together(group, rank, "{who} could not register memory with the NIC", detail, "certain")


@rule(Category.IB_ERROR, Severity.WARNING, of=("failover",))
def ib_port_failover_active(failover: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A NIC failed, and NCCL goes on over the others.

    Means: the job runs on fewer NICs and is slower; once no NIC is left it ends.
    Not when: the device has recovered, or nothing but the set-up of this feature is printed.
    Do: see the port and its counters on that host; plan a restart without it.
    Sources: nccl#2157; nccl: src/transport/net_ib (2.30 and later).
    """
    form = pl.col("form")
    failed = failover.filter(form.is_in(["failed", "failed_for_good", "device_lost", "given_up"]))
    ended = failover.filter(form.is_in(["fatal", "too_many", "no_replacement"]))
    back = failover.filter(form.is_in(["recovered", "back_in_use", "recovery_succeeded"])).select(OWNER).unique()
    if ended.height:
        detail = "no device was left to go on with"
        finding = together(
            ended, rank, "{who}: the NICs failed, and there is no other to go on with", detail, "certain"
        )
        finding.severity = Severity.ERROR
        yield finding
        return
    lasting = failed.join(back, on=OWNER, how="anti")
    if lasting.height:
        detail = "NCCL moved the transfers to the devices that are left"
        yield together(lasting, rank, "{who} go on with fewer NICs after one failed", detail, "certain")


@rule(Category.IB_ERROR, Severity.WARNING, of=("ib_unusable",))
def ib_device_open_failed(
    ib_unusable: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Devices are visible, and NCCL could not open them.

    Means: the process sees NICs in /sys that it has no rights to: in a container the devices under /dev/infiniband were
    not all passed.
    Not when: the devices it can open carry the data, as where virtual functions of other pods are visible: then this is
    noise, and only said as such.
    Do: pass all of /dev/infiniband, or exclude the others: NCCL_IB_HCA=^mlx5_bond_0.
    Sources: formats: NCCL's warnings (NET/IB: Unable to open device); nccl#2428.
    """
    shut = ib_unusable.filter(pl.col("form").is_in(["open", "query"]))
    works = chosen_network.filter("is_rdma").select(OWNER).unique()
    tcp = chosen_network.filter(pl.col("is_rdma").not_()).select(OWNER).unique()
    for is_noise, rows in (
        (True, shut.join(works, on=OWNER, how="semi")),
        (False, shut.join(works, on=OWNER, how="anti").join(tcp, on=OWNER, how="anti")),
    ):
        if rows.height:
            names = rows["device"].cast(pl.String).drop_nulls().unique().sort().to_list()
            detail = f"{len(names)} devices ({', '.join(names[:NAMED])}{' …' if len(names) > NAMED else ''})"
            finding = together(
                rows, rank, "{who} could not open InfiniBand devices that are visible", detail, "certain"
            )
            if is_noise:
                finding.severity, finding.role = Severity.INFO, Role.CONTEXT
                finding.detail += "; others carry the data"
            yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def roce_gid_forced_on_new_nccl(
    setting: pl.DataFrame,
    net_devices: pl.DataFrame,
    version: pl.DataFrame,
    failure: pl.DataFrame,
    completion_error: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A GID index is forced on RoCE, though NCCL would find it itself.

    Means: from 2.21 on NCCL chooses the index per device; a forced one is wrong as soon as a table changes.
    Not when: the devices are InfiniBand; NCCL is older than 2.21.
    Do: unset NCCL_IB_GID_INDEX.
    Sources: NCCL documentation, networking; nccl#1131.
    """
    versions = releases(version["version"])
    roce = net_devices.filter(text_of("devices").str.contains("/RoCE", literal=True)).select(OWNER).unique()
    is_forced = (pl.col("variable") == "NCCL_IB_GID_INDEX") & text_of("value").str.starts_with("-").not_()
    forced = setting.filter(is_forced).join(roce, on=OWNER, how="semi")
    if forced.is_empty() or not versions or min(versions) < GID_FOUND:
        return
    failed = pl.concat(
        [
            failure.filter(pl.col("operation") == MODIFY_QP).select(OWNER),
            _failed(completion_error, RETRY_EXCEEDED).select(OWNER),
        ]
    ).join(forced.select(OWNER), on=OWNER, how="semi")
    detail = "NCCL would choose the index itself, for each device"
    finding = together(forced, rank, f"{{who}}: NCCL_IB_GID_INDEX={forced['value'][0]} is forced", detail, "possible")
    finding.role = Role.CONTEXT
    if failed.height:
        finding.severity, finding.certainty = Severity.WARNING, "likely"
        finding.detail += "; connections failed, which a wrong index explains"
    yield finding


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def roce_gid_default_zero_old_nccl(
    completion_error: pl.DataFrame,
    queue_pair: pl.DataFrame,
    setting: pl.DataFrame,
    net_devices: pl.DataFrame,
    version: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """RoCE before NCCL 2.21 used GID index 0, which is RoCE v1 and link-local, and the peer did not answer.

    Means: without NCCL_IB_GID_INDEX these versions take index 0, which a routed fabric does not carry.
    Not when: NCCL is 2.21 or later; the devices are InfiniBand; the job had made progress; an index is set, or the log
    would not show it.
    Do: set NCCL_IB_GID_INDEX=3, which is the usual answer; show_gids tells the index of RoCE v2.
    Sources: nccl#426, pytorch#81628.
    """
    versions = releases(version["version"])
    if not versions or max(versions) >= GID_FOUND:
        return
    roce = net_devices.filter(text_of("devices").str.contains("/RoCE", literal=True)).select(OWNER).unique()
    failed = _failed(completion_error, RETRY_EXCEEDED).filter(_is_early().fill_null(value=True))
    failed = failed.join(roce, on=OWNER, how="semi")
    zero = queue_pair.filter(pl.col("gid_index") == 0).select(OWNER).unique()
    told = setting.filter(pl.col("form") == "environment").select(OWNER).unique()
    chosen = setting.filter(pl.col("variable") == "NCCL_IB_GID_INDEX").select(OWNER).unique()
    unset = told.join(chosen, on=OWNER, how="anti")
    link_local = failed.filter(pl.col("gid").str.starts_with("fe80")).select(OWNER).unique()
    wrong = failed.join(pl.concat([zero, unset, link_local]).unique(), on=OWNER, how="semi")
    if wrong.height:
        detail = f"this version of NCCL takes GID index 0 where none is set{_devices(wrong)}"
        yield together(wrong, rank, "{who}: RoCE with GID index 0 gets no answer", detail, "likely")


@rule(Category.IB_ERROR, Severity.INFO, of=("port_change",))
def roce_gid_changed(
    port_change: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The GID table of a RoCE port changed while the job ran.

    Means: an address was assigned anew, or the link flapped; what NCCL remembers may be stale, and connections made
    later fail.
    Not when: NCCL says that it refreshed the GID; no transfer fails: then it is only said.
    Do: look for network managers, bonds that fail over and flapping links on that host.
    Sources: nccl#1819, nccl#2183, nccl#2400.
    """
    form = pl.col("form")
    fatal = port_change.filter(form == "gid_fatal")
    changed = port_change.filter((form == "gid_table") | ((form == "unknown_event") & (pl.col("event") == GID_CHANGED)))
    fresh = port_change.filter(form == "gid_refreshed").select(OWNER).unique()
    if fatal.height:
        detail = "NCCL could not follow the change of its GID, and gave the device up"
        finding = together(fatal, rank, "{who} lost a RoCE device when its GID changed", detail, "certain")
        finding.severity = Severity.ERROR
        yield finding
    changed = changed.join(fresh, on=OWNER, how="anti").join(fatal.select(OWNER), on=OWNER, how="anti")
    if changed.height:
        names = ", ".join(changed["device"].cast(pl.String).drop_nulls().unique().sort().to_list()[:NAMED])
        failed = completion_error.filter(pl.col("at_exit").not_()).height
        finding = together(changed, rank, "{who}: the GID table of a RoCE port changed", f"on {names}", "certain")
        finding.role = Role.CAUSE if failed else Role.CONTEXT
        if failed:
            finding.severity, finding.certainty = Severity.WARNING, "likely"
            finding.detail += "; transfers fail, which stale addresses explain"
        yield finding


@rule(Category.IB_ERROR, Severity.WARNING, of=("ib_unusable",))
def roce_gid_read_fails_in_container(ib_unusable: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL could not read the types of a RoCE port's GIDs.

    Means: the entries under /sys/class/infiniband/…/gid_attrs/types are not readable in the pod's network namespace, so
    the index cannot be chosen.
    Not when: the devices are InfiniBand.
    Do: use NCCL 2.26 or later, or set NCCL_IB_GID_INDEX to the index of RoCE v2.
    Sources: nccl#1573, nccl#1538.
    """
    rows = ib_unusable.filter(pl.col("form") == "gid_type")
    if rows.height:
        error: Any = rows["error"][0]
        yield together(rows, rank, "{who} cannot read the types of RoCE's GIDs", f"the system says: {error}", "certain")
