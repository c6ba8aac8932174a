"""What NCCL's own diagnostics found wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.data.names import parse_short_integer, ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule

MISMATCHES = (
    "link_count",
    "gpus",
    "driver",
    "device_differs",
)  # printed relative to one rank; either side may be the wrong one

# How settings of PCIe concern the traffic between GPU and NIC.
PCIE = {
    "groups_differ": "with the IOMMU on, what they send to each other may go through the CPU, or fail",
    "iommu_differs": "with the IOMMU on, traffic between GPU and NIC goes through the CPU: boot all hosts alike",
    "ats_off": "in a virtual machine, GPUDirect RDMA needs ATS on the NIC for its full speed",
}


class _Fault(NamedTuple):
    """How a form of `diagnostics_fault` is reported."""

    category: Category
    title: str
    severity: Severity = Severity.WARNING
    certainty: str = "certain"


FAULTS = {
    "inactive_links": _Fault(Category.LINK_ERROR, "NVLinks of {ranks} are inactive"),
    "link_speeds": _Fault(Category.LINK_DEGRADED, "NVLinks of {ranks} do not all run at the same speed"),
    "link_count": _Fault(Category.LINK_ERROR, "{ranks} have another number of NVLinks than rank {other}"),
    "gpus": _Fault(Category.TOPOLOGY, "{ranks} have other GPUs, or another number of them, than rank {other}"),
    "driver": _Fault(Category.VERSION_MISMATCH, "the {component} of {ranks} differs from that of rank {other}"),
    "uncorrected": _Fault(Category.CUDA_ERROR, "the GPUs of {ranks} counted uncorrected memory errors", Severity.ERROR),
    "corrected": _Fault(Category.CUDA_ERROR, "the GPUs of {ranks} counted corrected memory errors"),
    "environment": _Fault(Category.ENVIRONMENT, "the value of {variable} differs between ranks", Severity.INFO),
    "bandwidth": _Fault(Category.LINK_DEGRADED, "the network of {ranks} is slower than that of the others"),
    "peer_data": _Fault(Category.P2P, "data written by rank {rank} did not arrive in rank {other}", Severity.ERROR),
    "peer_access": _Fault(Category.P2P, "{failed} accesses between GPUs failed NCCL's check", Severity.ERROR),
    "device_missing": _Fault(Category.TOPOLOGY, "the NIC {device} is on {reporting} of {nodes} nodes only"),
    "device_differs": _Fault(Category.TOPOLOGY, "the NIC {device} of {ranks} differs from that of rank {other}"),
    "port_inactive": _Fault(Category.LINK_ERROR, "a port of the NIC {device} is not active"),
    "groups_differ": _Fault(
        Category.TOPOLOGY, "GPU and NIC are in different IOMMU groups on {pairs} pairs, first rank {rank}, NIC {nic}"
    ),
    "iommu_differs": _Fault(Category.TOPOLOGY, "the mode of the IOMMU differs between devices"),
    "ats_off": _Fault(Category.TOPOLOGY, "ATS is off on {pairs} pairs of rank and NIC{first}"),
    "xid": _Fault(Category.CUDA_ERROR, "the kernel of {node} logged Xid {xid}", certainty="possible"),
    "sxid": _Fault(Category.LINK_ERROR, "the kernel of {node} logged SXid {xid}", certainty="possible"),
}


@rule(Category.LINK_ERROR, Severity.WARNING, of=("diagnostics_fault",), hang=True)
def diagnostics_found(diagnostics_fault: pl.DataFrame) -> Iterator[Finding]:
    """NCCL's own diagnostics found a fault of a GPU, a link, a driver or the network.

    Means: NCCL compared all ranks of a communicator, or sent data between them, when it was created or when
    `ncclras -D` asked. The named ranks differ from the others or failed the check.
    Not when: the line begins with [OK]; a check could not be made. A difference does not say which side is wrong, and
    an Xid need not belong to this job.
    Do: for NVLinks nvidia-smi nvlink -s and -e; for memory nvidia-smi -q -d ECC,ROW_REMAPPER; for GPU pairs nvidia-smi
    topo -p2p n and the state of ACS and IOMMU; for the network ib_write_bw between the named hosts.
    Sources: NCCL user guide 2.31, troubleshooting/diagnostics.rst and ras.rst; nccl: src/ras/diagnostics_gpu.cc.
    """
    rows = diagnostics_fault.with_columns(form=text_of("form")).filter(pl.col("form") != "value").sort("pos")
    # A report is repeated for every communicator.
    same = ["form", "at_ranks", "at_rank", "other_rank", "variable", "node", "xid", "component", "device"]
    for _, of_fault in rows.group_by(same, maintain_order=True):
        yield _finding(of_fault, of_fault.row(0, named=True))


def _finding(rows: pl.DataFrame, row: dict[str, Any]) -> Finding:
    fault = FAULTS[row["form"]]
    ranks = _ranks_of(row)
    failed = (row["checked"] or 0) - (row["passed"] or 0)
    title = fault.title.format(
        ranks=ranks_text(ranks) or "a rank",
        rank=row["at_rank"],
        other=row["other_rank"],
        component=f"{row['component']} version",
        variable=row["variable"],
        failed=f"{failed} of {row['checked']}",
        node=row["node"],
        xid=row["xid"],
        device=row["device"],
        reporting=row["reporting"],
        nodes=row["nodes"],
        pairs=row["pairs"],
        nic=row["nic"],
        first=f", first rank {row['at_rank']}, NIC {row['nic']}" if row["nic"] else "",
    )
    return Finding(
        title=title,
        detail=_detail(row),
        certainty=fault.certainty,
        severity=fault.severity,
        category=fault.category,
        ranks=ranks,
        hosts=[row["node"]] if row["node"] else [],
        evidence=[Line(source, line) for source, line in rows.select("source", "line").head(4).rows()],
    )


def _detail(row: dict[str, Any]) -> str:
    if row["form"] == "bandwidth":
        return f"{row['measured']!r} Gbit/s; the median of all ranks is {row['median']!r} Gbit/s"
    if row["form"] in MISMATCHES:
        return f"rank {row['other_rank']} has {row['expected']}; which side is wrong the check does not say"
    if row["worst"] is not None:
        return f"NCCL's diagnostics read the counters of the GPUs; the highest is {row['worst']}"
    if row["form"] in PCIE:
        return PCIE[row["form"]]
    return str(row["advice"] or "found by NCCL's diagnostics, which compare the ranks or send data between them")


def _ranks_of(row: dict[str, Any]) -> list[int]:
    """Return the ranks of a line: one rank, or the printed part of a set such as `{0,1,...} (N=64)`."""
    if row["at_rank"] is not None:
        return [row["at_rank"]]
    numbers = str(row["at_ranks"] or "").partition("}")[0].removeprefix("{").split(",")
    return sorted(rank for number in numbers if (rank := parse_short_integer(number.strip())) is not None)
