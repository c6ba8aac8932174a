"""Find failures of the transport, or of a GPU, where all ranks made the same calls."""

from __future__ import annotations

from ncclforensics.analyses.hang.job import Job
from ncclforensics.analyses.job.failure_events import HARD, LOST, NETWORK
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import COLLECT_CALLS

MOST_PEERS = 3  # named in a reason


def find_transport_failure(job: Job) -> Explanation | None:
    """Find failures of the transport or a GPU where all ranks made the same calls."""
    failures = [event for event in job.failure_events if event["kind"] in (HARD, NETWORK, LOST) and job.is_fatal(event)]
    aborted = [row for row in job.memberships if row["end"] in ("Abort", "Revoke")]
    if not failures and not job.is_partly_aborted:
        return None
    local_faults = [event for event in failures if event["kind"] == HARD]
    cited = local_faults or failures
    if not job.calls.height:
        is_local = bool(local_faults) or {event["form"] for event in failures} == {"system_call"}
        peers = [] if is_local else list(dict.fromkeys(str(event["peer"]) for event in failures if event["peer"]))
        to_peers = f" to {', '.join(peers[:MOST_PEERS])}" if peers else ""
        cause = "a rank reports a fault of its own" if is_local else f"connections{to_peers} failed"
        reason = f"{cause}; these logs contain no calls, so they do not show which call it stopped"
        of_peers = (
            [f"collect the logs and the output of the processes{to_peers.replace(' to', ' at')}"] if peers else []
        )
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=of_peers + COLLECT_CALLS)
    elif job.absent and not local_faults:
        absent = ranks_text(job.absent)
        reason = f"all ranks in these logs made the same calls, then connections failed; no log of {absent} was given"
        diagnosis = Explanation(
            Kind.UNDECIDABLE, reason, [Doubt.OPEN], suspects=job.absent, collect=[f"collect the log of {absent}"]
        )
    elif (silent := [rank_id for rank_id in job.rank_ids if not job.last_call(rank_id)]) and not local_faults:
        numbers = job.rank_numbers(silent)
        event = "connections failed" if failures else "ranks aborted their communicators"
        reason = f"{event}, and the lines of {ranks_text(numbers) or 'other ranks'} show no calls"
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], suspects=numbers, collect=COLLECT_CALLS)
    else:
        diagnosis = Explanation(
            Kind.STUCK_TOGETHER,
            "all ranks made the same calls, and then the transport or a GPU failed",
            [Doubt.TRANSPORT_SURVIVED],
        )
    if not failures:
        diagnosis.doubt(Doubt.NO_FAILURE_SHOWN)
    diagnosis.culprits = (
        sorted({event["rank_id"] for event in local_faults if event["rank_id"] is not None})
        if len(local_faults) < len(job.rank_ids)
        else []
    )
    diagnosis.victims = [rank_id for rank_id in job.rank_ids if rank_id not in diagnosis.culprits]
    last = max(job.describe(job.calls.tail(1)), key=lambda row: row["pos"], default=None)
    diagnosis.key, diagnosis.call = (last["key"], last) if last else (None, None)
    diagnosis.add_evidence("failure", cited[:4])
    diagnosis.add_evidence(
        "context", [{**row, "source": row["end_source"], "line": row["end_line"]} for row in aborted[:2]]
    )
    return diagnosis
