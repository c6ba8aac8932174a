"""Judge ranks that others wait for where these may wait themselves: in a call that another rank left out, or a message.

A call that a log lacks while the rank goes on was left out by the rank, or its line was lost; no line tells which.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.job import Job, Row
from ncclforensics.analyses.hang.wait_cycle import culprits_without, find_ranks_past_their_call, holds_several
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import STACKS_OF_HOST, stacks_of


def undecided(job: Job, diagnosis: Explanation, reason: str, rank_ids: list[int], collect: list[str]) -> Explanation:
    """Return `undecidable` instead of culprits whose calls may be missing only from the logs."""
    answer = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], victims=diagnosis.victims, collect=collect)
    answer.add_evidence("context", [job.last_line(rank_id) for rank_id in rank_ids[:3]])
    return answer


def weigh_left_out_calls(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Lower a diagnosis of ranks behind by the calls that logs lack; return another answer if it is open."""
    keys = {row["key"] for row in job.memberships if row["rank_id"] in diagnosis.culprits}
    gaps = [gap for gap in job.gaps if gap["is_lost"] is None and gap["missing"] > 0 and gap["key"] in keys]
    others = sorted({gap["rank_id"] for gap in gaps} - set(diagnosis.culprits))
    if others and _stand_in_a_communicator_of(job, diagnosis.culprits, gaps, others):
        return _skipped_or_behind(job, diagnosis, others)
    if others:
        diagnosis.doubt(
            Doubt.LINE_LOST,
            f"but {ranks_text(job.rank_numbers(others))} shows a call less on a communicator of theirs: if the "
            "rank left it out, and its log did not lose the line, their calls differ",
        )
    if open_answer := _weigh_later_calls(job, diagnosis):
        return open_answer
    if diagnosis.culprits and all(_ends_within_shared_init(job, rank_id) for rank_id in diagnosis.culprits):
        names = ranks_text(job.rank_numbers(diagnosis.culprits)) or "some ranks"
        reason = (
            f"the others wait for {names}, but that log ends within an init that the others completed: its end is "
            "missing, so a missing call proves nothing"
        )
        return undecided(job, diagnosis, reason, diagnosis.culprits, [f"collect the whole log of {names}"])
    weigh_unfinished_logs(job, diagnosis)
    return _judge_messages_of_unknown_peers(job, diagnosis)


def _weigh_later_calls(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Lower a diagnosis of ranks that made a call which the program has behind the one that they lack.

    They did not stop before it: they left it out, or their logs lost lines. Those that made none remain the culprits.
    The answer is open where as few other ranks are to blame if these lines were lost.
    """
    awaited = {
        rank_id: edge
        for edge in reversed(job.awaited_calls)
        if edge["kind"] == "collective"
        for rank_id in edge["waits_for"]
        if rank_id in diagnosis.culprits
    }
    passed = find_ranks_past_their_call(job, awaited)
    if not passed:
        return None
    if len(passed) == len(diagnosis.culprits):
        others = culprits_without(job, {rank_id: awaited[rank_id] for rank_id in passed})
        if 0 < len(others) <= len(passed):
            return _skipped_or_lost(job, diagnosis, others)
    names = ranks_text(job.rank_numbers(passed)) or "a rank"
    diagnosis.remark(f"or the log of {names} lost lines, for it shows a call that the others made only after this one")
    diagnosis.culprits = [rank_id for rank_id in diagnosis.culprits if rank_id not in passed] or diagnosis.culprits
    diagnosis.doubt(Doubt.MADE_BEHIND)
    return None


def _skipped_or_lost(job: Job, diagnosis: Explanation, others: list[int]) -> Explanation:
    """Answer where the culprits left out a call, or their logs lost its line and other ranks stopped the job."""
    skipping, blamed = (ranks_text(job.rank_numbers(ranks)) or "a rank" for ranks in (diagnosis.culprits, others))
    reason = (
        f"{skipping} left out a call that the others wait in, or the log of {skipping} lost its line: then {blamed} "
        "is in another call than the others, or stopped before theirs"
    )
    collect = [stacks_of(f"{skipping} and {blamed}")]
    return undecided(job, diagnosis, reason, [*diagnosis.culprits, *others], collect)


def weigh_unfinished_logs(job: Job, diagnosis: Explanation) -> None:
    """Lower a diagnosis of ranks whose logs end within an init that the others came through with them."""
    unfinished = [rank_id for rank_id in diagnosis.culprits if _ends_within_shared_init(job, rank_id)]
    if unfinished:
        names = ranks_text(job.rank_numbers(unfinished)) or "this rank"
        diagnosis.doubt(
            Doubt.CUT_IN_SETUP, f"but the log of {names} ends within an init that the others completed: it may be cut"
        )


def _ends_within_shared_init(job: Job, rank_id: int) -> bool:
    """Whether a log without calls lacks the end of an init that all other members with a log came through.

    They connect to this rank in it, so it came further than its log.
    """
    if job.last_call(rank_id) is not None:
        return False
    begun = [row for row in job.memberships if row["rank_id"] == rank_id and not row["is_complete"]]
    others = [[row for row in job.members[row["key"]] if row["rank_id"] != rank_id] for row in begun]
    return any(members and all(row["is_complete"] for row in members) for members in others)


def _stand_in_a_communicator_of(job: Job, culprits: list[int], gaps: list[Row], left_out: list[int]) -> bool:
    """Whether each culprit's last call is on a communicator of which another log lacks a call."""
    keys = {gap["key"] for gap in gaps if gap["rank_id"] in left_out}
    return all((call := job.last_call(rank_id)) is not None and call["key"] in keys for rank_id in culprits)


def _skipped_or_behind(job: Job, diagnosis: Explanation, left_out: list[int]) -> Explanation:
    """Answer where the culprits may wait for a rank that left out a call, unless its log lost the line."""
    skipping, waiting = (ranks_text(job.rank_numbers(ranks)) or "a rank" for ranks in (left_out, diagnosis.culprits))
    reason = (
        f"{skipping} left out a call that {waiting} stands in, or the log of {skipping} lost its line and {waiting} is "
        "the rank that the others wait for"
    )
    collect = [stacks_of(f"{skipping} and {waiting}")]
    return undecided(job, diagnosis, reason, [*left_out, *diagnosis.culprits], collect)


def _judge_messages_of_unknown_peers(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Lower a diagnosis of ranks that exchange messages on communicators whose members are guessed, or not heard.

    Which Send belongs to which Recv is not known there: each of these may wait in one.
    """
    guessed = {
        key
        for key in job.members
        if holds_several(job, key) or job.has_guessed_members(key) or job.count_unseen_members(key)
    }
    unknown = [rank_id for rank_id in diagnosis.culprits if guessed and _sends_on(job, rank_id, guessed)]
    if not unknown:
        return None
    names = ranks_text(job.rank_numbers(diagnosis.culprits)) or "these ranks"
    reason = "these logs do not show which messages were answered"
    if len(diagnosis.culprits) > 1 and len(unknown) == len(diagnosis.culprits):
        reason = f"the others wait for {names}; but {reason}: each of these may wait for a message"
        collect = [f"collect logs from their beginning, or take the stacks of {names}: `{STACKS_OF_HOST}`"]
        return undecided(job, diagnosis, reason, diagnosis.culprits, collect)
    diagnosis.doubt(Doubt.PEER_UNKNOWN, f"but {reason}, and it may wait for one")
    return None


def _sends_on(job: Job, rank_id: int, keys: set[str]) -> bool:
    """Whether a rank sent or received a message on one of these communicators."""
    own = job.calls_of(rank_id)
    names = job.names_of(own)
    is_message = names.is_in(["Send", "Recv"])
    return bool((is_message & own["key"].cast(pl.String).is_in(list(keys))).any()) if own.height else False
