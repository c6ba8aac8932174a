"""Ranks that wait for others at the store of PyTorch, or of which more came than were expected."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.store_findings import too_many_at_store


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("store_wait",), hang=True)
def torch_ranks_wait_at_store(
    store_wait: pl.DataFrame, store_error: pl.DataFrame, communicator: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks wait at the store for others of their process group, and no line shows that these came.

    Means: the store counts who has come to the start of a process group. A rank that waits prints the count every ten
    seconds; a rank that prints nothing did not start, cannot reach the store, or is in other work.
    Not when: the barrier was completed afterwards; the log was copied while the job started; NCCL began an init.
    Do: read the output of the ranks that are absent; compare MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK of all.
    Sources: torch/distributed/distributed_c10d.py (_store_based_barrier) of torch 1.8 to 2.7; pytorch-lightning#4420.
    """
    if store_error.filter(pl.col("joined").is_not_null()).height or communicator.height:
        return
    waits = store_wait.filter(form="waiting").sort("source", "line")
    over = store_wait.filter(form="completed").select("source", done="line")
    waits = waits.join(over.group_by("source").agg(pl.col("done").max()), on="source", how="left")
    waits = waits.filter((pl.col("line") > pl.col("done")).fill_null(value=True))
    for (key,), rows in waits.group_by(text_of("barrier_key"), maintain_order=True):
        joined, expected = rows.select("joined", "expected_clients").row(-1)
        if joined > expected:
            yield too_many_at_store(rows, joined, expected)
        elif joined < expected and rows.height > rows["group_rank"].n_unique():
            ranks = sorted(rows["group_rank"].unique().to_list())
            absent = sorted(set(range(expected)) - set(ranks)) if len(ranks) == joined else []
            names = f": {ranks_text(absent)} did not" if absent else ""
            yield Finding(
                title=f"{joined} of {expected} processes came to the store of the process group{names}",
                detail=f"{ranks_text(ranks)} {'wait' if len(ranks) > 1 else 'waits'} there ({key})",
                certainty="likely",
                ranks=absent,
                role=Role.CAUSE,
                evidence=evidence_lines(rows),
            )
