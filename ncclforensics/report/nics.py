"""The NIC ports of a run."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.rules.finding import Nic


def nics_of(run: Frames) -> set[Nic]:
    """Return every NIC port that NCCL found, or that a dump of a host describes."""
    # NCCL prints a line for each NIC, or one for all: `[0]mlx5_0:1/IB [1]mlx5_1:1/IB`.
    listed = run["net_devices"].select(text_of("host"), entry=text_of("devices").str.split(" ")).explode("entry")
    found: set[Nic] = set()
    for host, entry in listed.filter(pl.col("entry").str.starts_with("[")).unique().drop_nulls().iter_rows():
        device, _, port = entry.partition("]")[2].partition("/")[0].partition(":")
        found.add((host, device, int(port) if port.isdecimal() else None))
    for frame in ("net_device", "port_state", "counter_increase"):
        if run.has(frame):
            rows = run[frame].select(pl.col("host", "device").cast(pl.String), "port").drop_nulls(["host", "device"])
            found |= {(host, device, 1 if port is None else port) for host, device, port in rows.unique().iter_rows()}
    return found
