"""The links of GPUs and NICs, as dumps of the topology and lists of devices tell them."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import PLACE, text_of
from ncclforensics.frames.registry import analysis

LINK = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "kind": pl.String(),  # nvswitch: a GPU's links to the switches; gpu, nic: their PCIe link; net: a port's rate
    "device": pl.String(),  # its place in the node, or its name
    "rate": pl.Float64(),  # GB/s
    "source": pl.Int32(),
    "line": pl.Int32(),
}
MEGABITS = 8000  # in a GB/s


@analysis(LINK, of=("topology_node", "net_device"))
def link(topology_node: pl.DataFrame, net_device: pl.DataFrame) -> pl.DataFrame:
    """One row per host and device, as the first process tells it that does."""
    form, through = text_of("form"), pl.col("link")
    own = text_of("id").str.split("-").list.last()  # what follows the system's number
    dumped = topology_node.sort("source", "line").with_columns(
        # The links of a GPU stand below it.
        below=pl.when(form == "gpu").then(own).forward_fill().over("host", "pid")
    )
    kind = (
        pl.when((form == "nvswitch") & (through == "NVL"))
        .then(pl.lit("nvswitch"))
        .when(form.is_in(["gpu", "nic"]) & (through == "PCI"))
        .then(form)
    )
    within = dumped.select(
        *PLACE, kind=kind, device=pl.when(form == "nvswitch").then("below").otherwise(own), rate="bw"
    ).filter(pl.col("kind").is_not_null())
    ports = net_device.filter(pl.col("speed") > 0).select(
        *PLACE,
        kind=pl.lit("net"),
        device=pl.format("{}:{}", text_of("device"), pl.col("port").fill_null(1)),
        rate=pl.col("speed") / MEGABITS,
    )
    return (
        pl.concat([within, ports], how="vertical_relaxed")
        .sort("source", "line")
        .group_by("host", "kind", "device", maintain_order=True)
        .agg(pl.col("pid", "rate", "source", "line").first())
    )
