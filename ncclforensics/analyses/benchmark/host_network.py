"""What the network adapters of each host carry together, by NCCL's lines or by the ports of its tools."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.cloud_networks import OF_PLATFORM, OF_PLUGIN, OF_PROVIDER, OVER_TCP
from ncclforensics.data.networks import NVLINK
from ncclforensics.frames.columns import LINE, short_host, text_of
from ncclforensics.frames.registry import analysis

HOST_NETWORK = {
    "host": pl.String(),  # without its domain
    "nics": pl.UInt32(),  # null: only their sum is known
    "rate": pl.Float64(),  # GB/s of all of them, in one direction
    "by": pl.String(),  # nccl, ports, provider (of Libfabric); of plugins machine, or tcp, over which less is reached
    **LINE,
}
BITS = 8


def _of_plugins(libfabric: pl.DataFrame, google_net: pl.DataFrame) -> pl.DataFrame:
    """The adapters of machines that network plugins name, or of a provider of which they print the number."""
    at = ["host", "source", "line"]
    machine = text_of("platform").str.to_lowercase().replace_strict(OF_PLATFORM, default=None, return_dtype=pl.Float64)
    named = libfabric.select(*at, rate=machine, by=pl.lit("machine"))
    plugin = pl.coalesce(text_of("net"), pl.when(text_of("form") == "gib").then(pl.lit("gIB")))
    only = google_net.select(
        *at,
        rate=plugin.replace_strict(OF_PLUGIN, default=None, return_dtype=pl.Float64),
        by=pl.when(plugin.is_in(OVER_TCP)).then(pl.lit("tcp")).otherwise(pl.lit("machine")),
    )
    of_one = text_of("provider").replace_strict(OF_PROVIDER, default=None, return_dtype=pl.Float64)
    counted = libfabric.select(*at, "nics", rate=of_one * pl.col("nics"), by=pl.lit("provider"))
    rows = pl.concat([named, only, counted], how="diagonal_relaxed").drop_nulls("rate")
    return rows.with_columns(short_host("host").alias("host")).unique("host", keep="first", maintain_order=True)


@analysis(HOST_NETWORK, of=("link", "port_state", "libfabric", "google_net"))
def host_network(
    link: pl.DataFrame,
    port_state: pl.DataFrame,
    net_devices: pl.DataFrame,
    libfabric: pl.DataFrame,
    google_net: pl.DataFrame,
) -> pl.DataFrame:
    """One row per host: its adapters for data between hosts, and their rate.

    Without NCCL's lines on their speed, they are the active ports that `NET/IB : Using` names; where no log names any,
    those of the rate that most ports of the host have, so that storage and management are left out. Without both, those
    of the machine that a network plugin names.
    """
    nets = link.filter((pl.col("kind") == "net") & (pl.col("rate") > 0)).with_columns(host=short_host("host"))
    stated = nets.group_by("host", maintain_order=True).agg(
        pl.len().alias("nics"), pl.col("rate").sum(), pl.col("source", "line").first(), by=pl.lit("nccl")
    )
    named = port_state.filter(
        pl.col("host").is_not_null() & pl.col("device").is_not_null() & (pl.col("rate_Gbps") > 0)
        & pl.col("link_layer").fill_null("").ne(NVLINK)
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
    of_plugins = _of_plugins(libfabric, google_net)
    over_tcp = pl.col("host").is_in(of_plugins.filter(pl.col("by") == "tcp")["host"].implode())
    known = pl.concat([stated, others], how="vertical_relaxed").with_columns(
        by=pl.when(over_tcp).then(pl.lit("tcp")).otherwise("by")
    )
    more = of_plugins.join(known, on="host", how="anti")
    return pl.concat([known, more.select(stated.columns)], how="vertical_relaxed")
