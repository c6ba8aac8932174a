"""Find desyncs and time-outs in the messages of PyTorch's watchdogs.

A message names the work that timed out, and how many works its rank had enqueued and completed.

A rank that reports a time-out is a victim: the culprit made fewer calls, or none. Sequence numbers count per process
group, from 1; a status line belongs to the group of the monitor that prints it (formats: pytorch.md, section 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from ncclforensics.analyses.hang.watchdog_works import WORLD, Timeout
from ncclforensics.analyses.job.identity.rank_numbers import numbers_below
from ncclforensics.analyses.job.text.torch_text import minority_of
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Basis, How, Kind
from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.data.variables import ASCEND_LOGS

RECORDER_DUMPS = (
    "collect the Flight Recorder dumps of each host, which torch 2.11 and later writes at a time-out"
    " (before, set TORCH_NCCL_TRACE_BUFFER_SIZE=2000): `ls ~/.cache/torch/comm_lib_trace_rank_*`"
)
ASCEND = "HCCL"  # takes the place of NCCL on Ascend's devices
GAVE_UP = ("failed", "teardown")  # forms of a watchdog that ends its process for a call that failed or timed out
RAS_AGREES = (
    "; in the RAS report no rank is behind: if it is of that time, a fault of the transport or a GPU is likelier than "
    "a missing call"
)
MOST_GROUPS = 4  # process groups that a sentence names
# All members pass the same number of elements; parts of different sizes make gathers of lists, with other names.
EQUAL_SIZED = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "COALESCED")
OPERATION_NAMES = {
    "ALLREDUCE": "AllReduce",
    "BROADCAST": "Broadcast",
    "REDUCE": "Reduce",
    "_ALLGATHER_BASE": "AllGather",
    "ALLGATHER": "AllGather",
    "_REDUCE_SCATTER_BASE": "ReduceScatter",
    "REDUCE_SCATTER": "ReduceScatter",
    "ALLTOALL": "AlltoAll",
    "ALLTOALL_BASE": "AlltoAll",
    "SEND": "Send",
    "RECV": "Recv",
}


def _dumps_of(rows: list[Timeout]) -> str:
    """Return the step that collects what the library itself recorded on each host."""
    return ASCEND_LOGS if any(row.library == ASCEND for row in rows) else RECORDER_DUMPS


def _groups(job: Job) -> list[tuple[str, list[Timeout]]]:
    """Return the process groups that timed out with their rows, the group with most reports first."""
    groups: dict[str, list[Timeout]] = defaultdict(list)
    for row in job.timeouts:
        groups[row.guid].append(row)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _diagnose(
    job: Job, verdict: Kind, reason: str, doubts: list[Doubt], rows: list[Timeout], ranks: list[int]
) -> Explanation:
    diagnosis = job.explanation_by(verdict, reason, ranks, *doubts)
    culprit_rows = [row for row in rows if row.rank in ranks]
    waiting = [row for row in rows if row.rank not in ranks]
    operations = [row.operation for row in waiting or rows if row.operation]
    if operations and (waiting or len(set(operations)) == 1):
        diagnosis.call = Operation(name=_operation_name(operations[0]))
    if line := next((row.interrupted for row in rows if row.interrupted), None):
        diagnosis.remarks.append(f"a process was interrupted before that, at line {line}: the others may wait for it")
    return job.cite(diagnosis, culprit=culprit_rows, waiting=waiting[:3])


def find_desync(job: Job) -> Explanation | None:
    """Find ranks that enqueued less work than the others, or different work."""
    waiting = ranks_that_wait(job)
    for guid, rows in _groups(job):
        sequence = max((row.sequence for row in rows if row.sequence is not None), default=0)
        name = f"process group {guid}" if guid else "its process group"
        # A rank with unfinished work of its own, in this group or another, waits itself.
        idle = [row for row in rows if row.is_idle and row.rank not in waiting]
        lagging_ranks = sorted(row.rank for row in idle if (row.enqueued or 0) < sequence)
        if lagging_ranks and len(lagging_ranks) < len(rows):
            reason = f"had not enqueued work {sequence} of {name} when the watchdogs of the others timed out at it"
            return _diagnose(job, Kind.LAGGING, reason, [Doubt.SECOND_HAND], rows, lagging_ranks)
        # Where lines name no group, works of several groups may have one number.
        numbers = sorted({row.sequence for row in rows if row.sequence is not None}) if guid else [sequence]
        for number in numbers:
            if diagnosis := _find_different_works(job, rows, number, name):
                return diagnosis
    lagging = sorted({rank for row in job.text.desyncs for rank in row["ranks"]})
    waiting_numbers = {*(row.rank for row in job.rank_ids.values()), *(row.rank for row in job.timeouts)} - {None}
    if lagging and waiting_numbers - {*lagging}:
        numbers = sorted({row["sequence"] for row in job.text.desyncs} - {None})
        place = f"collective {numbers[0]}" if len(numbers) == 1 else "a collective that the others are in"
        return _diagnose(
            job,
            Kind.LAGGING,
            f"did not join {place}, as PyTorch's desync report says",
            [Doubt.SECOND_HAND],
            job.timeouts,
            lagging,
        ).add_evidence(culprit=[{**row, "rank_id": None} for row in job.text.desyncs[:2]])
    return None


def _find_different_works(job: Job, rows: list[Timeout], sequence: int, group: str) -> Explanation | None:
    """Find ranks whose work of this number is another operation, or has another size, than that of most."""
    rows = [row for row in rows if row.sequence == sequence]
    is_sized = any(row.numel is not None for row in rows)  # the lines of a rank may be cut before its size
    works = {
        row.rank: (row.operation, row.numel if row.operation in EQUAL_SIZED else None)
        for row in rows
        if row.operation and (row.numel is not None or not is_sized)
    }
    ranks_of = {work: [rank for rank in works if works[rank] == work] for work in works.values()}
    if len(ranks_of) < 2:
        return None
    outliers = minority_of(works)
    calls = [
        f"{_work_text(*work)} on {ranks_text(ranks)}"
        for work, ranks in sorted(ranks_of.items(), key=lambda item: min(item[1]))
    ]
    differing = "operation" if len({operation for operation, _ in ranks_of}) > 1 else "size"
    difference = f"another {differing} than the others" if len(outliers) < len(works) else f"different {differing}s"
    reason = f"enqueued {difference} as work {sequence} of {group}: {', '.join(calls)}"
    return _diagnose(job, Kind.MISMATCH, reason, [Doubt.SECOND_HAND], rows, outliers)


def _never_completed(rows: list[Timeout]) -> str:
    """Say that no call of the group had completed on these ranks: what connects them may never have worked."""
    is_first = all(row.completed is not None and row.completed <= 0 for row in rows)
    return ", and no call of this group had completed there before" * is_first


def _operation_name(operation: str) -> str:
    return OPERATION_NAMES.get(operation, operation.strip("_").title())


def _timed_out_text(rows: list[Timeout]) -> str:
    """Say which ranks timed out at which work: `rank 0 timed out at work 64 (AllReduce), rank 7 at work 96`."""
    ranks_at: dict[str, set[int]] = defaultdict(set)
    operations = {row.sequence: f" ({_operation_name(row.operation)})" for row in rows if row.operation}
    without_number = " at a work without a number" if any(row.sequence is not None for row in rows) else ""
    for row in rows:
        if row.sequence is not None:
            place = f" at work {row.sequence}{operations.get(row.sequence, '')}"
        else:
            in_operation = f" in {_operation_name(row.operation)}" if row.operation else ""
            place = without_number or in_operation
        ranks_at[place].add(row.rank if row.first_rank is None or row.has_timed_out else row.first_rank)
    first, *others = [(ranks_text(sorted(ranks)), place) for place, ranks in list(ranks_at.items())[:MOST_GROUPS]]
    return ", ".join([f"{first[0]} timed out{first[1]}", *(f"{ranks}{place}" for ranks, place in others)])


def _progress_text(rows: list[Timeout]) -> str:
    """Say how far ranks had come whose lines show it."""
    # Where watchdogs count nothing, they print -1.
    shown = [row for row in rows if row.enqueued is not None and row.enqueued >= 0 and row.completed is not None]
    texts = [f"{ranks_text([row.rank])} had completed work {row.completed} of {row.enqueued}" for row in shown]
    return some_of(texts, MOST_GROUPS) if texts else ""


def _unread_text(silent_ranks: str, rows: list[Timeout]) -> str:
    """Say of which ranks no time-out was read; those whose lines the launcher left out for equal ones may be these."""
    repeats = max((row.launcher_repeats or 0 for row in rows), default=0)
    left_out = f", but the launcher left out {count_of(repeats, 'line')} like these, of ranks that it does not name"
    return f"no time-out of {silent_ranks} was read{left_out * bool(repeats)}" * bool(silent_ranks)


def _work_text(operation: str, numel: int | None) -> str:
    return operation.strip("_") + (f" of {count_of(numel, 'element')}" if numel is not None else "")


def ranks_that_wait(job: Job) -> set[int]:
    """Return the ranks whose own watchdogs timed out in a call, of any process group."""
    return {row.rank for row in job.timeouts if row.has_timed_out and not (row.enqueued and row.is_idle)}


def find_watchdog_timeout(job: Job) -> Explanation | None:
    """Find watchdog time-outs where no counter shows a rank with less work.

    A rank without output is no culprit: the launcher ends the other ranks after the first watchdog has timed out.
    """
    if not job.timeouts:
        return None
    guid, rows = _groups(job)[0]
    sequences = [row.sequence for row in rows if row.sequence is not None]
    reporting_ranks = {row.rank for row in rows}
    members = max((row.members for row in rows if row.members), default=0)  # 0: not known
    numbers = {*job.rank_id_of, *job.absent}
    # A number implies all lower ones, and a group of so many members as many ranks.
    numbers |= set(numbers_below(max(members, job.nranks or 0, *numbers, *reporting_ranks)))
    # The line of a time-out names no group, so a rank whose status line is missing may stand in another group.
    timed_out = {row.rank for row in job.timeouts if row.has_timed_out}
    # Of these, another rank tells that it was they that timed out first.
    unread = sorted({row.first_rank for row in rows if row.first_rank is not None} - timed_out - reporting_ranks)
    gave_up = {row["global_rank"] for row in job.pytorch["watchdog"] if row["form"] in GAVE_UP}
    silent = numbers - reporting_ranks - timed_out - {*unread} - gave_up
    silent_ranks = ranks_text(sorted(silent)) if guid in WORLD else ""
    sequence = min(sequences, default=0)
    alike = [] if guid == "" else _alike_without_group(job, rows, sequence)
    unheard = members - len(reporting_ranks) - len(alike)
    is_complete = unheard <= 0 if members else not silent and job.is_size_stated
    if partly := _judge_partly_completed(job, rows, alike, sequence, is_complete=is_complete):
        return partly
    if guid in WORLD and (elsewhere := _ended_programs(job, rows) or _standing_programs(job, rows, silent)):
        return elsewhere
    if not sequences or any(row.enqueued is None for row in rows):
        shown = [row for row in rows if row.is_timeout]
        unshown = sorted(row.rank for row in rows if row.enqueued is None)
        parts = [
            _timed_out_text(shown) if shown else "",
            _unread_text(silent_ranks, rows),
        ]
        if all(row.is_idle and row.enqueued for row in rows):
            had = "completed all works" if any((row.enqueued or 0) > 0 for row in rows) else "made no call"
            not_made = f" of a call that {ranks_text(unread)} made and they had not, or" * bool(unread)
            parts.append(
                f"{ranks_text(sorted(reporting_ranks))} had {had} of this process group, so that the time-out is"
                f"{not_made} one of another group, of which no line was read"
            )
        else:
            unsized = f"how far {ranks_text(unshown)} had come" if unshown else "at which work"
            parts.append(f"no line that was read shows {unsized}" * (not shown))
            parts.append(_progress_text(rows))
        reason = "; ".join(filter(None, parts))
        diagnosis = _diagnose(job, Kind.UNDECIDABLE, reason, [Doubt.OPEN], rows, [])
        first = f", first that of {ranks_text(unread)}, which timed out first" if unread else ""
        diagnosis.collect = [f"collect every rank's stderr{first}", _dumps_of(rows)]
        return diagnosis
    if len(reporting_ranks) == 1:
        return _judge_single_report(job, rows, len(numbers | reporting_ranks))
    joined = job.text.joined_works.get(sequence, {"ranks": set(), "operation": None, "lines": []})
    of_group = "" if guid in WORLD else f" of process group {guid}"
    reason = f"{ranks_text(reporting_ranks)} enqueued work {sequence}{of_group} and did not complete it"
    if alike:
        ranks = ranks_text(sorted(row.rank for row in alike))
        reason += f" ({ranks} timed out at work {sequence}, too, of a group whose name was not read)"
    if unread:
        reason += f" ({ranks_text(unread)}, of which no line was read, timed out first)"
    reason += f"{_never_completed(rows)}: "
    if joined["ranks"] > reporting_ranks:
        reason += (
            f"PyTorch's desync report shows {ranks_text(sorted(joined['ranks']))} of a group in it, so that a fault of "
            "the transport, a GPU or a size is likelier than a missing call"
        )
    elif silent_ranks:
        reason += f"{_unread_text(silent_ranks, rows)}: the call may be missing there, or the transport or a GPU failed"
    elif members and not is_complete:
        reason += f"reports of {unheard} of the {members} members of this process group were not read; one of them"
        reason += " may not have called it, or the transport or a GPU failed"
    elif silent and not is_complete:  # which of them are in this process group is not known
        reason += "another member of this process group may not have called it, or the transport or a GPU failed"
    elif not is_complete:
        reason += "the number of ranks is not known, so that another may not have called it, or the transport or a GPU"
        reason += " failed"
    else:
        reason += "a fault of the transport, a GPU or a size, not a missing call"
    is_weak = not is_complete or (guid not in WORLD and not members)
    weak_doubt = Doubt.SILENT_MEMBER if silent or members else Doubt.UNNAMED_MEMBER
    verdict, doubt = Kind.STUCK_TOGETHER, weak_doubt if is_weak else Doubt.SECOND_HAND
    absent = max(unheard, len(silent) if silent_ranks else 0)
    if absent > len(reporting_ranks) + len(alike):  # too few speak for all
        verdict, doubt = Kind.UNDECIDABLE, Doubt.OPEN
    diagnosis = _diagnose(job, verdict, reason, [doubt], [*rows, *alike], [])
    diagnosis.add_evidence(**{"desync report": joined["lines"][:1]})
    if joined["operation"] and not diagnosis.call:
        diagnosis.call = Operation(name=_operation_name(joined["operation"]))
    if silent_ranks:
        diagnosis.suspects = sorted(silent)
        further = "" if job.is_size_stated or members else ", and of all further ranks, whose number is not known"
        diagnosis.collect = [f"collect the end of the log of {silent_ranks}, of which no time-out was read{further}"]
    elif is_weak and members:
        diagnosis.collect = ["collect stderr of every rank"]
    elif is_weak and not silent:
        diagnosis.collect = compare_size(reporting_ranks)
    if unread:
        diagnosis.collect = [f"collect stderr of {ranks_text(unread)}, which timed out first", *diagnosis.collect]
    return diagnosis


def compare_size(ranks: Collection[int]) -> list[str]:
    """Return the step that shows whether a job has more ranks than those that its text names."""
    step = f"compare how many ranks were started (WORLD_SIZE) with {ranks_text(sorted(ranks))}, which time out here"
    return [f"{step}; collect the output of any other"]


def _judge_partly_completed(
    job: Job, rows: list[Timeout], alike: list[Timeout], sequence: int, *, is_complete: bool
) -> Explanation | None:
    """Judge a work that some ranks completed and others did not: the first go on, and wait for the others.

    Each rank numbers its own calls. If one of them made a call more or less before, works of one number are different
    calls, and no GPU stopped. `alike`: further ranks that timed out at it; `is_complete`: no rank is without a report.
    """
    completed = [row for row in rows if row.known_completed >= sequence]
    unfinished = [*(row for row in rows if row not in completed), *alike]
    if not completed or not unfinished:
        return None
    done_by, left = (ranks_text(sorted(row.rank for row in part)) for part in (completed, unfinished))
    reason = f"{left} enqueued work {sequence} and did not complete it, and {done_by} did"
    if later := [row for row in completed if not row.is_idle]:
        works = sorted({f"work {row.sequence} ({_operation_name(row.operation)})" for row in later if row.operation})
        reason += f" and {'wait' if len(later) > 1 else 'waits'} in {' or '.join(works) or 'a later one'}"
    reason += ": a GPU or a link stopped in it, or the calls of the ranks do not match, because one made a call more or"
    reason += " less before"
    doubts = [Doubt.COUNTED_APART] if is_complete else [Doubt.COUNTED_APART, Doubt.SILENT_MEMBER]
    diagnosis = _diagnose(job, Kind.STUCK_TOGETHER, reason, doubts, [*unfinished, *completed], [])
    diagnosis.basis = Basis.COUNTERS
    diagnosis.collect = [_dumps_of(unfinished)]
    return diagnosis


def _alike_without_group(job: Job, rows: list[Timeout], sequence: int) -> list[Timeout]:
    """Return time-outs at an equal work whose group no line names: their status lines are cut off."""
    calls = {(row.operation, row.numel) for row in rows if row.sequence == sequence}
    return [
        row
        for row in job.timeouts
        if row.guid == "" and row.sequence == sequence and (row.operation, row.numel) in calls
    ]


def _ended_programs(job: Job, rows: list[Timeout]) -> Explanation | None:
    """Judge ranks whose programs came to their end without an error, while others were in a call of all ranks.

    PyTorch warns at the end of every program that destroyed no group, also of one that an exception ended.
    """
    failed = {row.rank for row in job.timeouts} | {row.rank for row in job.process_exits}
    failed |= {row.rank for row in job.torch_errors}
    ended = {row["rank"]: row for row in job.text.ended_programs if row["rank"] not in failed}
    waiting = [row for row in rows if row.has_timed_out]
    if not ended or not waiting or len(ended) >= len(waiting):
        return None
    claim = "came to the end of its program without destroying the process group, and the others were in a call of it"
    diagnosis = _diagnose(job, Kind.RANK_DIED, claim, [Doubt.OTHER_TEXT], rows, sorted(ended))
    diagnosis.how = How.LEFT
    job.cite(diagnosis, culprit=ended.values())
    own = ranks_text(sorted(ended))
    diagnosis.collect = [
        f"compare how many steps and batches {own} had with the others: no more data or work ends it so"
    ]
    return diagnosis


def _standing_programs(job: Job, rows: list[Timeout], silent: set[int]) -> Explanation | None:
    """Judge ranks that stand somewhere else by their own words, such as at a prompt, while the others are in a call.

    Where the words name no rank, it is the only one that reports no time-out.
    """
    from ncclforensics.analyses.job.text.stated_stands import STANDS

    stands = [row for row in job.text.of("stated_stand") if row["kind"] in STANDS]
    named = {row["rank"] for row in stands} - {None}
    ranks = named - {row.rank for row in rows} if named else silent
    if not stands or not ranks or (len(ranks) > 1 and not named):
        return None
    claim = f"{STANDS[stands[-1]['kind']]}, by its output, and the others wait for it in a call"
    diagnosis = _diagnose(job, Kind.LAGGING, claim, [Doubt.OTHER_TEXT], rows, sorted(ranks))
    return job.cite(diagnosis, culprit=stands)


def _judge_single_report(job: Job, rows: list[Timeout], known: int) -> Explanation:
    """Judge a group of which one rank reports: it waited, and nothing shows whether the others made the same call."""
    rank = ranks_text([rows[0].rank])
    timed_out = {guid: [row for row in own if row.sequence is not None] for guid, own in _groups(job) if guid}
    groups = {guid: own for guid, own in timed_out.items() if own}
    if len(groups) > 1:
        works = ", ".join(
            f"{ranks_text(sorted(row.rank for row in own))} in work {own[0].sequence} of process group {guid}"
            for guid, own in list(groups.items())[:MOST_GROUPS]
        )
        reason = f"time-outs in different process groups, whose numbers cannot be compared: {works}"
        collect = "collect stderr of every rank: within one process group, compare the last enqueued work"
    elif not any(row.is_timeout for row in job.timeouts):
        which = "an error of a call, which another rank may have caused"
        unsure = "an error or a time-out of a call, and its line does not say which of both"
        reason = f"{rank} reports {which if rows[0].has_error else unsure}"
        collect = "collect stderr of every rank: the first error or time-out in time says more"
    else:
        reason = f"{rank} of at least {max(known, 2)} waited, and is a victim"
        unplaced = [row for row in job.timeouts if not row.guid and row not in rows and row.sequence is not None]
        if unplaced:
            works = ", ".join(f"{ranks_text([row.rank])} in work {row.sequence}" for row in unplaced[:MOST_GROUPS])
            reason = f"{rank} waited in work {rows[0].sequence}, and {works} of a group whose name was not read"
        reason += _never_completed(rows) + RAS_AGREES * bool(job.snapshots and not job.states)
        collect = "collect stderr of every rank, and look for the rank with a lower last enqueued work"
    diagnosis = _diagnose(job, Kind.UNDECIDABLE, reason, [Doubt.OPEN], rows, [])
    diagnosis.collect = [collect, _dumps_of(rows)]
    return diagnosis
