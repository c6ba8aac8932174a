"""Answers that stay open because logs end at several places, or in the middle of NCCL's work.

That a rank made fewer calls than the others shows that it holds them up only if its log goes to the end of its run.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.hang.job import Job
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import stacks_of

MOST_ENDS = 2  # different numbers of calls in a hang, and one more for each communicator of a rank


def find_several_ends(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where some logs end between those of the culprits and of the others: not all may go to the end."""
    between = _ending_between(job, diagnosis)
    return _several_ends(job, diagnosis, between, diagnosis.culprits) if between else None


def find_several_ends_of_silent_ranks(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer like `find_several_ends` where the others report a failure, and ranks between them and the culprits none.

    The others stand right behind such a rank: it may be the one that stopped, and the log of the culprit is shorter.
    """
    reporting = {event["rank_id"] for event in job.failure_events}
    ended = {row["rank_id"] for row in job.memberships if row["end"] is not None}
    between = set(_ending_between(job, diagnosis)) - reporting - ended
    if not between or not reporting.isdisjoint(diagnosis.culprits):
        return None
    others = set(job.rank_ids) - between - set(diagnosis.culprits)
    are_most = len(others & (reporting | ended)) * 2 > len(others)
    return _several_ends(job, diagnosis, sorted(between), diagnosis.culprits) if are_most else None


def find_culprits_apart(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where culprits stand at different places of the program, though none of them waits for another.

    That two ranks stop by themselves is a coincidence, and that the log of one is shorter than its run is none; unless
    these are all ranks of their hosts, or their logs show the end.
    """
    if diagnosis.verdict != Kind.LAGGING or len(diagnosis.culprits) < 2:
        return None
    ended = {row["rank_id"] for row in job.memberships if row["end"] is not None}
    shown = ended | {event["rank_id"] for event in job.failure_events}
    hosts = {job.rank_ids[rank_id]["host"] for rank_id in diagnosis.culprits}
    is_of_hosts = sum(row["host"] in hosts for row in job.rank_ids.values()) == len(diagnosis.culprits)
    if is_of_hosts or shown.issuperset(diagnosis.culprits):
        return None
    made = _calls_made(job, diagnosis.culprits)
    fewest = min(made, key=lambda rank_id: sum(made[rank_id].values()))
    later = [rank_id for rank_id in diagnosis.culprits if _stands_elsewhere(made[rank_id], made[fewest])]
    if not later:
        return None
    slower = [rank_id for rank_id in diagnosis.culprits if rank_id not in later]
    return _several_ends(job, diagnosis, later, slower)


def _calls_made(job: Job, rank_ids: list[int]) -> dict[int, dict[tuple[int, int], int]]:
    """Return how many collectives ranks made on each communicator: of this index among their own, and size."""
    sizes = {key: int(rows[0]["nranks"]) for key, rows in job.members.items()}
    made: dict[int, dict[tuple[int, int], int]] = {rank_id: {} for rank_id in rank_ids}
    for row in job.last_calls.filter(pl.col("rank_id").is_in(rank_ids)).to_dicts():
        index = job.communicator_index.get((row["rank_id"], row["key"]))
        if index is not None:
            made[row["rank_id"]][index, sizes[row["key"]]] = int(row["calls"])
    return made


def _stands_elsewhere(made: dict[tuple[int, int], int], others: dict[tuple[int, int], int]) -> bool:
    """Whether two ranks made another number of calls on a communicator that both have."""
    return any(others.get(communicator, calls) != calls for communicator, calls in made.items())


def _ending_between(job: Job, diagnosis: Explanation) -> list[int]:
    """The ranks whose logs end between those of the culprits and of most others.

    They made the same call that a culprit lacks, and fewer calls behind it than the others: it did not stop those, so
    it did not stop these either, and one of these logs may only be shorter than the rank's run.
    """
    culprits = set(diagnosis.culprits)
    if diagnosis.verdict not in (Kind.LAGGING, Kind.RANK_DIED) or not culprits:
        return []
    edges = [edge for edge in job.waits if edge["kind"] == "collective" and not culprits.isdisjoint(edge["waits_for"])]
    positions = pl.Series([edge["pos"] for edge in edges], dtype=pl.Int64)
    first: dict[int, int] = {}  # of these calls, by rank: only what stands behind it is counted, of long logs little
    for edge in edges:
        first[edge["waiter"]] = min(edge["pos"], first.get(edge["waiter"], edge["pos"]))
    earliest = pl.Series([first.get(rank_id) for rank_id in range(1 + max(job.rank_ids))], dtype=pl.Int64)
    later_calls = job.calls.select("rank_id", "pos").filter(job.calls["pos"] >= earliest.gather(job.calls["rank_id"]))
    place_from_end = (pl.len() - 1 - pl.int_range(pl.len())).over("rank_id")
    numbered = later_calls.with_columns(calls=place_from_end).filter(pl.col("pos").is_in(positions.implode()))
    calls_behind = {(rank_id, pos): calls for rank_id, pos, calls in numbered.iter_rows()}
    later: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)  # call -> rank id -> calls behind it
    for edge in edges:
        later[edge["key"], edge["nth"]][edge["waiter"]] = calls_behind.get((edge["waiter"], edge["pos"]), 0)
    found: set[int] = set()
    for made in later.values():
        most = max(made.values())
        found |= {rank_id for rank_id, calls in made.items() if calls < most and rank_id in job.awaited_ranks}
    return sorted(found)


def _left_open(diagnosis: Explanation, reason: str, collect: list[str]) -> Explanation:
    """Answer that nothing shows which rank stands: the culprits of a diagnosis may wait like the others."""
    answer = Explanation(
        Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=collect, stall_evidence=diagnosis.stall_evidence
    )
    answer.victims = sorted({*diagnosis.victims, *diagnosis.culprits})
    return answer


def _several_ends(job: Job, diagnosis: Explanation, between: list[int], first: list[int]) -> Explanation:
    """Answer where logs end at several places: nothing shows which of these ranks stands, and whose log is shorter."""
    slower, later = (ranks_text(job.rank_numbers(ranks)) or "some ranks" for ranks in (first, between))
    reason = (
        f"the logs of {slower} end first, those of {later} later, and those of the others last: these ranks stand at "
        "different places, or not all of their logs go to the end"
    )
    collect = [
        f"collect the end of the logs of {slower} and {later}",
        stacks_of(f"{slower} and {later}"),
    ]
    answer = _left_open(diagnosis, reason, collect)
    answer.key, answer.call, answer.evidence_lines = diagnosis.key, diagnosis.call, diagnosis.evidence_lines
    return answer


def have_staggered_ends(job: Job) -> bool:
    """Whether ranks made so many different numbers of calls that no single waiting point explains them.

    A hang stops the others at one place of the program for each communicator that they wait in; ranks of a running
    job are spread over more.
    """
    # The place of the last call, because of a long log only the ends were read.
    made = job.calls.group_by("member").agg(pl.col("rank_id").first(), calls=pl.col("ordinal").max() + 1)
    made_by_rank = made.group_by("rank_id").agg(pl.col("calls").sum())["calls"]
    communicators = max(job.communicator_index.values(), default=0) + 1
    return made_by_rank.n_unique() > MOST_ENDS + communicators


def find_end_in_setup(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where the log of a culprit ends in the middle of NCCL's work: it did not stop before a call."""
    ranks = sorted(job.unfinished_setups.keys() & set(diagnosis.culprits))
    if not ranks:
        return None
    names = ranks_text(job.rank_numbers(ranks)) or "some ranks"
    reason = (
        f"the log of {names} ends while NCCL connects it for the call it made last: it was copied there, or its end is "
        "lost, or this connection does not complete"
    )
    collect = [
        f"collect the end of the log of {names}",
        stacks_of(names),
    ]
    answer = _left_open(diagnosis, reason, collect)
    answer.add_evidence("context", [job.unfinished_setups[rank_id] for rank_id in ranks[:3]])
    return answer


def find_others_in_setup(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where most others still connect for the call that a culprit lacks: in a running job it comes to it later.

    Connecting takes seconds on a large job, and only the neighbours of a rank that does not come have to wait in it.
    """
    culprits = set(diagnosis.culprits)
    waiters = {edge["waiter"] for edge in job.waits if not culprits.isdisjoint(edge["waits_for"])}
    connecting = sorted(waiters & job.unfinished_setups.keys())
    if not waiters or len(connecting) * 2 <= len(waiters):
        return None
    slower, others = (ranks_text(job.rank_numbers(ranks)) or "some ranks" for ranks in (diagnosis.culprits, connecting))
    reason = (
        f"the logs of {others} end while NCCL connects these ranks for a call that {slower} had not made by then: the "
        f"logs were copied while the job went on, or {slower} does not come to this call"
    )
    answer = _left_open(diagnosis, reason, [stacks_of(slower)])
    answer.add_evidence("context", [job.unfinished_setups[rank_id] for rank_id in connecting[:3]])
    return answer
