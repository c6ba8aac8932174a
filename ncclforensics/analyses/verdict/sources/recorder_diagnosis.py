"""Parts of a diagnosis by Flight Recorder dumps: ranks, calls and places in words, and the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps

from ncclforensics.analyses.hang.recorder_graph import Recordings, Standing
from ncclforensics.analyses.job.text.recorder_groups import RecordedCall
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import DATATYPES, count_of, ranks_text
from ncclforensics.data.variables import hosts_of

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


def diagnose(job: Job, verdict: Kind, reason: str, numbers: list[int]) -> Explanation:
    """Return a diagnosis whose culprits are given by their numbers in the job."""
    return job.explanation_by(verdict, reason, numbers, Doubt.DUMPS_OF_ANOTHER_MOMENT)


def set_call(diagnosis: Explanation, call: RecordedCall | None) -> None:
    """Take a recorded call for the call of a diagnosis."""
    if call is None:
        return
    is_known = call.datatype is not None and call.datatype < len(DATATYPES) and call.elements is not None
    diagnosis.call = Operation.of(call.of_nccl) if is_known else Operation(name=call.of_nccl["name"])


def cite(job: Job, diagnosis: Explanation, what: str, calls: list[RecordedCall]) -> None:
    """Cite the dumps of the first of these calls."""
    job.cite(diagnosis, what, calls[:SHOWN])


def communicator_of(job: Job, recordings: Recordings, diagnosis: Explanation) -> str | None:
    """Return the communicator of the process group at whose call the culprits are waited for, collectives first.

    The same order decides which call the diagnosis names.
    """
    blamed = job.numbers_blamed(diagnosis)
    awaited: list[RecordedCall] = [
        call
        for rank in sorted(recordings.read)
        if (call := recordings.blocking(rank)) and not blamed.isdisjoint(recordings.targets(rank))
    ]
    first = min(awaited, key=lambda call: bool(call.is_p2p), default=None)
    return job.communicators_of_groups.get(first.group) if first else None
