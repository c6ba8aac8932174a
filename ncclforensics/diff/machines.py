"""Topics on the machines, from dumps and logs: links of GPUs and NICs, and the paths between them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.machine_devices import CURRENT_SPEED_TOOLS
from ncclforensics.diff import topic
from ncclforensics.frames.columns import text_of

_DUMPS = "nvidia-smi topo -m, nvidia-smi nvlink -s, lspci -vvv, lsmod, numactl -H of both machines"
_PATHS = ["PIX", "PXB", "PHB", "NODE", "SYS"]  # the shortest first


@topic(unit="device", needs=_DUMPS)
def machine(
    device_pair: pl.DataFrame, machine_device: pl.DataFrame, gpu_link: pl.DataFrame, loaded_module: pl.DataFrame
) -> pl.DataFrame:
    """The machines differ in links, PCIe slots or kernel modules; NCCL's choices follow from them."""
    place = ["source", "line", "host"]
    paths = device_pair.filter((pl.col("table") == "path") & pl.col("device").str.starts_with("GPU"))
    to_gpus = (
        paths.filter(pl.col("other").str.starts_with("GPU"))
        .group_by("source", "dump", "host", "device", maintain_order=True)
        .agg(pl.col("line").first(), value=pl.col("path").unique().sort().str.join(", "))
        .select(*place, "value", what=pl.lit("paths from a GPU to the others"))
    )
    to_nics = (
        paths.filter(pl.col("other").str.starts_with("GPU").not_() & pl.col("path").is_in(_PATHS))
        .with_columns(distance=pl.col("path").replace_strict(_PATHS, range(len(_PATHS)), default=None))
        .sort("distance", maintain_order=True)
        .group_by("source", "dump", "host", "device", maintain_order=True)
        .agg(pl.col("line").first(), value=pl.col("path").first())
        .select(*place, "value", what=pl.lit("path from a GPU to its nearest NIC"))
    )
    names = {"gpu": "GPU", "nic": "NIC", "bridge": "bridge", "switch": "NVSwitch"}
    # An idle GPU trains its link down to a lower speed, never to fewer lanes.
    may_be_idle = pl.col("tool").is_in(CURRENT_SPEED_TOOLS) & (pl.col("kind") == "gpu")
    width = pl.format("x{}", "width")
    slots = machine_device.filter(pl.col("speed").is_not_null() & pl.col("width").is_not_null()).select(
        *place,
        what=pl.format("PCIe link of a {}", pl.col("kind").replace_strict(names, default="device")),
        value=pl.when(may_be_idle).then(width).otherwise(pl.format("{} GT/s x{}", "speed", "width")),
    )
    redirecting = machine_device.filter(pl.col("is_redirecting").is_not_null()).select(
        *place,
        what=pl.lit("access control of a bridge"),
        value=pl.when("is_redirecting").then(pl.lit("redirects peer traffic")).otherwise(pl.lit("does not redirect")),
    )
    nvlinks = gpu_link.select(
        *place, what=pl.lit("NVLinks of a GPU"), value=pl.format("{} up, {} down", "links", "down")
    )
    modules = loaded_module.filter("is_listing").select(
        "source", "line", "host", what=pl.lit("kernel module"), value="module"
    )
    return pl.concat([to_gpus, to_nics, slots, redirecting, nvlinks, modules], how="diagonal_relaxed")


@topic(unit="device", needs="NCCL_DEBUG_SUBSYS=INIT,GRAPH")
def links(link: pl.DataFrame) -> pl.DataFrame:
    """NCCL detected other link rates: a GPU or NIC in a slot with fewer lanes, a slower port, missing NVLinks."""
    names = {"nvswitch": "NVLinks of a GPU", "gpu": "PCIe link of a GPU", "nic": "PCIe link of a NIC"}
    rates = link.filter(pl.col("kind").is_in(list(names)))
    return rates.select(
        "source",
        "line",
        text_of("host"),
        what=pl.col("kind").replace_strict(names),
        value=pl.format("{} GB/s", "rate"),
    )
