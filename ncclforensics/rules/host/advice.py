"""What NCCL and RCCL advise on how the host is set up."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import group_finding

MISSING = {
    "iommu": "iommu=pt is not on the kernel's command line",
    "amd_iommu": "amd_iommu=on is not on the kernel's command line",
    "host_memory": "HSA_FORCE_FINE_GRAIN_PCIE=1 is not set",
    "scratch": "HSA_NO_SCRATCH_RECLAIM=1 is not set",
    "numa_balancing": "NUMA balancing of the kernel is on",
}


@rule(Category.ENVIRONMENT, Severity.INFO, of=("system_advice",), hang=True)
def rccl_host_advice(system_advice: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """RCCL advises to set up the host in another way.

    Means: RCCL prints this at every start. Without IOMMU in passthrough, direct access between GPUs may hang or give
    wrong data on some machines, mostly in the first collective.
    Not when: the kernel was built with passthrough as its default: RCCL before 2.28 looks only at the command line.
    Do: if a run hangs in its first collective on one host, boot with iommu=pt, or try NCCL_P2P_DISABLE=1 once.
    Sources: rccl#1129, rccl#1026, rocm-systems#7916; rccl: src/init.cc.
    """
    for (form,), rows in system_advice.sort("form", "source", "line").group_by("form", maintain_order=True):
        title = f"{{processes}}: {MISSING[str(form)]}"
        yield group_finding(rows, rank, title, "RCCL prints this at every start", "certain", role=Role.CONTEXT)
