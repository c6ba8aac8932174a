"""Judge ranks that others wait for where these may wait themselves, in a call that another rank left out.

A call that a log lacks while the rank goes on was left out by the rank, or its line was lost; no line tells which.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.calls.call_alignment import Gap
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.wait_cycle import skipped_or_lost
from ncclforensics.analyses.verdict.vocabulary import Kind


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
    return None


def _ranks_past_their_call(job: Job, culprits: list[int]) -> list[int]:
    """Return the ranks whose last call most others made only after the collective that these ranks lack.

    The others may have made it on communicators of their own: these are of the same index among those of their rank.
    """
    collectives = [edge for edge in reversed(job.awaited_calls) if edge.kind == "collective"]
    lacking = {rank_id: edge for edge in collectives for rank_id in edge.waits_for}
    calls = {rank_id: job.last_call(rank_id) for rank_id in culprits if rank_id in lacking}
    last = {rank_id: (call.key, call.nth) for rank_id, call in calls.items() if call and call.nth is not None}
    nths = {nth for rank_id, (_, last_nth) in last.items() for nth in (lacking[rank_id].nth, last_nth)}
    made: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (index, nth) -> rank id -> position
    near = job.calls.filter(pl.col("nth").is_in(sorted(nths)) & ~pl.col("rank_id").is_in(culprits))
    for rank_id, key, nth, position in near.select("rank_id", "key", "nth", "pos").iter_rows():
        made[job.communicator_index[rank_id, key], nth][rank_id] = position
    passed = []
    for rank_id, last_call in last.items():
        before, after = (
            made[job.communicator_index.get((rank_id, key), -1), nth]
            for key, nth in ((lacking[rank_id].key, lacking[rank_id].nth), last_call)
        )
        orders = [before[other] < after[other] for other in before.keys() & after.keys()]
        if sum(orders) * 2 > len(orders):
            passed.append(rank_id)
    return passed


def _stand_in_a_communicator_of(job: Job, culprits: list[int], gaps: list[Gap], left_out: list[int]) -> bool:
    """Whether each culprit's last call is on a communicator of which another log lacks a call."""
    keys = {gap.key for gap in gaps if gap.rank_id in left_out}
    return all((call := job.last_call(rank_id)) is not None and call.key in keys for rank_id in culprits)
