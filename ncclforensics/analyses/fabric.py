"""What tools of the fabric tell: perfquery, ibqueryerrors, iblinkinfo, ibnetdiscover, ibstat and their like."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.counters import COUNTER, PORT_STATE
from ncclforensics.frames import analysis


@analysis(COUNTER)
def fabric_counter() -> pl.DataFrame:
    """The counters of these tools."""
    return pl.DataFrame(schema=COUNTER)


@analysis(PORT_STATE)
def fabric_port() -> pl.DataFrame:
    """The ports of these tools."""
    return pl.DataFrame(schema=PORT_STATE)
