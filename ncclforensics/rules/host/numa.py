"""NUMA nodes of a host, as numactl and lscpu tell them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, shown


@rule(Category.TOPOLOGY, Severity.INFO, of=("numa_node",))
def topo_numa_without_memory(numa_node: pl.DataFrame, machine_device: pl.DataFrame) -> Iterator[Finding]:
    """A NUMA node has CPUs and no memory.

    Means: buffers of all that runs there lie on another socket: what GPUs and NICs beside this node exchange with the
    host crosses the link between sockets, which costs 20 to 40 % of the bandwidth. Memory modules are missing or
    were taken out of service, or the firmware divides the sockets into more nodes than there are modules for.
    Not when: the node has no CPUs, as the memory of GPUs and of CXL has none; a virtual machine is described, whose
    nodes are the hypervisor's choice.
    Do: compare numactl -H with a sound host of the same kind; dmidecode -t memory; how many NUMA nodes the firmware
    makes of a socket.
    Sources: numactl(8); field guides (NIC on the other NUMA node); nccl-tests#293.
    """
    with_cpus = numa_node.filter((pl.col("form") == "cpus") & pl.col("cpus").is_not_null()).select("source", "node")
    empty = numa_node.filter((pl.col("form") == "size") & (pl.col("megabytes") == 0))
    empty = empty.join(with_cpus, on=["source", "node"], how="semi", maintain_order="left")
    gpus = machine_device.filter(pl.col("kind") == "gpu").select("source", "device", "host", "numa", gpu_line="line")
    for (source,), rows in empty.group_by("source", maintain_order=True):
        nodes = [str(node) for node in rows["node"].unique(maintain_order=True)]
        beside = gpus.filter((pl.col("source") == source) & pl.col("numa").is_in(nodes))
        names = beside["device"].unique(maintain_order=True).to_list()
        yield Finding(
            title=f"NUMA node {', '.join(nodes)} has no memory" + f", beside {', '.join(names[:SHOWN])}" * bool(names),
            detail="what these GPUs exchange with the host crosses the link between sockets"
            if names
            else "no dump in this file tells which GPUs are beside it",
            certainty="certain" if names else "possible",
            severity=Severity.WARNING if names else Severity.INFO,
            hosts=sorted(beside["host"].drop_nulls().unique()),
            evidence=[
                *shown(rows, "no memory"),
                *(Line(at, on, "beside it") for at, on in beside.select("source", "gpu_line").head(1).iter_rows()),
            ],
        )
