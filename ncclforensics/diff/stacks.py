"""The topic of stacks: where the main threads of the ranks stand."""

from __future__ import annotations

import polars as pl

from ncclforensics.diff import Kind, topic
from ncclforensics.frames.columns import text_of


@topic(unit="rank", needs="py-spy dump --pid PID of every rank while the job stands still", kind=Kind.SYMPTOM)
def stacks(rank_stack: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Ranks stand in other calls: the rank outside of a collective is the one that the others wait for."""
    numbers = rank.select("rank_id", "rank", host=text_of("host"))
    rows = rank_stack.join(numbers, on="rank_id", how="left")
    return rows.select("rank", "host", "source", "line", what=pl.lit("main thread"), value="kind")
