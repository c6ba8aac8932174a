"""The counters and the state of ports, whichever tool told them: of the fabric, of a host, of NVLinks."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.registry import analysis

# Who a counter or a port is of. A tool of the fabric knows LID, GUID and node, one of the host its device; what a tool
# does not tell is null.
PORT = {
    "host": pl.String(),  # only where the dump, a launcher, a prompt or the name of a node says so
    "device": pl.String(),
    "port": pl.Int32(),
    "lid": pl.Int32(),
    "guid": pl.String(),  # of the node, as 16 hexadecimal digits behind 0x
    "node": pl.String(),  # as the fabric calls it
}
COUNTER = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "moment": pl.Datetime("us"),  # of the dump, where it tells
    **PORT,
    "name": pl.String(),  # as Linux calls it below `counters` and `hw_counters`; others in their own words
    "value": pl.Int64(),
    "unit": pl.String(),  # errors, bytes, packets, events, ticks
    "is_saturated": pl.Boolean(),  # it stuck at the most it can hold: at least this
}
COUNTER_SAMPLE = {**COUNTER, "sample": pl.Int32()}  # which time it was told in its source, from 0 on
PORT_STATE = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "moment": pl.Datetime("us"),
    **PORT,
    "state": pl.String(),  # down, initializing, armed, active
    "physical_state": pl.String(),  # as Linux spells it: LinkUp, Polling, Disabled, …
    "rate_Gbps": pl.Float64(),
    "width": pl.String(),  # 4X
    "speed": pl.String(),  # of a lane: SDR, …, HDR, NDR, XDR
    "width_supported": pl.String(),  # what this end is able to
    "speed_supported": pl.String(),
    "link_layer": pl.String(),  # InfiniBand, Ethernet
    "mtu": pl.Int32(),
    "netdev": pl.String(),
    "peer_node": pl.String(),
    "peer_guid": pl.String(),
    "peer_port": pl.Int32(),
    "peer_lid": pl.Int32(),
}


def dump_of(path: str) -> pl.Expr:
    """What names a dump, of a column of paths: its file; where files hold one value each, what they stand below."""
    is_below = pl.col(path).str.contains("/infiniband/", literal=True)
    is_value = pl.col(path).str.contains("/ports/", literal=True) | pl.col(path).str.ends_with("/node_guid")
    above = pl.col(path).str.split("/infiniband/").list.first()
    return pl.when(is_below & is_value).then(above).otherwise(path)


@analysis(COUNTER, of=("fabric_counter", "host_counter"))
def counter(fabric_counter: pl.DataFrame, host_counter: pl.DataFrame) -> pl.DataFrame:
    """Every counter that a dump tells, zero or not, its unit converted as its tool means it."""
    return pl.concat([fabric_counter, host_counter]).sort("source", "line", maintain_order=True)


@analysis(PORT_STATE, of=("fabric_port", "host_port"))
def port_state(fabric_port: pl.DataFrame, host_port: pl.DataFrame) -> pl.DataFrame:
    """Every port whose state, speed or peer a dump tells, each time that it does."""
    return pl.concat([fabric_port, host_port]).sort("source", "line", maintain_order=True)


@analysis(COUNTER_SAMPLE, of=("counter",))
def counter_sample(counter: pl.DataFrame) -> pl.DataFrame:
    """The counters, each with the number of the dump in its source: a file may hold one, a pair or a series."""
    again = pl.int_range(pl.len(), dtype=pl.Int32).over("source", *PORT, "name")
    return counter.sort("source", "line", maintain_order=True).with_columns(sample=again)
