"""Judge ranks that others wait for where these may wait themselves: in a call that another rank left out, or a message.

A call that a log lacks while the rank goes on was left out by the rank, or its line was lost; no line tells which.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.wait_cycle import skipped_or_lost
from ncclforensics.analyses.verdict.rows import Gap
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.variables import STACKS_OF_HOST


def doubt_left_out_calls(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Doubt a diagnosis of ranks behind by the calls that logs lack; return an undecided answer if it is open."""
    keys = {row.key for row in job.memberships if row.rank_id in diagnosis.culprits}
    gaps = [gap for gap in job.gaps if gap.is_lost is None and gap.missing > 0 and gap.key in keys]
    others = sorted({gap.rank_id for gap in gaps} - set(diagnosis.culprits))
    if others and _stand_in_a_communicator_of(job, diagnosis.culprits, gaps, others):
        return skipped_or_lost(job, others, diagnosis.culprits, diagnosis)
    if others:
        diagnosis.doubt(
            Doubt.LINE_LOST,
            f"but {job.names(others)} shows a call less on a communicator of theirs: if the "
            "rank left it out, and its log did not lose the line, their calls differ",
        )
    if diagnosis.verdict == Kind.LAGGING and (passed := _ranks_past_their_call(job, diagnosis.culprits)):
        diagnosis.culprits = [rank_id for rank_id in diagnosis.culprits if rank_id not in passed] or diagnosis.culprits
        shown = f"the log of {job.names(passed)} shows a call that the others made only after this one"
        diagnosis.doubt(Doubt.MADE_BEHIND, f"but {shown}, so it lacks lines before")
    return _doubt_messages_of_unknown_peers(job, diagnosis)


def _ranks_past_their_call(job: Job, culprits: list[int]) -> list[int]:
    """Return the ranks whose last call most others made only after the collective that these ranks lack.

    The others may have made it on communicators of their own: these are of the same index among those of their rank.
    """
    collectives = [edge for edge in reversed(job.awaited_calls) if edge.kind == "collective"]
    lacking = {rank_id: edge for edge in collectives for rank_id in edge.waits_for}
    calls = {rank_id: job.last_call(rank_id) for rank_id in culprits if rank_id in lacking}
    last = {rank_id: call for rank_id, call in calls.items() if call is not None and call["nth"] is not None}
    nths = {nth for rank_id, call in last.items() for nth in (lacking[rank_id].nth, call["nth"])}
    made: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (index, nth) -> rank id -> position
    near = job.calls.filter(pl.col("nth").is_in(sorted(nths)) & ~pl.col("rank_id").is_in(culprits))
    for rank_id, key, nth, position in near.select("rank_id", "key", "nth", "pos").iter_rows():
        made[job.communicator_index[rank_id, key], nth][rank_id] = position
    passed = []
    for rank_id, call in last.items():
        before, after = (
            made[job.communicator_index.get((rank_id, key), -1), nth]
            for key, nth in ((lacking[rank_id].key, lacking[rank_id].nth), (call["key"], call["nth"]))
        )
        orders = [before[other] < after[other] for other in before.keys() & after.keys()]
        if sum(orders) * 2 > len(orders):
            passed.append(rank_id)
    return passed


def _stand_in_a_communicator_of(job: Job, culprits: list[int], gaps: list[Gap], left_out: list[int]) -> bool:
    """Whether each culprit's last call is on a communicator of which another log lacks a call."""
    keys = {gap.key for gap in gaps if gap.rank_id in left_out}
    return all((call := job.last_call(rank_id)) is not None and call["key"] in keys for rank_id in culprits)


def _doubt_messages_of_unknown_peers(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Doubt a diagnosis of ranks that exchange messages on communicators whose members are guessed, or not heard.

    Which Send belongs to which Recv is not known there: each of these may wait in one.
    """
    guessed = [key for key in job.members if job.holds_several(key) or job.count_unseen_members(key)]
    unknown = [rank_id for rank_id in diagnosis.culprits if guessed and _sends_on(job, rank_id, guessed)]
    if not unknown:
        return None
    names = job.names(diagnosis.culprits)
    reason = "these logs do not show which messages were answered"
    if len(diagnosis.culprits) > 1 and len(unknown) == len(diagnosis.culprits):
        reason = f"the others wait for {names}; but {reason}: each of these may wait for a message"
        collect = [f"collect logs from their beginning, or take the stacks of {names}: `{STACKS_OF_HOST}`"]
        alternatives = [
            Alternative(diagnosis.verdict, [rank_id], "the others wait for a message of it") for rank_id in unknown
        ]
        return undecided(reason, collect, diagnosis, between=alternatives)
    diagnosis.doubt(Doubt.PEER_UNKNOWN, f"but {reason}, and it may wait for one")
    return None


def _sends_on(job: Job, rank_id: int, keys: list[str]) -> bool:
    """Whether a rank sent or received a message on one of these communicators."""
    own = job.calls_of(rank_id)
    is_message = job.names_of(own).is_in(["Send", "Recv"])
    return bool((is_message & own["key"].cast(pl.String).is_in(keys)).any())
