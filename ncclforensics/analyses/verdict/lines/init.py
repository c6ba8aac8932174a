"""Find init that failed on a rank, or that some ranks never joined.

NCCL's bootstrap has no time-out: if a rank does not join, the others wait without printing anything. Up to 2.21 the
START line is printed only after the bootstrap, so those logs do not show which communicator the ranks wait for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ncclforensics.analyses.hang.wait_graph import Edge
from ncclforensics.analyses.job.ends.failure_events import LOST, NETWORK, REMOTE_ERROR, FailureEvent
from ncclforensics.analyses.job.identity.rank_numbers import missing_numbers
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.job_rows import Member
from ncclforensics.analyses.verdict.lines.ranks_without_log import judge_unseen_members, judge_waiting_before_init
from ncclforensics.analyses.verdict.lines.stall import ranks_that_moved_data
from ncclforensics.analyses.verdict.vocabulary import Detail, Kind
from ncclforensics.data.nccl_sources import is_call_file, is_top_file
from ncclforensics.data.variables import COLLECT_BOOTSTRAP
from ncclforensics.data.versions import releases
from ncclforensics.frames.columns import Owner, Row
from ncclforensics.frames.source_order import FIRST_STEPS

UNNAMED_FAULT = "NCCL returned an error from init"
INIT_FILE = "init.cc"  # its functions create communicators; they also end them
LAUNCHER_LINES = 20  # launchers print up to this many lines when they end a job
START_BEFORE_BOOTSTRAP = (2, 22)
BOOTSTRAP_ONLY = ["bootstrap", "driver", "entered", "network"]  # in the order in which a process prints them
MAJORITY = 0.5


def find_failed_init(job: Job) -> Explanation | None:
    """Find ranks with a fault of their own (CUDA, memory, verbs) while they created a communicator."""
    inside: dict[int, list[Member]] = defaultdict(list)
    for row in job.memberships:
        if not row.is_complete:
            inside[row.rank_id].append(row)
    started_processes = {(row["host"], row["pid"]) for row in job.milestones}
    members_seen = {row.rank_id for row in job.memberships} | ranks_that_moved_data(job)
    never_joined = {
        rank_id
        for rank_id, row in job.rank_ids.items()
        if rank_id not in members_seen and row.owner in started_processes and job.last_call(rank_id) is None
    }

    completed = [key for key, rows in job.members.items() if any(row.is_complete and row.line for row in rows)]
    if any(map(job.count_unseen_members, completed)):
        never_joined = set()  # an init that ended on one rank ended on all: these are members of it

    def is_inside(event: FailureEvent) -> bool:
        began = [] if event.rank_id is None else inside.get(event.rank_id, [])
        return event.rank_id in never_joined or any(event.pos > row.created_pos for row in began)

    faults = [
        event for event in job.failure_events if event.form in _FAULT_TEXTS and not event.at_exit and is_inside(event)
    ]
    fault = min((_FAULT_TEXTS[event.form] for event in faults), key=list(_FAULT_TEXTS.values()).index, default="")
    if not faults:  # another fault, if NCCL left init with an error and no connection was lost
        other = {event.rank_id for event in job.failure_events if event.kind in (LOST, NETWORK)}
        returned = [event for event in job.failure_events if event.form == "unwinding" and not event.is_of_call]
        other |= {event.rank_id for event in returned if is_call_file(event.unwound)}  # a call after init
        faults = [
            event for event in returned if _is_returned(job, event) and event.rank_id not in other and is_inside(event)
        ]
        if faults:  # a rank that got an error before it began this init does not only wait for them
            faults += [event for event in returned if event.rank_id in inside.keys() - other and _is_of_init(event)]
        fault = UNNAMED_FAULT
    culprits = sorted({event.rank_id for event in faults if event.rank_id is not None})
    if not culprits:
        return None
    diagnosis = _fault_in_init(job, fault, culprits)
    goes_on_behind = any(map(job.application_lines_after, culprits))
    has_left = goes_on_behind or any(is_top_file(event.unwound) for event in faults)
    if diagnosis.detail is Detail.UNNAMED_FAULT and not has_left:
        diagnosis.doubt(Doubt.FAULT_SURVIVED)
    diagnosis.key = next((row.key for rank_id in culprits for row in inside.get(rank_id, [])), None)
    first_of_rank = {event.rank_id: event for event in reversed(faults)}
    return diagnosis.add_evidence(failure=[first_of_rank[rank_id] for rank_id in culprits[:4]])


def _fault_in_init(job: Job, fault: str, culprits: list[int]) -> Explanation:
    """Explain an init that failed on a rank, where NCCL did not refuse the arguments."""
    diagnosis = job.explanation_of(Kind.INIT_FAILED, f"init failed: {fault}", culprits, Doubt.FAULT_FOLLOWED)
    diagnosis.detail = Detail.UNNAMED_FAULT if fault == UNNAMED_FAULT else Detail.FAULT_IN_INIT
    diagnosis.fault = fault
    return diagnosis


def _is_returned(job: Job, event: FailureEvent) -> bool:
    """Whether an error left NCCL, or is the last that the process printed; what it survived is no failure."""
    process = job.processes.get((event.host, event.pid), {})
    return is_top_file(event.unwound) or process.get("last_pos") == event.pos


def _is_of_init(event: FailureEvent) -> bool:
    return is_top_file(event.unwound, (INIT_FILE,))


# Failure forms that are a fault of the rank itself, with their description; the most specific first.
_FAULT_TEXTS = {
    "shared_memory_full": "/dev/shm is full",
    "out_of_memory": "out of memory",
    "allocation_failed": "out of memory",
    "shared_memory": "a shared memory segment could not be created",
    "verbs_call": "an InfiniBand verbs call failed",
    "kernel_memory": "the GPU has less shared memory than NCCL's kernels need",
    "cuda": "a CUDA call failed",
}


def find_unfinished_init(job: Job) -> Explanation | None:
    """Find an init that some ranks began and that others did not join, or that NCCL left with an error."""
    inside: dict[str, list[Member]] = defaultdict(list)
    # Calls that were counted on a communicator, by whichever rank, show that its init ended on all.
    counted = {row["key"] for row in job.run.of("counted_call") if row["calls"] > 0}
    for row in job.memberships:
        if not row.is_complete and row.end is None and row.key not in counted:
            inside[row.key].append(row)
    if diagnosis := _judge_returned_init(job, [row for rows in inside.values() for row in rows]):
        return diagnosis
    if inside:
        return _judge_unfinished_init(job, inside)
    return _find_unbegun_init(job) or _judge_bootstrap(job)


def _judge_returned_init(job: Job, inside: list[Member]) -> Explanation | None:
    """Judge an init that some ranks left with an error: they do not wait, whatever the others do.

    Which rank is at fault is left open: an error may be passed on from another process.
    """
    began = {row.rank_id: row.created_pos for row in inside}
    if not began and not job.members:
        # Versions that print the communicator only after the bootstrap.
        began = dict.fromkeys(job.rank_ids.keys() - ranks_that_moved_data(job), -1)
    returned = [
        event
        for event in job.failure_events
        if event.form == "unwinding" and _is_of_init(event)
        if not (event.at_exit or event.is_of_call) and event.rank_id in began and event.pos > began[event.rank_id]
    ]
    if not returned:
        return None
    diagnosis = _fault_in_init(job, UNNAMED_FAULT, [])
    diagnosis.key = next((row.key for row in inside if row.rank_id == returned[0].rank_id), None)
    first_of_rank = {event.rank_id: event for event in reversed(returned) if event.rank_id is not None}
    diagnosis.victims = sorted(first_of_rank)
    own_first = sorted(first_of_rank.values(), key=lambda event: (event.result == REMOTE_ERROR, event.rank_id))
    diagnosis.add_evidence(failure=own_first[:4])
    if len(began_by := _ids_of_one_group(job, inside)) > 1:
        ranks = " and ".join(job.names(rank_ids) for rank_ids in began_by)
        diagnosis.remarks.append(
            f"{ranks} began it with different unique ids: one is stale, or was not shared with all ranks"
        )
        diagnosis.add_evidence(minority=inside[:4])
    return diagnosis


def _ids_of_one_group(job: Job, inside: list[Member]) -> list[list[int]]:
    """Return the ranks that began a communicator with each unique id, where all of them were in one before."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for row in inside:
        ranks[row.key].append(row.rank_id)
    were_together = any(
        sorted(row.rank_id for row in rows) == sorted(row.rank_id for row in inside) for rows in job.members.values()
    )
    return list(ranks.values()) if were_together and {row.nranks for row in inside} == {len(inside)} else []


def _judge_unfinished_init(job: Job, inside: dict[str, list[Member]]) -> Explanation | None:
    edges = [edge for edge in job.waits if edge.kind == "init"]
    waiting = {edge.waiter for edge in edges}
    key = max(inside, key=lambda candidate: (inside[candidate][0].nranks, len(inside[candidate])))
    rows = inside[key]
    awaited = {rank_id for edge in job.awaited_calls if edge.kind == "init" for rank_id in edge.waits_for}
    not_begun = sorted(awaited - waiting)
    complete = [
        rank_id
        for rank_id in not_begun
        if not (job.may_lack_lines(rank_id) or _begins_a_split(job, rank_id) or _begins_before_its_file(job, rank_id))
    ]
    if edges and (not not_begun or _wait_for_each_other(edges)):
        return _judge_creation_order(inside, edges)
    victims, unseen_members = sorted({row.rank_id for row in rows}), job.count_unseen_members(key)
    if any(row.is_complete for row in job.members[key]):
        return None  # an init that ended on one rank ended on all: a log lacks the line, or ends before it
    if any(_application_continues(job, rank_id) for rank_id in victims):
        return None  # the application printed more lines: the end of init is missing from this log
    # Such a version prints START only when all ranks of the communicator have met.
    is_after_bootstrap = bool(versions := releases(job.run.releases)) and versions[-1] < START_BEFORE_BOOTSTRAP
    have_met = is_after_bootstrap or any(row.has_met for row in rows)
    if (not_begun or unseen_members) and have_met:
        return None  # all its ranks exchanged data: the others have lost lines, or their logs were not given
    if not_begun and not (complete or unseen_members):
        return None  # their lines on this init may be lost
    if complete:
        reason = "never began the init that the other ranks wait in"
        diagnosis = Explanation(Kind.INIT_INCOMPLETE, reason, culprits=complete)
        diagnosis.add_evidence(culprit=map(job.last_line, complete[:4]))
        if job.absent and unseen_members > len(complete):
            diagnosis = judge_waiting_before_init(job, diagnosis)
    elif unseen_members and any(row.rank is None for row in job.rank_ids.values()):
        return None  # processes that were heard may be these members
    elif unseen_members:
        seen = {row.rank for row in job.members[key]}
        diagnosis = judge_unseen_members(job, key, missing_numbers(rows[0].nranks, seen))
    else:
        diagnosis = Explanation(
            Kind.INIT_INCOMPLETE,
            "every rank began this init, and no line that was read shows that one completed it",
            [Doubt.INIT_GOES_ON],
        )
        if not job.stall_evidence:
            diagnosis.doubt(Doubt.INIT_COMPLETED)
    diagnosis.key, diagnosis.victims = key, victims
    return diagnosis.add_evidence(waiting=rows[:3])


def _wait_for_each_other(edges: list[Edge]) -> bool:
    """Whether most ranks wait in one init for ranks that wait for them in another one, of fewer ranks."""
    waiters: dict[str, set[int]] = defaultdict(set)
    awaited: dict[str, set[int]] = defaultdict(set)
    for edge in edges:
        waiters[edge.key].add(edge.waiter)
        awaited[edge.key].update(edge.waits_for)
    most = max(waiters, key=lambda key: len(waiters[key]))
    fewer = [key for key, ranks in waiters.items() if len(ranks) < len(waiters[most])]
    return any(awaited[most] & waiters[key] and awaited[key] & waiters[most] for key in fewer)


def _begins_a_split(job: Job, rank_id: int) -> bool:
    """Whether the last that a rank began is a part of a communicator, whose own lines come behind that."""
    owner = job.rank_ids[rank_id].owner
    created = max((row.created_pos for row in job.memberships if (row.host, row.pid) == owner), default=-1)
    return job.run.last_split.get(owner, -1) > created


def _begins_before_its_file(job: Job, rank_id: int) -> bool:
    """Whether a file of several processes opens in the middle of the run, and shows no begin of this rank."""
    if any(row.rank_id == rank_id and row.is_complete for rows in job.members.values() for row in rows):
        return False
    began = {(row["host"], row["pid"]) for row in job.milestones if row["form"] in FIRST_STEPS}
    sources = {*job.process(rank_id)["sources"]}
    beside = {owner: row for owner, row in job.processes.items() if not sources.isdisjoint(row["sources"])}
    opens = min(beside, key=lambda owner: beside[owner]["first_pos"], default=None)
    return len(beside) > 1 and not {opens, job.rank_ids[rank_id].owner} & began


def _application_continues(job: Job, rank_id: int) -> bool:
    """Whether the rank's file has many application lines after NCCL's last line."""
    return job.application_lines_after(rank_id) > LAUNCHER_LINES


def _judge_creation_order(inside: dict[str, list[Member]], edges: list[Edge]) -> Explanation:
    """Judge ranks that wait for each other in the init of different communicators."""
    involved = {edge.key for edge in edges}
    groups = sorted((rows for key, rows in inside.items() if key in involved), key=len)
    is_minority = len(groups[0]) < len(groups[-1])
    minority = groups[0] if is_minority else [row for rows in groups for row in rows]
    reason = (
        "began a communicator with another unique id than the others: it is stale, or was not shared with all ranks, "
        "or the ranks create communicators in different order"
    )
    culprits = sorted({row.rank_id for row in minority})
    diagnosis = Explanation(Kind.INIT_INCOMPLETE, reason, [Doubt.INIT_GOES_ON], culprits=culprits, key=minority[0].key)
    diagnosis.victims = sorted({row.rank_id for rows in groups for row in rows} - set(culprits))
    return diagnosis.add_evidence(minority=minority[:4], majority=groups[-1][:2])


def _find_unbegun_init(job: Job) -> Explanation | None:
    """Find ranks that never began an init, in versions that print START only after the bootstrap.

    Waiting ranks began one more init than they have communicators, or one behind the last of these.
    """
    begun_by: dict[Owner, int] = defaultdict(int)
    last: dict[Owner, Row] = {}
    for row in job.milestones:
        if row["form"] == "entered":
            begun_by[row["host"], row["pid"]] += 1
            last[row["host"], row["pid"]] = row
    created_by: dict[Owner, list[int]] = defaultdict(list)  # positions
    for member in job.memberships:
        created_by[member.host, member.pid].append(member.created_pos)

    def is_pending(owner: Owner) -> bool:
        created = created_by[owner]
        return bool(created) and (begun_by[owner] > len(created) or last.get(owner, {"pos": -1})["pos"] > max(created))

    process_of = {rank_id: row.owner for rank_id, row in job.rank_ids.items()}
    pending = [rank_id for rank_id, owner in process_of.items() if is_pending(owner)]
    idle = [
        rank_id
        for rank_id, owner in process_of.items()
        if begun_by[owner] == len(created_by[owner]) > 0 and not is_pending(owner)
    ]
    if not pending or not idle or len(idle) >= len(pending):
        return None
    reason = "did not begin the creation of a communicator that the others are creating"
    diagnosis = Explanation(Kind.INIT_INCOMPLETE, reason, [Doubt.INIT_GOES_ON], culprits=idle, victims=pending)
    diagnosis.add_evidence(waiting=[{**last[process_of[rank_id]], "rank_id": rank_id} for rank_id in pending[:3]])
    return diagnosis.add_evidence(culprit=map(job.last_line, idle[:4]))


def _judge_bootstrap(job: Job) -> Explanation | None:
    """Judge logs without any communicator, where every rank waits in the bootstrap.

    An excerpt looks the same: the logs must begin where init begins and end at one stage on most ranks, and each rank
    must have a log of its own, or one lack it, or a sign show that the job stood still.
    """
    if (
        job.members
        or not may_be_in_bootstrap(job)
        or any(_application_continues(job, rank_id) for rank_id in job.rank_ids)
        or any(row.form == "unique_id" for row in job.store_errors)  # such a rank never came to NCCL
    ):
        return None
    numbers = job.rank_numbers(job.rank_ids)
    missing = missing_numbers(max(numbers, default=0), set(numbers))
    files = {source for rank_id in job.rank_ids for source in job.process(rank_id)["sources"]}
    if not (missing or job.stall_evidence or len(files) >= len(job.rank_ids) > 1):
        return None
    victims, collect = list(job.rank_ids), COLLECT_BOOTSTRAP
    if missing and len(missing) < len(numbers):
        reason = "has no log although the numbers of the files go beyond it, and all other ranks wait in the bootstrap"
        diagnosis = Explanation(
            Kind.RANK_MISSING, reason, [Doubt.LOG_NOT_GIVEN], missing=missing, victims=victims, collect=collect
        )
    else:
        reason = (
            "every rank in these logs waits in the bootstrap; this version of NCCL prints the communicator only later"
        )
        diagnosis = Explanation(Kind.INIT_INCOMPLETE, reason, [Doubt.INIT_GOES_ON], victims=victims, collect=collect)
        if not job.stall_evidence:
            diagnosis.doubt(Doubt.INIT_COMPLETED)
    return diagnosis.add_evidence(waiting=map(job.last_line, victims[:3]))


def may_be_in_bootstrap(job: Job) -> bool:
    """Whether the logs show init from its beginning, nothing of what follows the bootstrap, and most ranks there."""
    if job.is_past_bootstrap:
        return False
    forms = {row["form"] for row in job.milestones}
    is_from_start = bool(forms & {"bootstrap", "driver"} or job.run.releases)
    versions = releases(job.run.releases)
    if (versions and versions[-1] >= START_BEFORE_BOOTSTRAP) or not is_from_start or not forms <= set(BOOTSTRAP_ONLY):
        return False
    steps: dict[Any, int] = defaultdict(int)
    for row in job.milestones:
        steps[row["host"], row["pid"]] = max(steps[row["host"], row["pid"]], BOOTSTRAP_ONLY.index(row["form"]))
    reached = list(steps.values())
    if len(reached) < len(job.rank_ids) and not job.stall_evidence:
        return False  # the first line of some process was left out, and the last ones may be
    return bool(reached) and reached.count(max(reached)) > MAJORITY * len(job.rank_ids)
