"""Find failures of the transport, or of a GPU, where all ranks made the same calls."""

from __future__ import annotations

from ncclforensics.analyses.job.ends.failure_events import HARD, LOST, NETWORK
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Detail, Kind
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.nccl_sources import BOOTSTRAP_FILE, is_top_file
from ncclforensics.data.variables import COLLECT_CALLS
from ncclforensics.frames.columns import printed_hosts

MOST_PEERS = 3  # named in a reason


def find_failed_call(job: Job, lagging: list[int]) -> Explanation | None:
    """Answer where these ranks are one call behind, in the call in which a transfer of one of them failed.

    Ranks leave a call at different times, for upstream of the failed transfer some have all of their data, and a
    program may ask for the next call before. The others are not behind because of anything that they did.
    """
    blamed = set(lagging)
    failures = [event for event in job.failure_events if event.kind == NETWORK and job.is_fatal(event)]
    own = [event for event in failures if event.rank_id in blamed]
    calls = [call for rank_id in lagging if (call := job.last_call(rank_id)) is not None]
    is_one_call = len(calls) == len(lagging) and len({(call.key, call.nth) for call in calls}) == 1
    awaited = [edge for edge in job.awaited_calls if not blamed.isdisjoint(edge.waits_for)]
    if not own or not is_one_call or job.lag(lagging) != 1 or {edge.key for edge in awaited} != {calls[0].key}:
        return None
    failing = job.names(sorted({event.rank_id for event in own if event.rank_id is not None}))
    on_way = job.names(sorted({edge.waiter for edge in awaited}))
    reason = (
        f"a transfer of {failing} failed, and its last call is this one, which all ranks made; {on_way} made the next "
        "one, too"
    )
    diagnosis = Explanation(Kind.STUCK_TOGETHER, reason, [Doubt.TRANSPORT_SURVIVED], victims=[*job.rank_ids])
    diagnosis.detail = Detail.LEFT_BY_SOME
    diagnosis.key, diagnosis.call, diagnosis.nth = calls[0].key, calls[0], calls[0].nth
    return diagnosis.add_evidence(failure=own[:4], waiting=calls[:2])


def find_transport_failure(job: Job) -> Explanation | None:
    """Find failures of the transport or a GPU where all ranks made the same calls."""
    failures = [event for event in job.failure_events if event.kind in (HARD, NETWORK, LOST) and job.is_fatal(event)]
    aborted = [row for row in job.memberships if row.end in ("Abort", "Revoke")]
    if not failures:
        return None
    local_faults = [event for event in failures if event.kind == HARD]
    cited = local_faults or failures
    silent = [rank_id for rank_id in job.rank_ids if not job.last_call(rank_id)]
    if not job.calls.height:
        is_local = bool(local_faults) or {event.form for event in failures} == {"system_call"}
        peers = [] if is_local else list(dict.fromkeys(str(event.peer) for event in failures if event.peer))
        named = ", ".join(peers[:MOST_PEERS])
        hosts = printed_hosts(dict.fromkeys(event.host for event in failures))
        of_hosts = f" of {some_of(hosts, MOST_PEERS)}" * bool(hosts)
        lost = f"communication{of_hosts}{f' with {named}' * bool(peers)} failed"
        cause = "a rank reports a fault of its own" if is_local else lost
        is_early = any(is_top_file(event.unwound, (BOOTSTRAP_FILE,)) for event in job.failure_events)
        cause += ", in the bootstrap, where the processes of a communicator meet" * is_early
        reason = f"{cause}; no line of NCCL shows the call that the ranks were in"
        of_peers = [f"collect the logs and the output of the processes at {named}"] * bool(peers)
        diagnosis = undecided(reason, of_peers + COLLECT_CALLS)
    elif job.absent and not local_faults:
        absent = ranks_text(job.absent)
        reason = f"all ranks in these logs made the same calls, then connections failed; no log of {absent} was given"
        diagnosis = undecided(reason, [f"collect the log of {absent}"], suspects=job.absent)
    elif silent and not local_faults:
        reason = f"connections failed, and the lines of {job.names(silent)} show no calls"
        diagnosis = undecided(reason, COLLECT_CALLS, suspects=job.rank_numbers(silent))
    else:
        reason = "all ranks made the same calls, and then the transport or a GPU failed"
        diagnosis = Explanation(Kind.STUCK_TOGETHER, reason, [Doubt.TRANSPORT_SURVIVED])
    diagnosis.culprits = (
        sorted({event.rank_id for event in local_faults if event.rank_id is not None})
        if len(local_faults) < len(job.rank_ids)
        else []
    )
    diagnosis.victims = [rank_id for rank_id in job.rank_ids if rank_id not in diagnosis.culprits]
    last = max(job.describe(job.calls.tail(1)), key=lambda row: row.pos, default=None)
    diagnosis.key, diagnosis.call = (last.key, last) if last else (None, None)
    return diagnosis.add_evidence(failure=cited[:4], context=[member.place_of_end for member in aborted[:2]])
