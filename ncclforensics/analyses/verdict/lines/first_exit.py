"""Find the process that ended first, and judge how sure the reports of its end are.

The kernel names a process by its pid, which other hosts, containers and earlier days have, too. Launchers of several
nodes print the clocks of these, which may differ by more than the ends that they report.
"""

from __future__ import annotations

from ncclforensics.analyses.job.ends.exit_reports import EXIT, KERNEL, RAISED
from ncclforensics.analyses.job.ends.failure_events import LOST
from ncclforensics.analyses.job.ends.process_exits import ended_text, strongest_reports
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job, Row
from ncclforensics.analyses.verdict.lines.waiting import cite_first_missing_call, one_of_these_died
from ncclforensics.analyses.verdict.vocabulary import Kind

UNREACHABLE = ("missing", "dead")  # states of a process in a RAS report


def find_first_exit(job: Job) -> Explanation | None:
    """Find the process that ended first, as its launcher, the kernel or its own last lines report."""
    active = {row.rank_id for row in job.memberships if row.end is None}
    finished = {row.rank_id for row in job.memberships} - active
    exits = [row for row in job.process_exits if row["is_first"] and row["is_final"] and row["rank_id"] is not None]
    # A rank that raised ends its communicators in its teardown, while the others wait in theirs.
    has_raised = [row["rank_id"] for row in exits if active and row["how"] in RAISED]
    exits = [row for row in strongest_reports(exits) if row["rank_id"] not in finished.difference(has_raised)]
    strongest = [row for row in exits if row["how"] != EXIT] or exits
    culprits = sorted({row["rank_id"] for row in strongest})
    if not culprits or len(culprits) == len(job.rank_ids):
        return None  # all ended: either the job was stopped, or all share a fault and none waits
    if len(culprits) > 1 and all(row["is_by_clock"] for row in strongest):
        culprits = [rank_id for rank_id in culprits if rank_id in job.awaited_ranks - job.sets_awaited_by.keys()]
        if len(culprits) != 1:
            return _one_ended_first(job, strongest)
        strongest = [row for row in strongest if row["rank_id"] in culprits]
    are_others_awaited = _are_others_awaited(job, strongest)
    if are_others_awaited and not any(row["is_placed"] for row in strongest):
        return None
    diagnosis = Explanation(Kind.RANK_DIED, ended_text(strongest[0]), culprits=culprits)
    diagnosis.victims = [rank_id for rank_id in job.rank_ids if rank_id not in culprits]
    if strongest[0]["how"] == EXIT or len(culprits) > 1:
        diagnosis.doubt(Doubt.EXIT_CODE_ALONE if len(culprits) == 1 else Doubt.SEVERAL_ENDED)
    elif not strongest[0]["is_placed"] and not _is_end_seen(job, culprits[0]):
        diagnosis.doubt(
            Doubt.PROCESS_ID_REUSED,
            "the kernel's line is joined to this rank by the process id, which other processes have on other hosts or"
            " at other times: host and time do not show that it is this one",
        )
    elif are_others_awaited:
        awaited = job.names(job.awaited_ranks)
        diagnosis.doubt(Doubt.OTHERS_AWAITED, f"but NCCL's lines show the others waiting for {awaited}")
    diagnosis.add_evidence("culprit", strongest[:4])
    cite_first_missing_call(job, diagnosis)
    connection_losses = [
        event.place
        for event in job.failure_events
        if event.kind == LOST and not event.at_exit and event.rank_id not in culprits
    ]
    diagnosis.add_evidence("failure", connection_losses[:3])
    return diagnosis


def _are_others_awaited(job: Job, rows: list[Row]) -> bool:
    """Whether only lines of the kernel show these ends, and the other ranks wait for others in NCCL's calls."""
    culprits = {row["rank_id"] for row in rows}
    is_by_kernel = all(row["reporter"] == KERNEL for row in rows)
    is_seen = any(_is_end_seen(job, rank_id) for rank_id in culprits)
    return is_by_kernel and not is_seen and bool(job.awaited_ranks) and job.awaited_ranks.isdisjoint(culprits)


def _one_ended_first(job: Job, rows: list[Row]) -> Explanation:
    """Answer that several processes ended at about one time by the clocks of their hosts, which may differ."""
    rank_ids = [row["rank_id"] for row in rows]
    reason = (
        f"{job.names(rank_ids)} ended within minutes of each other, as {rows[0]['reporter']} reports, by clocks of "
        "different hosts, which may differ: the times do not show which of them ended first, and the others followed"
    )
    return one_of_these_died(job, rank_ids, reason, "context", rows[:4])


def _is_end_seen(job: Job, rank_id: int) -> bool:
    """Whether anything besides the kernel's line shows that the process of this rank ended."""
    row = job.rank_ids[rank_id]
    lost = [event for event in job.failure_events if event.kind == LOST and not event.at_exit]
    return any(event.rank_id != rank_id for event in lost) or any(
        state["state_kind"] in UNREACHABLE and state["process"] == row["pid"] for state in job.states
    )
