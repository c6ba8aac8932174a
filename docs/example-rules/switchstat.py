"""The output of switchstat, and what it says about ports that drop packets."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

GRAMMARS = ("switchstat",)
SIGNATURES = ("queue_head",)
KINDS = {"queue_head": "ib-counters"}


@rule(Category.CONGESTION, Severity.WARNING, of=("switch_queue",))
def switch_drops_packets(switch_queue: pl.DataFrame) -> Iterator[Finding]:
    """A port of a switch dropped packets on their way to a NIC.

    Means: the queue to the NIC was full; RoCE sends the packets again after a timeout, and all ranks wait for that.
    Not when: no packet was dropped: a queue that is nearly full slows nothing yet.
    Do: look at flow control (PFC) and ECN of the port named, and at other traffic to that host.
    Sources: the manual of switchstat.
    """
    dropping = switch_queue.filter(pl.col("dropped") > 0).sort("dropped", descending=True)
    for port in dropping.to_dicts():
        yield Finding(
            title=f"the switch dropped {port['dropped']} packets to {port['host']}/{port['device']}",
            detail=f"port {port['port']}: {port['filled']} of {port['size']} cells of its queue are in use",
            certainty="certain",
            hosts=[port["host"]],
            evidence=evidence_lines(dropping.filter(line=port["line"], source=port["source"]), "drops"),
        )
