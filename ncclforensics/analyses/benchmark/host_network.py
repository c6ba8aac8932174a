"""What the network adapters of each host carry together, by NCCL's lines or by the ports of its tools."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import short_host, text_of
from ncclforensics.frames.registry import analysis

HOST_NETWORK = {
    "host": pl.String(),  # without its domain
    "nics": pl.UInt32(),
    "rate": pl.Float64(),  # GB/s of all of them, in one direction
    "by": pl.String(),  # nccl, ports
    "source": pl.Int32(),
    "line": pl.Int32(),
}
BITS = 8


@analysis(HOST_NETWORK, of=("link", "port_state"))
def host_network(link: pl.DataFrame, port_state: pl.DataFrame, net_devices: pl.DataFrame) -> pl.DataFrame:
    """One row per host: its adapters for data between hosts, and their rate.

    Without NCCL's lines on their speed, they are the active ports that `NET/IB : Using` names; where no log names any,
    those of the rate that most ports of the host have, so that storage and management are left out.
    """
    nets = link.filter((pl.col("kind") == "net") & (pl.col("rate") > 0)).with_columns(host=short_host("host"))
    stated = nets.group_by("host", maintain_order=True).agg(
        pl.len().alias("nics"), pl.col("rate").sum(), pl.col("source", "line").first(), by=pl.lit("nccl")
    )
    named = port_state.filter(
        pl.col("host").is_not_null() & pl.col("device").is_not_null() & (pl.col("rate_Gbps") > 0)
        & pl.col("link_layer").fill_null("").ne("NVLink")
    )  # fmt: skip
    ports = named.with_columns(host=short_host("host")).sort("moment", "source", "line", nulls_last=False)
    last = ports.group_by("host", "device", pl.col("port").fill_null(1), maintain_order=True).agg(
        pl.col("rate_Gbps", "link_layer", "state", "source", "line").last()
    )
    active = last.filter((pl.col("state") == "active").fill_null(value=True))
    used = net_devices.select(host=short_host("host"), devices=text_of("devices")).drop_nulls().unique("host")
    chosen = active.join(used, on="host", how="left", maintain_order="left")
    is_used = pl.col("devices").str.contains(pl.format("]{}:", "device"), literal=True)
    chosen = chosen.filter(is_used.fill_null(value=True))
    classes = chosen.group_by("host", "link_layer", "rate_Gbps", maintain_order=True).agg(
        pl.len().alias("nics"), pl.col("source", "line").first(), by=pl.lit("ports")
    )
    most = classes.sort("nics", "rate_Gbps", descending=True, maintain_order=True).unique(
        "host", keep="first", maintain_order=True
    )
    counted = most.with_columns(rate=pl.col("nics") * pl.col("rate_Gbps") / BITS)
    others = counted.join(stated, on="host", how="anti").select(stated.columns)
    return pl.concat([stated, others], how="vertical_relaxed")
