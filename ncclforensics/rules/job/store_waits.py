"""Ranks that wait for others at the store of PyTorch, or of which more came than were expected."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.identity.rank_numbers import missing_numbers
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


@rule(Category.BOOTSTRAP, Severity.WARNING, of=("rank_announced",), hang=True)
def lightning_ranks_absent(rank_announced: pl.DataFrame, communicator: pl.DataFrame) -> Iterator[Finding]:
    """Processes of Lightning began to join the process group, and no line shows that all of its ranks did.

    Means: each process prints its rank before it joins, and rank 0 prints when all have come. Two processes of one
    number were started as the same node: then other numbers are missing, and all wait.
    Not when: the output of other nodes is in other files; all have come, which the first process prints.
    Do: give the output of all nodes; compare RANK, NODE_RANK, LOCAL_RANK, WORLD_SIZE, SLURM_PROCID and SLURM_NTASKS of
    all processes with the number of nodes and devices that the Trainer has; see that a process runs for each rank.
    Sources: Lightning: fabric/utilities/distributed.py (_init_dist_connection); pytorch-lightning#4389.
    """
    begun = rank_announced.filter(pl.col("announced_rank").is_not_null()).sort("source", "line")
    if begun.is_empty() or begun.height < rank_announced.height or communicator.height:
        return
    expected = begun["expected_ranks"][-1]
    numbers = begun["announced_rank"].to_list()
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    absent = missing_numbers(expected, set(numbers))
    if not absent:
        return
    others = f", {ranks_text(twice)} by two processes or more" if twice else ""
    yield Finding(
        title=f"{len(set(numbers))} of {expected} ranks began to join the process group{others};"
        f" {ranks_text(absent)} did not",
        detail="two processes of one number were started as the same node; the others wait for the missing ones"
        if twice
        else "these did not start, are on a node whose output is not here, or print nothing",
        certainty="likely" if twice else "possible",
        ranks=absent,
        role=Role.CAUSE,
        evidence=evidence_lines(begun.filter(pl.col("announced_rank").is_in(twice)) if twice else begun),
    )
