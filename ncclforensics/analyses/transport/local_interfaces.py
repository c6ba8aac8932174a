"""Interfaces and addresses that other hosts mostly do not reach, of those that NCCL lists for its connections."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, OWNER, PROCESS, begins_with, text_of
from ncclforensics.frames.registry import analysis

LOOPBACK = "lo"
BRIDGES = ["docker", "veth", "cni", "virbr", "br-", "tunl", "flannel", "cali"]  # host-local interfaces of containers
LINK_LOCAL = ["fe80:", "169.254."]
OF_HOST = ["::1"]
LOCAL_INTERFACE = {
    **PROCESS,
    "interface": pl.String(),
    "address": pl.String(),
    "use": pl.String(),  # what goes over it
    "is_bridge": pl.Boolean(),  # it joins the containers of one host; of the others the address is link-local
    **LINE,
}


def is_bridge() -> pl.Expr:
    """Whether `interface` is the loopback interface, or joins the containers of one host."""
    return (pl.col("interface") == LOOPBACK) | begins_with("interface", *BRIDGES)


def is_local_interface() -> pl.Expr:
    """Whether `interface` and its `address` are of one host, or of one link."""
    return is_bridge() | begins_with("address", *LINK_LOCAL, *OF_HOST)


@analysis(LOCAL_INTERFACE, of=("net_devices",))
def local_interface(net_devices: pl.DataFrame) -> pl.DataFrame:
    """The interfaces of one host or of one link that a process lists for data, and for the set-up over InfiniBand."""
    entry = pl.col("entry").str.splitn("]", 2).struct.field("field_1").str.splitn(":", 2)
    of_data = net_devices.filter(pl.col("form").is_in(["socket", "fastsocket"])).with_columns(
        entry=text_of("devices").str.split(" ")
    )
    of_data = of_data.explode("entry").with_columns(
        interface=entry.struct.field("field_0"), address=entry.struct.field("field_1"), use=pl.lit("data")
    )
    of_ib = net_devices.with_columns(
        interface=text_of("oob_interface"), address=text_of("oob_address"), use=pl.lit("the set-up of connections")
    )
    columns = ["source", "line", *OWNER, "interface", "address", "use"]
    offered = pl.concat([of_data.select(columns), of_ib.select(columns)]).drop_nulls("interface")
    return offered.filter(is_local_interface()).with_columns(is_bridge=is_bridge()).sort("source", "line")


@analysis(LOCAL_INTERFACE, of=("local_interface",))
def unused_interface(
    local_interface: pl.DataFrame, chosen_network: pl.DataFrame, communicator_progress: pl.DataFrame
) -> pl.DataFrame:
    """The same of processes that made no call, and whose job is not known to run on one node."""
    on_one = chosen_network.filter(pl.col("is_on_one_node").fill_null(value=False))
    worked = communicator_progress.filter(pl.col("last_pos").is_not_null())
    listed = local_interface.join(on_one, on=OWNER, how="anti", maintain_order="left")
    return listed.join(worked, on=OWNER, how="anti", maintain_order="left")
