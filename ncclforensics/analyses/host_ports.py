"""What tools of a host: sysfs, rdma, ethtool, NVLinks and their like tell of ports."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.counters import COUNTER, PORT_STATE
from ncclforensics.frames import analysis


@analysis(COUNTER)
def host_counter() -> pl.DataFrame:
    """The counters of these tools."""
    return pl.DataFrame(schema=COUNTER)


@analysis(PORT_STATE)
def host_port() -> pl.DataFrame:
    """The ports of these tools."""
    return pl.DataFrame(schema=PORT_STATE)
