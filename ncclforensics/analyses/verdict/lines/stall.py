"""Judge whether a job stood still: what shows it, what contradicts it, and how sure a verdict may be without either.

That one rank made fewer calls than another shows nothing by itself: a healthy job that is copied while it runs, or
ended by its scheduler, has unequal ends too. It shows that this rank holds the others up only if its log goes to the
end of its run. NCCL prints a call when it is enqueued and nothing when it completes.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import CAPTURE, SIGNAL, STALLED, TAKEN_DOWN
from ncclforensics.analyses.job.ends.failure_events import HARD, LOST, NETWORK, REFUSED
from ncclforensics.analyses.job.text.torch_text import BARRIER, STORE, TIMED_OUT
from ncclforensics.analyses.verdict.axioms import SELDOM_AHEAD
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.sources.stacks import is_standing_still
from ncclforensics.analyses.verdict.vocabulary import FROM_ENDS, Kind, Sign
from ncclforensics.data.variables import COLLECT_PROGRESS, stacks_of

MOST_CULPRITS = 0.25  # share of the ranks
MANY_LINES = 20  # of the application behind the last line of NCCL: the process went on
PROGRESS = ("[Progress Thread]", "[Proxy Thread]")  # behind an error that such a thread returned
LONG_SILENCE = 60.0  # seconds without a call, and
FIRST_CALL = 5_000  # milliseconds that a call may take in a healthy job, as the first one, which makes connections
MOTION = 1.0  # seconds from the last call to the end of a job that ran until then
PACES = 5  # times the longest time between two calls of a rank before
# What an orderly end may show as well: PyTorch aborts communicators when a process exits, and an evaluation or a
# checkpoint makes no calls. A verdict that rests on it is not certain.
WEAK = {Sign.ABORT, Sign.SILENCE, Sign.STATED}
FAILURES = {HARD: Sign.FAILURE, NETWORK: Sign.FAILURE, LOST: Sign.LOST_CONNECTION, REFUSED: Sign.FAILURE}


def find_stall_evidence(job: Job) -> list[Sign]:
    """Name what shows that the job stood still or failed, as in the contract's `standstill.by`."""
    kinds: list[Sign] = []
    if job.text.desyncs:
        kinds.append(Sign.WATCHDOG)
    elif any(row.is_timeout and row.interrupted for row in job.timeouts):
        kinds.append(Sign.FAILURE)  # ranks wait for one that was interrupted
    elif any(row.is_timeout for row in job.timeouts):
        waits = [row.waited for row in job.timeouts if row.waited is not None]
        kinds.append(Sign.WATCHDOG if not waits or max(waits) >= FIRST_CALL else Sign.FAILURE)
    # A rank that came to a monitored barrier and lost rank 0 there does not show that a time-out was over.
    has_expired = any(row["timeout"] for row in job.pytorch["monitored_barrier"])
    if any(row.kind in (TIMED_OUT, STORE, *[BARRIER] * has_expired) for row in job.torch_errors):
        kinds.append(Sign.TIMEOUT)
    if len(job.snapshots) > 1:
        kinds.append(Sign.RAS)
    if is_standing_still(job):
        kinds.append(Sign.STACKS)
    if _is_partly_aborted(job):
        kinds.append(Sign.ABORT)
    if _silence(job):
        kinds.append(Sign.SILENCE)
    if job.text.reports_stall:
        kinds.append(Sign.STATED)
    kinds += [FAILURES[event.kind] for event in job.failure_events if event.kind in FAILURES and job.is_fatal(event)]
    kinds += [Sign.STALLED] * (STALLED in job.text.captured_ends)
    kinds += [Sign.CAPTURE for row in job.process_exits if row.is_first and row.reporter == CAPTURE]
    return list(dict.fromkeys(kinds))


def _is_partly_aborted(job: Job) -> bool:
    """Whether some ranks aborted a communicator and others did not; PyTorch aborts them at an orderly end, too."""
    aborted = {row.rank_id for row in job.memberships if row.end in ("Abort", "Revoke")}
    return bool(aborted) and aborted != {row.rank_id for row in job.memberships}


def doubt_stall(job: Job, diagnosis: Explanation) -> Explanation:
    """Doubt a verdict that rests on where the logs end, unless a sign shows that the job stood still."""
    evidence = job.stall_evidence
    if not evidence and (diagnosis.verdict in FROM_ENDS or diagnosis.suspects) and _was_ended_in_motion(job):
        reason = "ranks made calls until the job was ended, so that some made fewer than others shows nothing"
        return undecided(reason, COLLECT_PROGRESS, diagnosis)
    is_from_ends = diagnosis.verdict in FROM_ENDS or diagnosis.rests_on_stall
    diagnosis.rests_on_stall = False
    if not is_from_ends:
        return diagnosis
    is_weak = WEAK.issuperset(evidence)
    answer = find_several_ends(job, diagnosis, is_end_shown=not is_weak) or find_culprits_apart(job, diagnosis)
    if is_weak:
        answer = answer or find_end_in_setup(job, diagnosis)
    if answer is not None:
        return answer
    if {Sign.FAILURE} <= {*evidence} <= {*WEAK, Sign.FAILURE}:
        _doubt_by_network(job, diagnosis)
    if is_weak:
        _doubt_by_ends(job, diagnosis)
    return diagnosis


def _doubt_by_ends(job: Job, diagnosis: Explanation) -> None:
    """Doubt that the job stood still: no sign shows it, or one that an orderly end may show as well."""
    evidence = job.stall_evidence
    diagnosis.rests_on_stall = not evidence
    went_on = Doubt.ABORTED_IN_ORDER if Sign.ABORT in evidence else Doubt.RUNS_ON
    diagnosis.doubt(went_on, _shown_by(job, evidence, len(diagnosis.culprits)) if evidence else "")
    if job.is_ended:
        diagnosis.remarks.append("all ranks ended their communicators, which PyTorch does at an orderly end, too")
    is_of_a_running_job = (
        job.is_ended,
        _are_many(job, diagnosis.culprits),
        _was_ended(job) and Sign.SILENCE not in evidence,
        any(job.application_lines_after(rank_id) > MANY_LINES for rank_id in job.rank_ids),
        job.lag(diagnosis.culprits) > SELDOM_AHEAD,
        _ends_before_others(job, diagnosis.culprits),
    )
    if any(is_of_a_running_job):
        diagnosis.doubt(Doubt.COPIED_WHILE_RUNNING)


def _doubt_by_network(job: Job, diagnosis: Explanation) -> None:
    """Doubt that a rank which makes no call stopped the job, where transfers failed: the network may have, later.

    A NIC answers without its process: that a rank makes no call does not fail transfers, only that it ends does. So
    what failed between other hosts has another cause; what failed to its own may have.
    """
    hosts = {job.rank_ids[rank_id].host for rank_id in diagnosis.culprits}
    if not hosts or not job.reporting.isdisjoint(diagnosis.culprits):
        return
    pairs = [
        (error["host"], error["peer_host"])
        for error in job.run.where("completion_error", job=job.number)
        if error["peer_host"] and not error["is_survived"]
    ]
    if apart := min((pair for pair in pairs if pair[1] not in hosts), default=None):
        diagnosis.doubt(
            Doubt.NETWORK_CAME_LATER,
            f"but transfers between {apart[0]} and {apart[1]} failed, which a rank that makes no call does not "
            "cause: the network may have stopped the job later, behind the end of this log",
        )
    elif pairs:
        diagnosis.doubt(Doubt.NETWORK_OF_ITS_HOST)


def _shown_by(job: Job, evidence: list[Sign], culprits: int) -> str:
    open_question = (
        f", and no line that was read shows whether {'its process' if culprits == 1 else 'their processes'} ended"
    )
    texts = {
        Sign.ABORT: "the others aborted their communicators" + open_question,
        Sign.STATED: "a program says that it makes no progress",
        Sign.SILENCE: f"no rank made a call in the last {int(_silence(job) or 0)} seconds of the logs",
    }
    return " and ".join(texts[kind] for kind in evidence)


def _silence(job: Job) -> float | None:
    """How many seconds before the last line of the job any rank made its last call, if that is long for this job."""
    times = job.last_times.values()
    if not times or any(job.application_lines_after(rank_id) > MANY_LINES for rank_id in job.rank_ids):
        return None
    silence = (max(row["ended"] for row in times) - max(row["called"] for row in times)).total_seconds()
    return silence if silence > _long_for(job) else None


def _ends_before_others(job: Job, culprits: list[int]) -> bool:
    """Whether others went on making calls long after the log of a culprit ends: that log is not the whole one."""
    others = [row["called"] for rank_id, row in job.last_times.items() if rank_id not in culprits]
    own = [job.last_times[rank_id]["printed"] for rank_id in culprits if rank_id in job.last_times]
    return bool(others and own) and (max(others) - min(own)).total_seconds() > _long_for(job)


def _long_for(job: Job) -> float:
    """How many seconds without a call are long for this job."""
    return max(LONG_SILENCE, PACES * max(float(row["pace"]) for row in job.last_times.values()))


def _was_ended(job: Job) -> bool:
    """Whether a scheduler cancelled the job, or most of its processes were ended by a signal."""
    ended = {row.rank_id for row in job.process_exits if row.how == SIGNAL}
    return job.text.is_cancelled or len(ended) * 2 > len(job.rank_ids)


def _was_ended_in_motion(job: Job) -> bool:
    """Whether a scheduler or a capture ended the job right after a call."""
    times = job.last_times.values()
    if not times or not (job.text.is_cancelled or job.text.captured_ends == {TAKEN_DOWN}):
        return False
    last = max(times, key=lambda row: row["called"])
    return float((last["ended"] - last["called"]).total_seconds()) < MOTION + float(last["pace"])


def _are_many(job: Job, culprits: list[int]) -> bool:
    """Whether so many ranks are behind that they are rather the slower part of a running job, unless hosts stopped."""
    have_hosts_stopped = len(job.ranks_on_hosts_of(culprits)) == len(culprits) < len(job.rank_ids)
    return len(culprits) > max(1, MOST_CULPRITS * len(job.rank_ids)) and not have_hosts_stopped


def ranks_that_moved_data(job: Job) -> set[int | None]:
    """Return the ranks in which an error reached the thread that moves the data of calls, which follow init."""
    return {event.rank_id for event in job.failure_events if event.calling_thread in PROGRESS}


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
    least = made[fewest]
    later = [
        rank_id for rank_id in culprits if any(least.get(on, calls) != calls for on, calls in made[rank_id].items())
    ]
    slower = [rank_id for rank_id in culprits if rank_id not in later]
    return _several_ends(job, diagnosis, later, slower) if later else None


def _calls_made(job: Job, rank_ids: list[int]) -> dict[int, dict[tuple[int, int], int]]:
    """Return how many collectives ranks made on each communicator: of this index among their own, and size."""
    return {
        rank_id: {
            (job.communicator_index[rank_id, key], job.members[key][0].nranks): calls
            for key, calls in job.run.collectives_made[rank_id].items()
        }
        for rank_id in rank_ids
    }


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
    return undecided(reason, collect, diagnosis, between=alternatives, key=diagnosis.key, call=diagnosis.call)


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
    unless, setups = "these logs go to the end of the run", [job.unfinished_setups[rank_id] for rank_id in ranks[:3]]
    return undecided(reason, collect, diagnosis, unless=unless, context=setups)
