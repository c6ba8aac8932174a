"""Judge whether a job stood still: what shows it, what contradicts it, and how sure a verdict may be without either.

That one rank made fewer calls than another shows nothing by itself: a healthy job that is copied while it runs, or
ended by its scheduler, has unequal ends too. NCCL prints a call when it is enqueued and nothing when it completes.
"""

from __future__ import annotations

from ncclforensics.analyses.hang.job import Diagnosis, Job
from ncclforensics.analyses.job.exit_reports import CAPTURE, SIGNAL
from ncclforensics.analyses.job.failure_events import HARD, LOST, NETWORK, REFUSED
from ncclforensics.analyses.job.torch_text import BARRIER, STORE, TIMED_OUT

# Verdicts that compare where the logs end: they hold only if the job stood still.
FROM_ENDS = ("lagging-ranks", "p2p-unmatched", "cross-communicator-deadlock", "init-incomplete", "rank-missing")
LONG_LAG = 32  # collectives behind the others; a host does not enqueue that many on one communicator ahead of a GPU
MOST_CULPRITS = 0.25  # share of the ranks
MOST_ENDS = 2  # different numbers of calls in a hang, and one more for each communicator of a rank
MANY_LINES = 20  # of the application behind the last line of NCCL: the process went on
FAILURES = {HARD: "failure", NETWORK: "failure", LOST: "lost-connection", REFUSED: "failure"}


def find_stall_evidence(job: Job) -> list[str]:
    """Name what shows that the job stood still or failed, as in the contract's `standstill.by`."""
    kinds = []
    if job.timeouts or job.desyncs:
        kinds.append("watchdog")
    if any(row["kind"] in (TIMED_OUT, BARRIER, STORE) for row in job.pytorch["torch_error"]):
        kinds.append("timeout")
    if len(job.snapshots) > 1:
        kinds.append("ras")
    if any(row["end"] in ("Abort", "Revoke") for row in job.memberships):
        kinds.append("abort")
    kinds += [
        FAILURES[event["kind"]] for event in job.failure_events if event["kind"] in FAILURES and job.is_fatal(event)
    ]
    kinds += ["capture" for row in job.process_exits if row["is_first"] and row["reporter"] == CAPTURE]
    return list(dict.fromkeys(kinds))


def weigh_stall(job: Job, diagnosis: Diagnosis) -> Diagnosis:
    """Lower the certainty of a verdict that rests on where the logs end, unless a sign shows that the job stood still.

    A job that destroyed all its communicators came to its end: then unequal ends are lost lines.
    """
    diagnosis.stall_evidence = find_stall_evidence(job)
    diagnosis.rests_on_stall = diagnosis.verdict in FROM_ENDS and not diagnosis.stall_evidence
    if not diagnosis.rests_on_stall:
        return diagnosis
    if job.is_finished:
        reason = "every rank destroyed its communicators, so the calls that some logs lack are lines that were lost"
        return Diagnosis("no-hang", reason, "likely")
    diagnosis.lower_certainty("likely")
    diagnosis.reason += "; no line shows that the job stood still"
    has_later_output = any(job.application_lines_after(rank_id) > MANY_LINES for rank_id in job.rank_ids)
    lag = max((job.lag(rank_id) for rank_id in diagnosis.culprits), default=0)
    is_ordinary = _has_staggered_ends(job) or _are_many(job, diagnosis.culprits) or _was_ended(job)
    if is_ordinary or has_later_output or lag > LONG_LAG:
        diagnosis.lower_certainty("possible")
    return diagnosis


def _was_ended(job: Job) -> bool:
    """Whether a scheduler cancelled the job, or most of its processes were ended by a signal."""
    ended = {row["rank_id"] for row in job.process_exits if row["how"] == SIGNAL}
    return job.is_cancelled or len(ended) * 2 > len(job.rank_ids)


def _are_many(job: Job, culprits: list[int]) -> bool:
    """Whether so many ranks are behind that they are rather the slower part of a running job, unless hosts stopped."""
    hosts = {job.rank_ids[rank_id]["host"] for rank_id in culprits}
    on_these_hosts = [rank_id for rank_id, row in job.rank_ids.items() if row["host"] in hosts]
    stopped_hosts = len(on_these_hosts) == len(culprits) and len(culprits) < len(job.rank_ids)
    return len(culprits) > MOST_CULPRITS * len(job.rank_ids) and len(culprits) > 1 and not stopped_hosts


def _has_staggered_ends(job: Job) -> bool:
    """Whether ranks made so many different numbers of calls that no single waiting point explains them.

    A hang stops the others at one place of the program for each communicator that they wait in; ranks of a running
    job are spread over more.
    """
    made = job.calls.group_by("rank_id").len()["len"]
    communicators = max(job.communicator_index.values(), default=0) + 1
    return made.n_unique() > MOST_ENDS + communicators
