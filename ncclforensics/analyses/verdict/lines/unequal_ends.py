"""Answers that stay open because logs end at several places, or in the middle of NCCL's work.

That a rank made fewer calls than the others shows that it holds them up only if its log goes to the end of its run.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.variables import stacks_of


def find_several_ends(job: Job, diagnosis: Explanation, *, is_end_shown: bool) -> Explanation | None:
    """Answer where some logs end between those of the culprits and of most others: not all may go to the end.

    `is_end_shown`: something shows that the job failed or stood still. Then most others have to report that, and the
    ranks between have not: these stand right before the others, and one may be the rank that stopped.
    """
    between, culprits = _ending_between(job, diagnosis), set(diagnosis.culprits)
    if is_end_shown:
        shown = job.reporting | {row.rank_id for row in job.memberships if row.end is not None}
        between -= shown
        others = set(job.rank_ids) - between - culprits
        if not job.reporting.isdisjoint(culprits) or len(others & shown) * 2 <= len(others):
            return None
    return _several_ends(job, diagnosis, sorted(between), diagnosis.culprits) if between else None


def find_culprits_apart(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where culprits stand at different places of the program, though none of them waits for another.

    That two ranks stop by themselves is a coincidence, and that the log of one is shorter than its run is none; unless
    these are all ranks of their hosts.
    """
    culprits = diagnosis.culprits
    if diagnosis.verdict != Kind.LAGGING or job.ranks_on_hosts_of(culprits) == set(culprits):
        return None
    made = _calls_made(job, culprits)
    fewest = min(made, key=lambda rank_id: sum(made[rank_id].values()))
    later = [rank_id for rank_id in culprits if _stands_elsewhere(made[rank_id], made[fewest])]
    slower = [rank_id for rank_id in culprits if rank_id not in later]
    return _several_ends(job, diagnosis, later, slower) if later else None


def _calls_made(job: Job, rank_ids: list[int]) -> dict[int, dict[tuple[int, int], int]]:
    """Return how many collectives ranks made on each communicator: of this index among their own, and size."""
    made: dict[int, dict[tuple[int, int], int]] = {rank_id: {} for rank_id in rank_ids}
    for row in job.last_calls.filter(pl.col("rank_id").is_in(rank_ids)).to_dicts():
        communicator = job.communicator_index[row["rank_id"], row["key"]], job.members[row["key"]][0].nranks
        made[row["rank_id"]][communicator] = int(row["calls"])
    return made


def _stands_elsewhere(made: dict[tuple[int, int], int], others: dict[tuple[int, int], int]) -> bool:
    """Whether two ranks made another number of calls on a communicator that both have."""
    return any(others.get(communicator, calls) != calls for communicator, calls in made.items())


def _ending_between(job: Job, diagnosis: Explanation) -> set[int]:
    """The ranks whose logs end between those of the culprits and of most others.

    They made the same call that a culprit lacks, and fewer calls behind it than the others: it did not stop those, so
    it did not stop these either, and one of these logs may only be shorter than the rank's run.
    """
    culprits = set(diagnosis.culprits)
    if diagnosis.verdict not in (Kind.LAGGING, Kind.RANK_DIED) or not culprits:
        return set()
    edges = [edge for edge in job.waits if edge.kind == "collective" and not culprits.isdisjoint(edge.waits_for)]
    positions = pl.Series([edge.pos for edge in edges], dtype=pl.Int64)
    first: dict[int, int] = {}  # of these calls, by rank: only what stands behind it is counted, of long logs little
    for edge in edges:
        first[edge.waiter] = min(edge.pos, first.get(edge.waiter, edge.pos))
    earliest = pl.Series([first.get(rank_id) for rank_id in range(1 + max(job.rank_ids))], dtype=pl.Int64)
    later_calls = job.calls.select("rank_id", "pos").filter(job.calls["pos"] >= earliest.gather(job.calls["rank_id"]))
    place_from_end = (pl.len() - 1 - pl.int_range(pl.len())).over("rank_id")
    numbered = later_calls.with_columns(calls=place_from_end).filter(pl.col("pos").is_in(positions.implode()))
    calls_behind = {(rank_id, pos): calls for rank_id, pos, calls in numbered.iter_rows()}
    later: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)  # call -> rank id -> calls behind it
    for edge in edges:
        later[edge.key, edge.nth][edge.waiter] = calls_behind.get((edge.waiter, edge.pos), 0)
    found: set[int] = set()
    for made in later.values():
        most = max(made.values())
        found |= {rank_id for rank_id, calls in made.items() if calls < most and rank_id in job.awaited_ranks}
    return found


def _several_ends(job: Job, diagnosis: Explanation, between: list[int], first: list[int]) -> Explanation:
    """Answer where logs end at several places: nothing shows which of these ranks stands, and whose log is shorter."""
    slower, later = job.names(first), job.names(between)
    reason = (
        f"the logs of {slower} end first, those of {later} later, and those of the others last: these ranks stand at "
        "different places, or not all of their logs go to the end"
    )
    collect = [f"collect the end of the logs of {slower} and {later}", stacks_of(f"{slower} and {later}")]
    alternatives = [
        Alternative(diagnosis.verdict, first, f"the logs of {slower} go to the end of their runs"),
        Alternative(diagnosis.verdict, between, f"those of {later} do, and those of {slower} do not"),
    ]
    answer = undecided(reason, collect, diagnosis, between=alternatives)
    answer.key, answer.call = diagnosis.key, diagnosis.call
    return answer


def find_end_in_setup(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where the log of a culprit ends in the middle of NCCL's work, or those of most that wait for it do.

    Such a culprit did not stop before a call. Connecting takes seconds on a large job, and only the neighbours of a
    rank that does not come have to wait in it: where most others still connect, a running job comes to the call later.
    """
    culprits = set(diagnosis.culprits)
    waiters = {edge.waiter for edge in job.waits if not culprits.isdisjoint(edge.waits_for)}
    connecting = job.unfinished_setups.keys() & waiters
    are_most = len(connecting) * 2 > len(waiters)
    ranks = sorted(job.unfinished_setups.keys() & culprits) or (sorted(connecting) if are_most else [])
    if not ranks:
        return None
    names = job.names(ranks)
    reason = (
        f"the log of {names} ends while NCCL connects it for the call it made last: the logs were copied while the job "
        "went on, or lack their ends, or a rank did not come to this call"
    )
    collect = [f"collect the end of the log of {names}", stacks_of(job.names(culprits))]
    accusation = Alternative(diagnosis.verdict, diagnosis.culprits, "these logs go to the end of the run")
    setups = [job.unfinished_setups[rank_id] for rank_id in ranks[:3]]
    return undecided(reason, collect, diagnosis, between=[accusation], context=setups)
