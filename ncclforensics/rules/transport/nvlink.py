"""NVLink SHARP, Fabric Manager and multi-node NVLink that do not work."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.cuda import FABRIC, SELF_EXPLAINED
from ncclforensics.data.names import pci_address, shown
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import error_finding, evidence_lines, group_finding

NVLS = "transport/nvls"
INVALID = "invalid argument"

FEWER_GROUPS = (
    "use fewer communicators with NVLink SHARP at a time, or destroy those that are no longer needed; set "
    "NCCL_NVLS_ENABLE=0 on processes that can do without it; end processes of earlier jobs, which hold their groups"
)


@rule(Category.NVLS, Severity.ERROR, of=("nvlink_fabric", "cuda_error"), hang=True)
def nvls_multicast_bind_failed(
    nvlink_fabric: pl.DataFrame, cuda_error: pl.DataFrame, manager_multicast: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Multicast memory of NVLink SHARP could not be bound.

    Means: a fault of Fabric Manager or of an NVSwitch, as newer versions of NCCL print. The system is at fault, not the
    job.
    Not when: NCCL continues without NVLS, which costs bandwidth and is a warning; a container lacks the capability,
    which is a finding of its own; Fabric Manager says that no multicast group is left: then others hold them.
    Do: restart Fabric Manager or the node; NCCL_NVLS_ENABLE=0 until then.
    Sources: nccl#1672, nccl#1788, pytorch#177472.
    """
    bound = nvlink_fabric.filter(form="multicast")
    title = "NVLink SHARP could not bind its multicast memory on {processes}"
    if not bound.is_empty():
        detail = f"CUDA error {shown(bound['code'][0])}: {shown(bound['cuda_error'][0])}"
        finding = group_finding(bound, rank, title, detail, "likely")
        if (used_up := manager_multicast.filter(form="used_up").head(1)).height:
            finding.detail += "; Fabric Manager says that all multicast groups of the NVSwitches are in use"
            finding.remedy = FEWER_GROUPS
            finding.evidence += evidence_lines(used_up)
        yield finding
    older = cuda_error.filter(
        (pl.col("file") == NVLS) & (pl.col("error") != INVALID) & ~pl.col("kind").is_in(SELF_EXPLAINED)
    )
    for (error,), rows in older.group_by("error", maintain_order=True):
        yield error_finding(
            rows, rank, "NVLink SHARP could not set up its multicast memory on {processes}", f"{error}", "likely"
        )
    without = nvlink_fabric.filter(form="without_multicast")
    if not without.is_empty():
        detail = f"CUDA error {shown(without['code'][0])}: {shown(without['cuda_error'][0])}; NCCL continues without it"
        yield group_finding(without, rank, title, detail, "likely", severity=Severity.WARNING)


@rule(Category.NVLS, Severity.ERROR, of=("cuda_error",), hang=True)
def nvls_container_without_caps(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NVLink SHARP is available, and CUDA refuses its multicast memory as an invalid argument.

    Means: mostly Fabric Manager was restarted without a reset of the GPUs, so that its partition is no longer theirs;
    or its version is not the driver's; or a container lacks the multicast device in /dev/nvidia-caps.
    Not when: the error is another one, which has a finding of its own.
    Do: on that host stop all processes on the GPUs, restart nvidia-fabricmanager and reset the GPUs (nvidia-smi -r) or
    reboot; in a container pass /dev/nvidia-caps; until then NCCL_NVLS_ENABLE=0.
    Sources: nccl#976, nccl#1338, nccl#1488, pie#500; Fabric Manager user guide, section 6.
    """
    rows = cuda_error.filter((pl.col("file") == NVLS) & (pl.col("error") == INVALID))
    if not rows.is_empty():
        yield error_finding(
            rows, rank, "NVLink SHARP cannot create its multicast memory on {processes}",
            "CUDA reports: invalid argument; mostly Fabric Manager was restarted without a reset of the GPUs", "likely",
        )  # fmt: skip


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def fabricmanager_not_running(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """CUDA waits for the set-up of the NVSwitches of the host, or of the rack.

    Means: nvidia-fabricmanager is not running, or its version is not that of the driver; on racks with NVLink between
    hosts (GB200), the GPU is not registered in their fabric. It is the state of a host, whichever rank reports it. If
    only a few ranks report it and the next start works, the service was delayed.
    Not when: the system has no NVSwitch: there CUDA does not report this error.
    Do: run systemctl status nvidia-fabricmanager on the hosts named; compare its version with the driver's; on racks
    with NVLink between hosts, nvidia-smi -q must show the fabric of each GPU as Completed, with Success.
    Sources: nccl-tests#264, nccl-tests#338, NVSentinel#808, torchcomms#3130.
    """
    rows = cuda_error.filter(kind=FABRIC)
    if not rows.is_empty():
        yield error_finding(
            rows,
            rank,
            "the NVLink fabric is not set up for {processes}",
            "CUDA reports: system not yet initialized; it is a state of the host, as where Fabric Manager does not run",
            "likely",
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("mnnvl",), hang=True)
def mnnvl_bandwidth_degraded(mnnvl: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The NVLink fabric reports that a GPU has less bandwidth than it should.

    Means: links between the GPU and the NVLink switches are down or were taken out of use; the job runs, and is slow
    wherever this GPU takes part.
    Not when: all GPUs of the rack report it after maintenance, with a known reduced number of switch trays.
    Do: nvidia-smi -q -i GPU (section Fabric, Health) and nvidia-smi nvlink -s on that host; look for the GPU in the
    output of the fabric manager or NMX; reset the GPU once the links are up.
    Sources: nccl: src/mnnvl.cc; NVML, nvmlGpuFabricInfoV.
    """
    degraded = mnnvl.filter((text_of("form") == "degraded") | text_of("degraded").is_in(["yes", "true", "1"]))
    if not degraded.is_empty():
        addresses = sorted({pci_address(busid) for busid in degraded["busid"].drop_nulls()})
        detail = f"GPU {', '.join(addresses)}: fewer NVLinks to the switches are in use than it has"
        title = "the NVLink fabric reports degraded bandwidth on {processes}"
        yield group_finding(degraded, rank, title, detail, "certain")


@rule(Category.NVLS, Severity.ERROR, of=("nvlink_fabric", "cuda_error"), hang=True)
def mnnvl_imex(nvlink_fabric: pl.DataFrame, cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Multi-node NVLink is available, and IMEX does not allow NCCL to use it.

    Means: the IMEX daemon is down on a node, its versions differ, or the process may not write to
    /dev/nvidia-caps-imex-channels.
    Not when: the nodes have no NVLink between them (`MNNVL 0` alone).
    Do: run nvidia-imex-ctl -H -N on every node: all must be READY and connected; NCCL_MNNVL_ENABLE=0 until then.
    Sources: nccl: src/mnnvl.cc; NCCL user guide, troubleshooting/performance_and_tuning.
    """
    unusable = nvlink_fabric.filter(form="imex")
    if not unusable.is_empty():
        detail = f"a clique of {shown(unusable['clique_size'][0])} GPUs is available but not working"
        yield group_finding(unusable, rank, "NVLink between nodes does not work on {processes}", detail, "certain")
        return
    refused = cuda_error.filter((pl.col("file") == "transport/p2p") & (pl.col("error") == "operation not permitted"))
    if not refused.is_empty():
        detail = "opening the memory of a peer is not permitted: IMEX channels are not writable"
        yield error_finding(refused, rank, "NVLink between nodes does not work on {processes}", detail, "likely")
