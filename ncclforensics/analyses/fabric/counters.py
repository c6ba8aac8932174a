"""Counters and states of ports, from the tools of the fabric and of hosts, NVLinks included."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.data.fabric import PLANE_DEVICE
from ncclforensics.frames.columns import LINE, SOURCE_BITS, equal_before
from ncclforensics.frames.registry import analysis

# The port of a counter or a state. Tools of the fabric print LID, GUID and node, tools of a host print the device; what
# a tool does not print is null.
PORT = {
    "host": pl.String(),  # where the dump, a launcher, a prompt or the name of a node shows it
    "device": pl.String(),
    "port": pl.Int32(),
    "lid": pl.Int32(),
    "guid": pl.String(),  # of the node: 0x and 16 hexadecimal digits
    "node": pl.String(),  # its description in the fabric
}
COUNTER = {
    **LINE,
    "moment": pl.Datetime("us"),  # of the dump, where it is printed
    **PORT,
    "name": pl.Categorical(),  # as in Linux below `counters` and `hw_counters`; of others as the tool prints it
    "value": pl.Int64(),
    "unit": pl.Categorical(),  # errors, bytes, packets, events, ticks
    "is_saturated": pl.Boolean(),  # at its maximum: the true value is at least this
}
IS_PLANE = pl.col("device").str.starts_with(PLANE_DEVICE).fill_null(value=False)
COUNTER_SAMPLE = {**COUNTER, "sample": pl.Int32()}  # number of the dump in its source, from 0
PORT_STATE = {
    **LINE,
    "moment": pl.Datetime("us"),
    **PORT,
    "state": pl.String(),  # down, initializing, armed, active
    "physical_state": pl.String(),  # as Linux spells it: LinkUp, Polling, Disabled, …
    "rate_Gbps": pl.Float64(),
    "width": pl.String(),  # 4X
    "speed": pl.String(),  # of a lane: SDR, …, HDR, NDR, XDR
    "width_supported": pl.String(),  # by this end of the link
    "speed_supported": pl.String(),
    "link_layer": pl.String(),  # InfiniBand, Ethernet
    "transport": pl.String(),  # of verbs: InfiniBand, iWARP
    "model": pl.String(),  # of the adapter: its type, or the identifier of its board
    "firmware": pl.String(),  # of the adapter
    "firmware_line": pl.Int32(),
    "mtu": pl.Int32(),
    "netdev": pl.String(),
    "peer_node": pl.String(),
    "peer_guid": pl.String(),
    "peer_port": pl.Int32(),
    "peer_lid": pl.Int32(),
}


def concat_filled(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate frames of the same columns, without those that have no rows: then one with rows is not copied."""
    return pl.concat([rows for rows in frames if rows.height] or [*frames[:1]], how="diagonal")


def path_of_dump() -> pl.Expr:
    """Return the path of each dump: the file, or for sysfs files of one value the part before `/infiniband/`."""
    path = pl.col("path").str
    is_value = path.contains("/ports/", literal=True) | path.ends_with("/node_guid")
    is_sysfs = path.contains("/infiniband/", literal=True) & is_value
    return pl.when(is_sysfs).then(path.split("/infiniband/").list.first()).otherwise("path")


@analysis(COUNTER, of=("fabric_counter", "host_counter", "interface_counter", "omni_path_counter"))
def counter(
    fabric_counter: pl.DataFrame,
    host_counter: pl.DataFrame,
    interface_counter: pl.DataFrame,
    omni_path_counter: pl.DataFrame,
) -> pl.DataFrame:
    """One row per counter in a dump, zero or not, converted to the unit of Linux."""
    rows = concat_filled([fabric_counter, host_counter, interface_counter, omni_path_counter])
    place = rows.select(pl.col("source").cast(pl.Int64) * (1 << SOURCE_BITS) + pl.col("line")).to_series()
    return rows if place.is_sorted() else rows.sort("source", "line", maintain_order=True)


@analysis(PORT_STATE, of=("fabric_port", "host_port"))
def port_state(fabric_port: pl.DataFrame, host_port: pl.DataFrame) -> pl.DataFrame:
    """One row per port and dump that shows its state, speed or peer; without ports that carry no data."""
    ports = pl.concat([fabric_port, host_port]).filter(~IS_PLANE)
    return ports.sort("source", "line", maintain_order=True)


@analysis(COUNTER_SAMPLE, of=("counter",))
def counter_sample(counter: pl.DataFrame) -> pl.DataFrame:
    """Add to each counter `sample`, the number of its dump in the source: a file may hold several dumps."""
    key = counter.select("source", *PORT, "name").hash_rows().alias("key")
    if key.n_unique() == counter.height:  # as in most runs
        return counter.with_columns(sample=pl.lit(0, pl.Int32))
    return counter.with_columns(sample=equal_before(key).cast(pl.Int32))
