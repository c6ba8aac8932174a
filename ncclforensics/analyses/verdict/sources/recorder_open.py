"""Judge Flight Recorder dumps in which no rank is behind: one without a dump, one whose GPU hangs, or none at all.

Before that, what all verdicts by dumps are made of: ranks, calls and places in words, and the evidence.

A rank that waits for a message, and for which others wait in a collective, does not show whether its peer left out the
matching call or whether it posted its own in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Unpack

from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, FieldsAndAdvice
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Basis, How, Kind
from ncclforensics.data.names import DATATYPES, count_of, ranks_text
from ncclforensics.data.variables import LOOK_AT_HOST, hosts_of, stacks_of

if TYPE_CHECKING:
    from ncclforensics.analyses.hang.recorder_graph import Recordings, Standing
    from ncclforensics.analyses.job.text.recorder_groups import RecordedCall

SHOWN = 3  # ranks that are described, and cited
PLACES = {
    "Flight Recorder dump": "comm_lib_trace_rank_N in ~/.cache/torch on",
    "torchcomms log": "the file that ClogHook was given on",
}


def with_dumps(find: Callable[[Job, Recordings], Explanation | None]) -> Callable[[Job], Explanation | None]:
    """Ask a question of the dumps of a job, if it has some."""

    @wraps(find)
    def find_in_dumps(job: Job) -> Explanation | None:
        return None if job.recordings is None else find(job, job.recordings)

    return find_in_dumps


def request(noun: str, ranks: str) -> str:
    """Ask for the dumps of ranks, or for their logs."""
    return f"collect the {noun}s of {ranks}: {PLACES[noun]} {hosts_of(ranks)}"


def calls_at(recordings: Recordings, place: Standing) -> list[RecordedCall]:
    """Return the calls of the ranks that stand at a collective."""
    return [call for rank in place.standing if (call := recordings.blocking(rank))]


def stand_text(ranks: Iterable[int]) -> str:
    """Name ranks and say that they stand: `ranks 0-2 stand`."""
    numbers = list(ranks)
    return f"{ranks_text(numbers)} {'stands' if len(numbers) == 1 else 'stand'}"


def place_text(recordings: Recordings, call: RecordedCall) -> str:
    """Name the number of a call and its process group."""
    kind = "message" if call.is_p2p else "collective"
    number = "" if call.sequence is None else f" {call.sequence}"
    return f"{kind}{number} of {recordings.group_text(call.group)}"


def described(call: RecordedCall, *, with_size: bool = False) -> str:
    """Describe a call: `all_reduce of 1,024 Float elements from /job/train.py:145 in loop`."""
    text = str(call.name)
    if call.is_p2p and call.peer is not None:
        text += f" {'to' if call.name == 'send' else 'from'} rank {call.peer}"
    if with_size and call.elements is not None:
        text += f" of {count_of(call.elements, ' '.join([*filter(None, [call.dtypes]), 'element']))}"
    return text + (f" (called from {call.called_from})" if call.called_from else "")


def diagnose(job: Job, verdict: Kind, reason: str, numbers: list[int], **more: Unpack[FieldsAndAdvice]) -> Explanation:
    """Return a diagnosis whose culprits are given by their numbers in the job."""
    return job.explanation_by(verdict, reason, numbers, Doubt.DUMPS_OF_ANOTHER_MOMENT, **more)


def set_call(diagnosis: Explanation, call: RecordedCall | None) -> None:
    """Take a recorded call for the call of a diagnosis."""
    if call is None:
        return
    is_known = call.datatype is not None and call.datatype < len(DATATYPES) and call.elements is not None
    diagnosis.call = Operation.of(call.of_nccl) if is_known else Operation(name=call.of_nccl["name"])


def cite(job: Job, diagnosis: Explanation, **calls: list[RecordedCall]) -> Explanation:
    """Cite the dumps of the first of these calls."""
    return job.cite(diagnosis, **{what: of_this[:SHOWN] for what, of_this in calls.items()})


def communicator_of(job: Job, recordings: Recordings, diagnosis: Explanation) -> str | None:
    """Return the communicator of the process group at whose call the culprits are waited for, collectives first.

    The same order decides which call the diagnosis names.
    """
    awaited = recordings.waiting_for(job.numbers_blamed(diagnosis))
    first = min(awaited, key=lambda call: bool(call.is_p2p), default=None)
    return job.communicators_of_groups.get(first.group) if first else None


EITHER_WAY = "one of these may never have made the call, or left none and waits, too"
MOST_ABSENT = 0.25  # share of ranks without a dump; more of them are dumps that were not collected


@with_dumps
def find_rank_without_dump(job: Job, recordings: Recordings) -> Explanation | None:
    """Suspect the one rank without a dump if the other members of its groups all stand at their calls.

    A rank that wrote no dump may be a victim as well; of several such ranks none is named.
    """
    places = [place for place in job.recorded_roots.standing if place.standing and not place.completed]
    suspects = {rank for place in places for rank in place.without_dump if rank not in recordings.outdated}
    if any(recordings.is_idle(rank) for rank in recordings.read):
        return None  # that rank waits for none, and a rank without a dump may wait for it
    absent = recordings.without_dump
    if not suspects or recordings.cut or len(absent) > MOST_ABSENT * (len(recordings.dumps) + len(absent)):
        return None
    place = next(place for place in places if suspects.intersection(place.without_dump))
    calls = calls_at(recordings, place)
    where = f"{stand_text(row.rank for row in calls)} in {described(calls[0])}, {place_text(recordings, calls[0])}"
    stacks: list[str] = []
    if len(absent) > 1:
        diagnosis = diagnose(job, Kind.UNDECIDABLE, where, [])
        diagnosis.remarks.append(f"{ranks_text(absent)} left no {recordings.noun} here: {EITHER_WAY}")
        diagnosis.suspects, diagnosis.basis = sorted(suspects), Basis.DUMPS
    elif _shown_by_log(job, place, absent):
        reason = f"{where}, and the log of {ranks_text(absent)} shows this call, too, but it left no dump"
        diagnosis = diagnose(job, Kind.UNDECIDABLE, reason, [])
        diagnosis.suspects, diagnosis.basis = sorted(suspects), Basis.DUMPS
        stacks = [stacks_of(ranks_text(absent))]  # a process that is frozen writes no dump
    else:
        reason = (
            f"left no {recordings.noun} here, while {where}: a rank that never made this call looks like that, and"
            " so does one that only left none"
        )
        diagnosis = diagnose(job, Kind.LAGGING, reason, sorted(suspects))
        diagnosis.doubt(Doubt.DUMP_NOT_WRITTEN)
    diagnosis.collect = stacks or [request(recordings.noun, ranks_text(absent))]
    set_call(diagnosis, calls[0])
    return cite(job, diagnosis, waiting=calls)


def _shown_by_log(job: Job, place: Standing, ranks: Collection[int]) -> bool:
    """Whether the logs of ranks without a dump show as many calls of a group as those of the ranks that stand there."""
    key = job.communicators_of_groups.get(place.group, "")
    calls = {
        job.rank_number(rank_id): job.run.collectives_made[rank_id].get(key, 0) for rank_id in job.seen_members(key)
    }
    standing = [calls[rank] for rank in place.standing if rank in calls]
    return bool(standing) and all(calls.get(rank, 0) >= max(standing) for rank in ranks)


@with_dumps
def find_ranks_unclear(job: Job, recordings: Recordings) -> Explanation | None:
    """Describe the wait for ranks whose last calls are not recorded: they may wait in one of these themselves."""
    ranks = job.recorded_roots.unclear
    if not (waiting := recordings.waiting_for(ranks)):
        return None
    reason = (
        f"{stand_text(call.rank for call in waiting)} in {described(waiting[0])},"
        f" {place_text(recordings, waiting[0])}, and {ranks_text(ranks)} did not come there; the dumps of"
        f" {ranks_text(ranks)} lack the last calls, in one of which a rank may wait, too"
    )
    diagnosis = diagnose(job, Kind.UNDECIDABLE, reason, [], collect=[stacks_of(ranks_text(ranks))])
    set_call(diagnosis, waiting[0])
    return cite(job, diagnosis, waiting=waiting)


@with_dumps
def find_ranks_not_begun(job: Job, recordings: Recordings) -> Explanation | None:
    """Find ranks whose GPU did not begin a call that all members made, and that the GPUs of the others began.

    PyTorch sees the begin only with TORCH_NCCL_ENABLE_TIMING=1 or desync debug (ProcessGroupNCCL.cpp, ncclStartEvent).
    """
    if recordings.outdated:
        return None
    for place in job.recorded_roots.standing:
        calls = calls_at(recordings, place)
        waiting = [call for call in calls if call.is_started]
        lagging = [call for call in calls if not call.is_started]
        is_complete = len(calls) == len(recordings.members[place.group])
        if not is_complete or not 0 < len(lagging) < len(waiting):
            continue
        reason = (
            f"made {described(lagging[0])}, {place_text(recordings, lagging[0])}, as the other members did, and its GPU"
            f" did not begin it, while {stand_text(call.rank for call in waiting)} in it: what was queued on that"
            " GPU before has not ended, or the thread that watches it stopped"
        )
        diagnosis = diagnose(job, Kind.LAGGING, reason, [call.rank for call in lagging], how=How.NOT_BEGUN)
        ranks = ranks_text(call.rank for call in lagging)
        diagnosis.collect = [f"look at the GPUs and the kernel's log on the hosts of {ranks}: `{LOOK_AT_HOST}`"]
        set_call(diagnosis, lagging[0])
        return cite(job, diagnosis, culprit=lagging, waiting=waiting)
    return None


@with_dumps
def find_common_call(job: Job, recordings: Recordings) -> Explanation | None:
    """Find calls at which all members of a group stand: none is missing, and the calls agree."""
    places = [place for place in job.recorded_roots.standing if place.standing and not place.missing]
    if not places and job.recorded_roots.messages:
        return describe_met_messages(job, recordings, job.recorded_roots.messages)
    if not places:
        return None
    if recordings.outdated:
        ranks = ranks_text(recordings.outdated)
        reason = (
            f"others completed collectives with {ranks} that the {recordings.noun}s of {ranks} do not show:"
            " they were written before"
        )
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN])
        diagnosis.collect = [request(recordings.noun, "all ranks, written at one time")]
        return job.cite(diagnosis, context=[recordings.head(rank) for rank in sorted(recordings.outdated)[:SHOWN]])
    place = max(places, key=lambda place: len(place.standing))
    calls = calls_at(recordings, place)
    reason = f"{stand_text(place.standing)} in {described(calls[0])}, {place_text(recordings, calls[0])}"
    if place.unread:
        reason += f"; in the dumps of {ranks_text(place.unread)} the call at which they stand was overwritten"
        diagnosis = diagnose(job, Kind.UNDECIDABLE, reason, [], collect=[stacks_of(ranks_text(place.unread))])
    elif place.without_dump:
        ranks = ranks_text(place.without_dump)
        diagnosis = diagnose(
            job, Kind.UNDECIDABLE, f"{reason}; of {ranks} no {recordings.noun} shows whether they called it", []
        )
        diagnosis.collect = [request(recordings.noun, ranks)]
    else:
        is_listed = recordings.is_listed(place.group)
        complete = "no member is missing" if is_listed else "no dump is missing, though none lists the members"
        reason += f"; the calls agree, and {complete}: the transport or a GPU, not the order of calls"
        diagnosis = diagnose(job, Kind.STUCK_TOGETHER, reason, [], basis=Basis.DUMPS)
        if place.completed or place.queued or not is_listed:
            diagnosis.doubt(Doubt.MAY_HAVE_COMPLETED)
        diagnosis.rests_on_stall = True  # a running job is in a call, too
    set_call(diagnosis, calls[0])
    return cite(job, diagnosis, waiting=calls)


@with_dumps
def find_open_messages(job: Job, recordings: Recordings) -> Explanation | None:
    """Describe ranks that stand at a message while others wait for them in a collective: either may be at fault."""
    if not job.recorded_roots.open_messages:
        return None
    calls = [
        message
        for call in job.recorded_roots.open_messages
        for message in recordings.batch(call)
        if message.peer in recordings.dumps and not recordings.meets(message)
    ]
    ranks = sorted({rank for call in calls for rank in (call.rank, call.peer) if rank is not None})
    where = [f"rank {call.rank} in {described(call)}, {place_text(recordings, call)}" for call in calls[:SHOWN]]
    reason = (
        f"in a circle of messages and collectives ranks wait for each other: {'; '.join(where)}; either the peer left"
        " out the matching call, or the message was posted in advance"
    )
    diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=[stacks_of(ranks_text(ranks))])
    return cite(job, diagnosis, context=calls)


def describe_met_messages(job: Job, recordings: Recordings, calls: list[RecordedCall]) -> Explanation:
    """Describe messages at both sides of which the ranks stand, and that do not arrive."""
    where = [f"rank {call.rank} stands in {described(call)}, {place_text(recordings, call)}" for call in calls]
    reason = f"{'; '.join(where[:SHOWN])}: both sides of a message are there, and it does not arrive"
    diagnosis = diagnose(job, Kind.STUCK_TOGETHER, reason, [])
    diagnosis.doubt(Doubt.COPIED_WHILE_RUNNING)
    diagnosis.basis, diagnosis.rests_on_stall = Basis.DUMPS, True
    set_call(diagnosis, calls[0])
    return cite(job, diagnosis, waiting=calls)
