"""Rates of NVLink, PCIe and network ports, as NCCL prints its topology and its network devices."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, PLACE, PROCESS, text_of
from ncclforensics.frames.registry import analysis

LINK = {
    **PROCESS,
    "kind": pl.String(),  # nvswitch: a GPU's NVLinks to switches; gpu, nic: its PCIe link; net: a network port
    "device": pl.String(),  # PCI address, or device:port
    "rate": pl.Float64(),  # GB/s
    **LINE,
}
MEGABITS_PER_GIGABYTE = 8000


@analysis(LINK, of=("topology_node", "net_device"))
def link(topology_node: pl.DataFrame, net_device: pl.DataFrame) -> pl.DataFrame:
    """One row per host, kind and device: the first line that shows its rate."""
    form, link_type = text_of("form"), pl.col("link")
    pci_address = text_of("id").str.split("-").list.last()  # behind the number of the system
    nodes = topology_node.sort("source", "line").with_columns(
        # The links of a GPU are printed below it.
        gpu=pl.when(form == "gpu").then(pci_address).forward_fill().over("host", "pid")
    )
    kind = (
        pl.when((form == "nvswitch") & (link_type == "NVL"))
        .then(pl.lit("nvswitch"))
        .when(form.is_in(["gpu", "nic"]) & (link_type == "PCI"))
        .then(form)
    )
    internal = nodes.select(
        *PLACE, kind=kind, device=pl.when(form == "nvswitch").then("gpu").otherwise(pci_address), rate="bw"
    ).filter(pl.col("kind").is_not_null())
    ports = net_device.filter(pl.col("speed") > 0).select(
        *PLACE,
        kind=pl.lit("net"),
        device=pl.format("{}:{}", text_of("device"), pl.col("port").fill_null(1)),
        rate=pl.col("speed") / MEGABITS_PER_GIGABYTE,
    )
    return (
        pl.concat([internal, ports], how="vertical_relaxed")
        .sort("source", "line")
        .group_by("host", "kind", "device", maintain_order=True)
        .agg(pl.col("pid", "rate", "source", "line").first())
    )
