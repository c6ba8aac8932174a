"""Direct access between GPUs of one host that CUDA refuses."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.cuda import PEER
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import error_finding, group_finding
from ncclforensics.rules.shared.survival import last_of_process

HIP = "hip"
HIP_REMEDY = (
    "compare the version of the amdgpu driver (dkms status) with that of ROCm; check iommu=pt in /proc/cmdline, and"
    " --ipc=host and /dev/kfd of the container; try NCCL_P2P_DISABLE=1 once"
)
REFUSED = ["refused", "ipc_handle", "ipc_export", "ipc_open"]


@rule(Category.P2P, Severity.ERROR, of=("p2p_failure", "cuda_error"), hang=True)
def p2p_access_refused(
    p2p_failure: pl.DataFrame, cuda_error: pl.DataFrame, communicator_progress: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """CUDA refuses direct access between two GPUs, or to the memory of another process.

    Means: the GPUs report a path between them that does not work: cards without peer access, GPUs of different kinds, a
    container or a virtual machine that hides one of them from the other process, or IOMMU and ACS in between.
    Not when: NCCL went on: it completed its init or made calls afterwards; the memory is that of the host, which NCCL
    shares by cuMem: a separate finding.
    Do: compare nvidia-smi topo -p2p r with simpleP2P of the CUDA samples; let each process see all GPUs of the host
    (CUDA_VISIBLE_DEVICES, --ipc=host); try NCCL_P2P_DISABLE=1 once.
    Sources: ray_lightning#24, rccl#908, rccl-tests#120, dask-cuda#639; nccl: src/transport/p2p.cc.
    """
    refused = last_of_process(p2p_failure.filter(pl.col("form").is_in(REFUSED)), communicator_progress)
    for (error, runtime), rows in refused.sort("source", "line").group_by(
        "error", text_of("runtime"), maintain_order=True
    ):
        name = "HIP" if runtime == HIP else "CUDA"
        title = f"{{processes}}: {name} refused direct access between GPUs"
        finding = group_finding(rows, rank, title, f"{name} reports: {error}", "likely")
        if runtime == HIP:
            finding.remedy = HIP_REMEDY
        yield finding
    of_programs = cuda_error.filter((pl.col("kind") == PEER) & pl.col("file").ne_missing("transport/shm"))
    if not of_programs.is_empty():
        yield error_finding(
            of_programs, rank, "{processes}: these GPUs have no direct access to each other",
            "CUDA reports: peer access is not supported between these two devices", "certain",
        )  # fmt: skip
