"""Find the process that ended first, and judge how sure the reports of its end are.

The kernel names a process by its pid, which other hosts, containers and earlier days have, too. Launchers of several
nodes print the clocks of these, which may differ by more than the ends that they report.
"""

from __future__ import annotations

from ncclforensics.analyses.job.ends.exit_reports import EXIT, KERNEL, RAISED
from ncclforensics.analyses.job.ends.failure_events import LOST
from ncclforensics.analyses.job.ends.process_exits import ProcessExit, ended_text
from ncclforensics.analyses.job.ends.torchrun_reports import TORCHRUN, seen_first
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.waiting import cite_first_missing_call, one_of_these_died
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.processes import signal_name

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
    are_others_awaited = bool(job.awaited_ranks) and job.awaited_ranks.isdisjoint(culprits)
    if not is_placed and are_others_awaited:
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
    """Return the ends that torchrun's tables set apart as the first that it saw, one of each node."""
    places = seen_first(job.pytorch["elastic_failure"])
    return [row for row in job.all_exits if (row.source, row.line) in places and row.reporter == TORCHRUN]


def first_seen_by_torchrun(job: Job, most: int | None = None) -> str:
    """Say which processes ended first, as torchrun saw it, and how; nothing where it names more than `most`."""
    exits = first_ends_of_nodes(job)
    if not exits or (most is not None and len(exits) > most):
        return ""
    names = [f"{ranks_text([row.rank]) if row.rank is not None else 'a process'} on {row.node}" for row in exits]
    how = f"with exit code {exits[0].exit_code}" if exits[0].how == EXIT else f"by {signal_name(exits[0].signal or 0)}"
    return f"; torchrun saw {some_of(names, MOST_NAMED)} end first, {how}"
