"""Set-up of InfiniBand and RoCE: opening devices, registering memory, connecting queue pairs."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.verbs import BAD_ADDRESS, INVALID, MODIFY_QP, NO_DEVICE, NO_MEMORY, TIMED_OUT, UNREACHABLE
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.completions import NAMED
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding
from ncclforensics.rules.shared.survival import last_of_process

REGISTRATIONS = ["ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "mlx5dv_reg_dmabuf_mr"]


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_modify_qp_einval(failure: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A queue pair could not be set up: invalid argument.

    Means: the configured GID index does not exist, or its RoCE version differs from that of the peer.
    Not when: a later attempt succeeded.
    Do: unset NCCL_IB_GID_INDEX on NCCL 2.21 and later; before that set the index of RoCE v2 that show_gids prints.
    Sources: NCCL documentation, networking; hint of NCCL 2.30.7.
    """
    rows = _modified(failure, INVALID)
    if rows.height:
        forced = setting.filter(pl.col("variable") == "NCCL_IB_GID_INDEX").join(
            rows.select(OWNER), on=OWNER, how="semi"
        )
        because = f"; NCCL_IB_GID_INDEX={forced['value'][0]} is set" if forced.height else ""
        finding = group_finding(
            rows,
            rank,
            "{processes} could not set up a queue pair: invalid argument",
            f"usually a GID index that does not match{_ends(rows)}{because}",
            "likely",
        )
        finding.evidence += evidence_lines(forced, "set")[:1]
        yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_modify_qp_timeout(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A queue pair could not be set up: the peer's address was not resolved in time.

    Means: no path between these two ports: the GID is link-local (fe80::), or the rails are not connected.
    Not when: a later attempt succeeded (the line then ends with "retrying").
    Do: select the GID of the routed address; test with NCCL_CROSS_NIC=0; ping between the two addresses.
    Sources: nccl#769, nccl#2193; hint of NCCL 2.30.7.
    """
    rows = _modified(failure, TIMED_OUT)
    if rows.height:
        detail = f"there is no path between the ports{_ends(rows)}"
        if rows["local_gid"].cast(pl.String).str.starts_with("fe80").any():
            detail += "; the GID in use is link-local, which is not routed"
        yield group_finding(rows, rank, "{processes} could not set up a queue pair: timed out", detail, "likely")


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_modify_qp_unreachable(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A queue pair could not be set up: no route, or no such device in this network namespace.

    Means: the GID has no route to the peer's subnet; or (`No such device`) its interface is not in the container, or
    is gone.
    Not when: a later attempt succeeded.
    Do: run ip route get with the peer's address on that interface; add the interfaces of the NICs to the pod.
    Sources: nccl-tests#185, nccl#925, mscclpp#431.
    """
    for (reason,), rows in _modified(failure, UNREACHABLE).group_by(text_of("reason"), maintain_order=True):
        missing = "no such device" if reason == NO_DEVICE else "no route to the peer"
        detail = f"system error: {reason}{_ends(rows)}"
        yield group_finding(rows, rank, f"{{processes}} could not set up a queue pair: {missing}", detail, "likely")


def _modified(failure: pl.DataFrame, reasons: list[str]) -> pl.DataFrame:
    """Failed calls of ibv_modify_qp with one of these errors."""
    calls = failure.filter(pl.col("form").is_in(["verbs_call", "modify_qp"]) & (pl.col("operation") == MODIFY_QP))
    return calls.filter(pl.col("reason").is_in(reasons))


def _ends(rows: pl.DataFrame) -> str:
    """` (mlx5_0:1, GID to GID)` of the first row that has all of them."""
    ends = rows.select(text_of("device"), "port", text_of("local_gid"), text_of("remote_gid")).drop_nulls()
    if ends.is_empty():
        return ""
    device, port, local, remote = ends.row(0)
    return f" ({device}:{port}, {local} to {remote})"


@rule(Category.IB_ERROR, Severity.ERROR, of=("failure",), hang=True)
def ib_call_failed(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A call of the verbs library failed, and with it the set-up of a connection.

    Means: the kernel or the NIC refused a resource: completion queues, queue pairs, protection domains.
    Not when: the call registers memory or connects a queue pair, which are rules of their own; NCCL prints it as an
    INFO line: then it was a probe of something optional.
    Do: print ulimit -l in the job; check rdma resource show and dmesg -T | grep mlx5 on that host.
    Sources: nccl: src/misc/ibvwrap.cc; nccl-tests#206.
    """
    calls = failure.filter(pl.col("form").is_in(["verbs_call", "modify_qp", "verbs_post"]))
    other_rules = [*INVALID, *TIMED_OUT, *UNREACHABLE]
    is_other_rule = ((pl.col("operation") == MODIFY_QP) & pl.col("reason").is_in(other_rules)).fill_null(value=False)
    others = calls.filter(pl.col("operation").is_in(REGISTRATIONS).not_() & is_other_rule.not_())
    for (operation, reason), rows in others.sort(text_of("operation"), text_of("reason")).group_by(
        "operation", "reason", maintain_order=True
    ):
        yield group_finding(rows, rank, f"{{processes}}: {operation} failed", f"system error: {reason}", "certain")


@rule(Category.MEMORY_REGISTRATION, Severity.ERROR, of=("failure",), hang=True)
def ib_registration_failed_memlock(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The NIC could not pin memory, usually because of the limit on locked memory.

    Means: registering a buffer or creating a queue needs locked memory, and the limit of the process is too low.
    Not when: the error is not "Cannot allocate memory"; the host is out of memory.
    Do: print ulimit -l in the launcher's context (srun, mpirun, the pod), and set it to unlimited there: limits.conf,
    LimitMEMLOCK of the daemon, Slurm's PropagateResourceLimits.
    Sources: NCCL documentation; nccl-tests#206, nccl#380.
    """
    needs = [*REGISTRATIONS, "ibv_create_qp", "ibv_create_cq"]
    rows = failure.filter(
        (pl.col("form") == "verbs_call") & pl.col("operation").is_in(needs) & pl.col("reason").is_in(NO_MEMORY)
    )
    if rows.height:
        calls = ", ".join(sorted(rows["operation"].cast(pl.String).unique().to_list()))
        title = "{processes} cannot lock enough memory for the NIC"
        yield group_finding(rows, rank, title, f"{calls} failed: Cannot allocate memory", "likely")


@rule(Category.MEMORY_REGISTRATION, Severity.ERROR, of=("failure",), hang=True)
def ib_registration_failed(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A buffer could not be registered with the NIC.

    Means: for GPU memory, the kernel module or DMA-BUF does not work; for host memory, the mapping is bad.
    Not when: the error is "Cannot allocate memory": then the limit on locked memory is too low; NCCL prints it
    as INFO: it tried whether the NIC can do it, and goes on without.
    Do: check lsmod | grep nvidia_peermem and dmesg -T for nvidia and mlx5; to confirm, run once with
    NCCL_NET_GDR_LEVEL=LOC, or with NCCL_DMABUF_ENABLE=0.
    Sources: nccl: src/misc/ibvwrap.cc; nccl#1537, nccl#1939 (a loaded module that is not registered).
    """
    rows = failure.filter((pl.col("form") == "verbs_call") & pl.col("operation").is_in(REGISTRATIONS))
    rows = rows.filter(pl.col("reason").is_in(NO_MEMORY).not_()).sort(text_of("operation"), text_of("reason"))
    for (operation, reason), group in rows.group_by("operation", "reason", maintain_order=True):
        cause = "; for GPU memory: nvidia-peermem or DMA-BUF does not work" if str(reason) in BAD_ADDRESS else ""
        detail = f"{operation} failed: {reason}{cause}"
        yield group_finding(group, rank, "{processes} could not register memory with the NIC", detail, "certain")


@rule(Category.IB_ERROR, Severity.WARNING, of=("ib_unusable",), hang=True)
def ib_device_open_failed(
    ib_unusable: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL could not open InfiniBand devices that are visible.

    Means: /sys shows NICs that the process has no permission for: not all devices under /dev/infiniband were passed to
    the container.
    Not when: the devices that it can open carry the data, as where virtual functions of other pods are visible: then
    it is harmless, and reported as info.
    Do: pass all of /dev/infiniband, or exclude the others: NCCL_IB_HCA=^mlx5_bond_0.
    Sources: formats: NCCL's warnings (NET/IB: Unable to open device); nccl#2428.
    """
    unopened = ib_unusable.filter(pl.col("form").is_in(["open", "query"]))
    over_rdma = chosen_network.filter("is_rdma").select(OWNER).unique()
    over_tcp = chosen_network.filter(pl.col("is_rdma").not_()).select(OWNER).unique()
    for is_harmless, rows in (
        (True, unopened.join(over_rdma, on=OWNER, how="semi")),
        (False, unopened.join(over_rdma, on=OWNER, how="anti").join(over_tcp, on=OWNER, how="anti")),
    ):
        if rows.height:
            names = rows["device"].cast(pl.String).drop_nulls().unique().sort().to_list()
            detail = f"{len(names)} devices ({', '.join(names[:NAMED])}{' …' if len(names) > NAMED else ''})"
            finding = group_finding(
                rows, rank, "{processes} could not open InfiniBand devices that are visible", detail, "certain"
            )
            if is_harmless:
                finding.severity, finding.role = Severity.INFO, Role.CONTEXT
                finding.detail += "; other devices carry the data"
            yield finding


CREATING = ["ibv_create_qp", "ibv_create_cq", "ibv_alloc_pd", "ibv_reg_mr"]


@rule(Category.IB_ERROR, Severity.ERROR, of=("verbs",), hang=True)
def ib_verbs_call_refused(
    verbs: pl.DataFrame, communicator_progress: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The NIC's driver refused a queue or a buffer, and this version of NCCL does not print why.

    Means: mostly the limit of locked memory is too low in the context of the job, as in containers and under Slurm; or
    the NIC has no queues left, or the container may not use the device.
    Not when: NCCL went on: it completed its init or made calls afterwards.
    Do: print ulimit -l inside the job and set it to unlimited (--ulimit memlock=-1 of docker, LimitMEMLOCK of slurmd);
    ibv_rc_pingpong shows whether the device can be used; NCCL 2.13 and later print the reason.
    Sources: nccl#562, nccl#1129; nccl: src/misc/ibvwrap.cc.
    """
    is_refused = pl.col("form").eq("failed") & text_of("operation").is_in(CREATING)
    refused = last_of_process(verbs.filter(is_refused), communicator_progress).sort("source", "line")
    for (operation,), rows in refused.group_by(text_of("operation"), maintain_order=True):
        title = f"{{processes}}: {operation} failed"
        yield group_finding(
            rows, rank, title, "NCCL prints no reason; mostly it is the limit of locked memory", "likely"
        )
