"""Find the process that ended first, how sure the reports of its end are, and failures of the transport or of a GPU.

The kernel names a process by its pid, which other hosts, containers and earlier days have, too. Launchers of several
nodes print the clocks of these, which may differ by more than the ends that they report.
"""

from __future__ import annotations

from ncclforensics.analyses.job.ends.exit_rows import (
    EXIT,
    IN_TABLE,
    KERNEL,
    RAISED,
    TORCHRUN,
    ProcessExit,
    ended_text,
    seen_first,
)
from ncclforensics.analyses.job.ends.failure_events import HARD, LOST, NETWORK
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.waiting import cite_first_missing_call, one_of_these_died
from ncclforensics.analyses.verdict.vocabulary import Detail, Kind
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.nccl_sources import BOOTSTRAP_FILE, is_top_file
from ncclforensics.data.processes import signal_name
from ncclforensics.data.variables import COLLECT_CALLS
from ncclforensics.frames.columns import printed_hosts

MOST_NAMED = 3
UNREACHABLE = ("missing", "dead")  # states of a process in a RAS report


def find_first_exit(job: Job) -> Explanation | None:
    """Find the process that ended first, as its launcher, the kernel or its own last lines report."""
    active = {row.rank_id for row in job.memberships if row.end is None}
    finished = {row.rank_id for row in job.memberships} - active
    # A rank that raised ends its communicators in its teardown, while the others wait in theirs.
    exits = [row for row in job.process_exits if row.is_first and row.is_final]
    finished.difference_update(row.rank_id for row in exits if active and row.how in RAISED)
    ends = {rank_id: row for rank_id, row in job.first_ends.items() if rank_id not in finished}
    ends = {rank_id: row for rank_id, row in ends.items() if row.how != EXIT} or ends
    culprits = sorted(ends)
    if not culprits or len(culprits) == len(job.rank_ids):
        return None  # all ended: either the job was stopped, or all share a fault and none waits
    if len(culprits) > 1 and all(row.is_by_clock for row in ends.values()):
        culprits = [rank_id for rank_id in culprits if rank_id in job.awaited_ranks - job.sets_awaited_by.keys()]
        if len(culprits) != 1:
            return _one_ended_first(job, ends)
    strongest = [row for rank_id, row in ends.items() if rank_id in culprits]
    is_placed = any(row.is_placed for row in strongest)
    is_tied = any(row.is_tied for row in strongest)
    are_others_awaited = bool(job.awaited_ranks) and job.awaited_ranks.isdisjoint(culprits)
    is_awaited = not (job.awaited_ranks - job.sets_awaited_by.keys()).isdisjoint(culprits)
    if job.waits and not is_awaited and not (is_placed and is_tied):
        return None
    diagnosis = job.explanation_of(Kind.RANK_DIED, ended_text(strongest[0]), culprits)
    if strongest[0].how == EXIT or len(culprits) > 1:
        diagnosis.doubt(Doubt.EXIT_CODE_ALONE if len(culprits) == 1 else Doubt.SEVERAL_ENDED)
    elif not is_placed and strongest[0].reporter != KERNEL:
        diagnosis.doubt(
            Doubt.OF_ANOTHER_RUN,
            "the launcher names another process of this rank than NCCL's lines do: its output may be of another run",
        )
    elif not is_placed and not _is_end_seen(job, culprits[0]):
        diagnosis.doubt(
            Doubt.PROCESS_ID_REUSED,
            "the kernel's line is joined to this rank by the process id, which other processes have on other hosts or"
            " at other times: host and time do not show that it is this one",
        )
    elif are_others_awaited and all(row.reporter == KERNEL for row in strongest):
        awaited = f"but NCCL's lines show the others waiting for {job.names(job.awaited_ranks)}"
        diagnosis.doubt(Doubt.SECOND_FAULT, awaited)
    if not (is_tied or is_awaited):
        diagnosis.doubt(Doubt.OF_ANOTHER_JOB)
    diagnosis.add_evidence(culprit=strongest[:4])
    cite_first_missing_call(job, diagnosis)
    connection_losses = [
        event
        for event in job.failure_events
        if event.kind == LOST and not event.at_exit and event.rank_id not in culprits
    ]
    return diagnosis.add_evidence(failure=connection_losses[:3])


def _one_ended_first(job: Job, ends: dict[int, ProcessExit]) -> Explanation:
    """Answer that several processes ended at about one time by the clocks of their hosts, which may differ."""
    reporter = next(iter(ends.values())).reporter
    reason = (
        f"{job.names(ends)} ended within minutes of each other, as {reporter} reports, by clocks of "
        "different hosts, which may differ: the times do not show which of them ended first, and the others followed"
    )
    return one_of_these_died(job, [*ends], reason, "context", [*ends.values()][:4])


def _is_end_seen(job: Job, rank_id: int) -> bool:
    """Whether a RAS report shows, too, that the process of this rank ended."""
    row = job.rank_ids[rank_id]
    return any(state["state_kind"] in UNREACHABLE and state["process"] == row.pid for state in job.states)


def first_ends_of_nodes(job: Job) -> list[ProcessExit]:
    """Return the ends that torchrun's tables set apart as the first that it saw, one of each node.

    Where a table is cut off above it, that is the end that the line above the table tells of.
    """
    rows = job.pytorch["elastic_failure"]
    places = seen_first(rows)
    if not places and any(row["form"] in IN_TABLE for row in rows):
        places = {(row["source"], row["line"]) for row in rows if row["form"] == "failed"}
    return [row for row in job.all_exits if (row.source, row.line) in places and row.reporter == TORCHRUN]


def first_seen_by_torchrun(job: Job, most: int | None = None) -> str:
    """Say which processes ended first, as torchrun saw it, and how; nothing where it names more than `most`."""
    exits = first_ends_of_nodes(job)
    if not exits or (most is not None and len(exits) > most):
        return ""
    names = [_seen(row) + f" on {row.node}" * bool(row.node) for row in exits]
    how = f"with exit code {exits[0].exit_code}" if exits[0].how == EXIT else f"by {signal_name(exits[0].signal or 0)}"
    return f"; torchrun saw {some_of(names, MOST_NAMED)} end first, {how}"


def _seen(row: ProcessExit) -> str:
    """Name a process as torchrun does."""
    if row.rank is not None:
        return ranks_text([row.rank])
    return "a process" if row.local_rank is None else f"local rank {row.local_rank}"


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
