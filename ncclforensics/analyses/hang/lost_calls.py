"""Decide whether calls that differ are lines that logs lost: then they show no rank that left the program.

A line that is lost makes a rank's later calls stand one place too early. It makes no call that no other rank made, and
a fault of the program does not strike at several places at once, as a collector does that loses lines.
"""

from __future__ import annotations

from collections import defaultdict

from ncclforensics.analyses.hang.job import Job
from ncclforensics.analyses.job.calls import count_every_call
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.data.versions import releases

COLLECT_AS_WRITTEN = [
    "collect the logs as the ranks wrote them (NCCL_DEBUG_FILE), not from the collector that lost lines"
]


def is_made_elsewhere(job: Job, key: str, nth: int, differing: set[int]) -> bool:
    """Whether every call that differs at a place stands at another place in the log of a rank that does not differ.

    Where all members differ, as two do, it is asked of each of them and the others.
    """
    signatures = job.signatures([key])
    made: dict[int, set[int]] = defaultdict(set)  # signature -> ranks that made such a call anywhere
    for rank_id, signature in signatures.select("rank_id", "signature").unique().iter_rows():
        made[signature].add(rank_id)
    at_place = dict(signatures.filter(nth=nth).select("rank_id", "signature").iter_rows())
    has_majority = bool(at_place.keys() - differing)
    return all(
        made[at_place[rank_id]] - {rank_id} - (differing if has_majority else set())
        for rank_id in differing & at_place.keys()
    )


def counts_every_call(job: Job) -> bool:
    """Whether NCCL's counter counts every call, so that it tells a call that was left out from a line that was lost."""
    return count_every_call(releases(job.releases))


def find_lost_lines(job: Job, differences: list[Explanation]) -> set[int]:
    """Return the ranks whose logs lack lines, where the differences may be lost lines, too; else an empty set.

    Each of them lacks a call that others made, or has one more. One rank that does shows a fault of the program; others
    that do as well, at other places, show lost lines. A counter that counts every call tells it of each rank.
    """
    culprits = {rank_id for diagnosis in differences for rank_id in diagnosis.culprits}
    # Of a culprit, only the counter tells: it may have left out calls on several communicators.
    gaps = [gap for gap in job.gaps if gap["nth"] and gap["missing"] > 0]
    lacking = {gap["rank_id"] for gap in gaps if gap["is_lost"] or gap["rank_id"] not in culprits}
    lacking |= set(job.counter_jumps)
    if counts_every_call(job):
        return lacking if lacking & culprits else set()
    places = {diagnosis.call["nth"] for diagnosis in differences if diagnosis.call is not None}
    shared = set.intersection(*(set(diagnosis.culprits) for diagnosis in differences))
    return culprits | lacking if lacking or (len(places) > 1 and not shared) else set()


def answer_lost_lines(job: Job, rank_ids: set[int], differences: list[Explanation]) -> Explanation:
    """Answer that lines of calls were lost, so that no rank can be said to have left the program."""
    reason = (
        f"calls differ in the logs of {job.names(rank_ids)} as where a log collector loses lines: one rank that leaves "
        "out a call does not make them differ like this"
    )
    between = [Alternative(one.verdict, one.culprits, "the other logs lost lines") for one in differences]
    answer = undecided(reason, COLLECT_AS_WRITTEN, between=between)
    for difference in differences[:2]:
        answer.add_evidence("context", difference.evidence_lines[:2])
    return answer
