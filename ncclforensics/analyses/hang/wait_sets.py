"""For which sets of ranks each rank of a job waits."""

from __future__ import annotations

from collections import defaultdict

from ncclforensics.analyses.hang.job import Job


def wait_graph(job: Job) -> dict[int, list[tuple[int, ...]]]:
    """Return rank id -> the sets of ranks it waits for, one for each of its calls."""
    waits_for_of: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for edge in job.waits:
        waits_for_of[edge["waiter"]].append(edge["waits_for"])
    return waits_for_of


def placed_waits(job: Job) -> tuple[set[int], dict[int, list[tuple[int, ...]]]]:
    """Return the ranks that others wait for, and the graph of waits, without ranks whose logs may lack earlier calls.

    A call that they have not made, by their logs, may be among those calls. Where nothing else is known, with them.
    """
    unplaced = {(rank_id, key) for rank_id, key, begins_together in job.unplaced if not begins_together}
    placed: dict[int, tuple[int, ...]] = {}  # of each list of ranks, which the waiters of a call share
    for edge in job.awaited_calls:
        ranks = edge["waits_for"]
        placed[id(ranks)] = tuple(rank_id for rank_id in ranks if (rank_id, edge["key"]) not in unplaced)
    awaited = {rank_id for ranks in placed.values() for rank_id in ranks}
    if not awaited or awaited == job.awaited_ranks:
        return job.awaited_ranks, wait_graph(job)
    waits_for_of: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for edge in job.waits:
        if ranks := placed[id(edge["waits_for"])]:
            waits_for_of[edge["waiter"]].append(ranks)
    return awaited, waits_for_of
