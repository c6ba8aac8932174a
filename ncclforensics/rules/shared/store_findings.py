"""What is said of the store of PyTorch where ranks meet, by several rules."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.rules.finding import Finding
from ncclforensics.rules.shared.grouping import evidence_lines

START_ONCE = (
    "compare WORLD_SIZE with the number of processes that were started (nproc_per_node times nodes), and start each "
    "once; an init_method of file:// needs a new file for each run, a store of TCP a port that no earlier run holds"
)


def too_many_at_store(rows: pl.DataFrame, joined: int, expected: int) -> Finding:
    """Return the finding that more processes came to a barrier at the store than the process group has."""
    title = f"{count_of(joined, 'process')} came to the store of a process group of {expected}"
    detail = "WORLD_SIZE is below the number of started processes, or the store counts those of an earlier run"
    return Finding(title, detail, "certain", remedy=START_ONCE, evidence=evidence_lines(rows))
