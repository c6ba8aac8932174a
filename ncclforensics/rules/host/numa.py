"""NUMA nodes of a host, as numactl and lscpu print them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines


@rule(Category.TOPOLOGY, Severity.INFO, of=("numa_node",))
def topo_numa_without_memory(numa_node: pl.DataFrame, machine_device: pl.DataFrame) -> Iterator[Finding]:
    """A NUMA node has CPUs and no memory.

    Means: processes on this node have their buffers on another socket: data between the host and the GPUs and NICs of
    this node crosses the link between sockets, which costs 20 to 40 % of the bandwidth. Memory modules are missing or
    were disabled, or the firmware divides the sockets into more nodes than have modules.
    Not when: the node has no CPUs, as the memory of GPUs and of CXL; the dump is of a virtual machine, whose nodes the
    hypervisor defines.
    Do: compare numactl -H with a healthy host of the same kind; check dmidecode -t memory, and the number of NUMA nodes
    per socket in the firmware.
    Sources: numactl(8); field guides (NIC on the other NUMA node); nccl-tests#293.
    """
    with_cpus = numa_node.filter((pl.col("form") == "cpus") & pl.col("cpus").is_not_null()).select("source", "node")
    empty = numa_node.filter((pl.col("form") == "size") & (pl.col("megabytes") == 0))
    empty = empty.join(with_cpus, on=["source", "node"], how="semi", maintain_order="left")
    gpus = machine_device.filter(pl.col("kind") == "gpu").select("source", "device", "host", "numa", gpu_line="line")
    for (source,), rows in empty.group_by("source", maintain_order=True):
        nodes = [str(node) for node in rows["node"].unique(maintain_order=True)]
        near = gpus.filter((pl.col("source") == source) & pl.col("numa").is_in(nodes))
        names = near["device"].unique(maintain_order=True).to_list()
        yield Finding(
            title=f"NUMA node {', '.join(nodes)} has no memory" + f", next to {', '.join(names[:SHOWN])}" * bool(names),
            detail="data between these GPUs and the host crosses the link between sockets"
            if names
            else "no dump in this file shows which GPUs are next to it",
            certainty="certain" if names else "possible",
            severity=Severity.WARNING if names else Severity.INFO,
            hosts=sorted(near["host"].drop_nulls().unique()),
            evidence=[
                *evidence_lines(rows, "no memory"),
                *(
                    Line(gpu_source, line, "next to it")
                    for gpu_source, line in near.select("source", "gpu_line").head(1).iter_rows()
                ),
            ],
        )
