"""Judge jobs by PyTorch's and the launcher's text: compared calls, failed ranks, barriers, the store, time-outs.

A rank that reports a closed connection or a time-out is a victim. Where no line shows which rank failed or stopped, the
verdict is `undecidable`: a rank that printed nothing is a suspect and no culprit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ncclforensics.analyses.job.ends.exit_rows import EXIT, IN_TABLE, SIGNAL, ProcessExit
from ncclforensics.analyses.job.identity.rank_numbers import numbers_below
from ncclforensics.analyses.job.text.torch_text import (
    BARRIER,
    CLOSED,
    IN_HANDLER,
    SIZE,
    TIMED_OUT,
    TorchError,
    minority_of,
)
from ncclforensics.analyses.verdict.answer import LAST_WORDS, Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.failures import first_ends_of_nodes, first_seen_by_torchrun
from ncclforensics.analyses.verdict.sources import recorder_open
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.vocabulary import Basis, How, Kind
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.processes import REQUESTED_ENDS
from ncclforensics.data.torch_calls import CALLS_WITHIN
from ncclforensics.data.variables import COLLECT_OUTPUT, STACKS_OF_HOST
from ncclforensics.frames.columns import Row
from ncclforensics.grammar.values import numbers_of_ranges

if TYPE_CHECKING:
    from ncclforensics.analyses.hang.recorder_graph import Recordings

MONITORED_BARRIER = "monitored_barrier"
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "batch_isend_irecv", MONITORED_BARRIER)
MOST_PEERS = 3  # named
MOST_SILENT = 3  # whose last lines are cited
WITHOUT_A_WORD = (Kind.LAGGING, Kind.RANK_DIED, Kind.UNDECIDABLE)  # of ranks that may have reported nothing
COLLECT_STACKS = [
    f"while it stands still, now or on the next run, take all stacks on each host: `{STACKS_OF_HOST}`",
    pytorch.RECORDER_DUMPS,
]


def numbers_in_job(job: Job, rows: list[Row], column: str) -> dict[int, int] | None:
    """Return the rank in the job of each rank of a process group, or None where both are one.

    Lines that print both show it: `[rank5]: … Rank 1 …`.
    """
    pairs = {row[column]: row["global_rank"] for row in rows if None not in (row.get(column), row["global_rank"])}
    return pairs if any(number != of_job for number, of_job in pairs.items()) else None


def in_job(ranks: list[int], numbers: dict[int, int] | None) -> list[int]:
    """Return the ranks in the job of ranks of a process group, as `numbers_in_job` found them."""
    return ranks if numbers is None else sorted(numbers[rank] for rank in ranks if rank in numbers)


def ranks_with_output(job: Job) -> set[int]:
    """Return the ranks that lines or tags name, and those that a file is named after, which may hold no known line."""
    named = {row["hint"] for row in job.run.sources.values()} | {row["rank"] for row in job.run.of("last_word")}
    return {number for number in (*named, *job.rank_id_of) if number is not None}


def find_absent_at_barrier(job: Job) -> Explanation | None:
    """Find the ranks that did not come to a monitored barrier.

    A barrier that stops at the first absent rank names no other. Every rank that came prints that it did, so a rank
    that printed nothing until its launcher ended it did not come either.
    """
    rows = job.pytorch["monitored_barrier"]
    naming = [row for row in rows if row["ranks"]]
    if not naming:
        return None
    numbers = numbers_in_job(job, rows, "group_rank")
    named = sorted({number for row in naming for number in numbers_of_ranges(row["ranks"])})
    culprits = in_job(named, numbers)
    came = {row["group_rank"] for row in rows if row["group_rank"] is not None}
    is_first_only = not any("," in row["ranks"] for row in naming) and len(named) == 1
    silent: list[int] = []
    # A barrier that waited for all ranks says `Ranks`, also of a single one.
    is_of_all = any(row["form"].startswith("all_absent") for row in naming)
    if is_first_only and came and numbers is None and not is_of_all:
        asked = (row.rank_id for row in job.process_exits if row.signal in REQUESTED_ENDS)
        ended = set(job.rank_numbers(rank_id for rank_id in asked if rank_id is not None))
        with_errors = {row.rank for row in job.torch_errors}
        silent = sorted(ended - with_errors - came - {0, *named})
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts the barrier in front of each call: the tracebacks show which one.
    called = {row.call for row in job.torch_errors if row.kind == BARRIER} - {None, IN_HANDLER}
    wrapped = called.pop() if len(called) == 1 and not called & {*CALLS_WITHIN.values(), MONITORED_BARRIER} else None
    which = f"which PyTorch puts in front of {wrapped} (DETAIL)" if wrapped else "that others had reached"
    reason = f"did not come to the barrier {which}"
    if silent:
        reason += (
            f"; the barrier names rank {named[0]} alone, and no line that was read shows that {ranks_text(silent)} came"
        )
    diagnosis = job.explanation_by(Kind.LAGGING, reason, sorted({*culprits, *silent}), Doubt.OTHER_TEXT)
    called_name = wrapped or MONITORED_BARRIER
    diagnosis.call = Operation(name=called_name)
    came_late = {rank for rank, row in first_errors(job).items() if row.call == called_name}
    if came_late.issuperset(job.numbers_blamed(diagnosis)):
        diagnosis.how = How.LATE
    return job.cite(diagnosis, waiting=naming, context=[row for row in rows if row["group_rank"] is not None][:2])


def cite_last_words(job: Job, diagnosis: Explanation) -> None:
    """Cite the last line of each rank that stopped, or may have stopped, without a word of NCCL or PyTorch about it."""
    ends = [job.first_ends.get(rank_id) for rank_id in diagnosis.culprits]
    is_told = any(end is not None and end.how not in (SIGNAL, EXIT) for end in ends)
    if is_told or diagnosis.verdict not in WITHOUT_A_WORD or not job.run.is_only_job:
        return
    silent = {*job.numbers_blamed(diagnosis), *diagnosis.suspects}
    if len(silent) > MOST_SILENT:
        return
    reported = {end.source: end.line for end in ends if end is not None}  # behind it another launch may print
    words = [row for row in job.run.of("last_word") if row["rank"] in silent]
    last = [row for row in words if row["line"] < reported.get(row["source"], row["line"] + 1)]
    job.cite(diagnosis, **{LAST_WORDS: last})


# Calls that failed on all sides


def first_errors(job: Job) -> dict[int, TorchError]:
    """Return the first time-out or lost connection of each rank."""
    first: dict[int, TorchError] = {}
    for row in job.torch_errors:
        if row.kind in (TIMED_OUT, CLOSED, SIZE) and row.rank is not None:
            first.setdefault(row.rank, row)
    return first


def silent_ranks(job: Job, reporting: Iterable[int | None]) -> list[int]:
    """Return the ranks that printed no such error; a number implies all lower ones."""
    numbers = ranks_with_output(job)
    return sorted({*numbers, *numbers_below(max(numbers, default=0))}.difference(reporting))


def find_failed_calls(job: Job) -> Explanation | None:
    """Judge time-outs and lost connections of gloo by the calls in which the ranks were."""
    errors = [row for row in job.torch_errors if row.kind in (TIMED_OUT, CLOSED, SIZE)]
    first = first_errors(job)
    if not errors:
        return None
    if any(row.kind == SIZE for row in errors):
        return _judge_wrong_sizes(job, [row for row in errors if row.kind == SIZE])
    silent = silent_ranks(job, first)
    calls = {rank: row.call for rank, row in first.items() if row.call not in (None, IN_HANDLER)}
    ended = sorted(rank for rank, row in first.items() if row.call == IN_HANDLER and row.place)
    left = [row for rank, row in first.items() if rank not in ended]
    if 0 < len(ended) < len(left) and any(row.kind == TIMED_OUT for row in left):
        return _judge_ended(job, first, ended)
    has_all = bool(calls) and not silent and len(calls) == len(job.rank_ids) > 1
    is_timeout = all(row.kind == TIMED_OUT for row in first.values())
    names = sorted(set(calls.values()))
    is_collective = not set(names) & set(POINT_TO_POINT)
    if has_all and is_timeout and len(names) == 1 and is_collective and not set(names) & set(CALLS_WITHIN.values()):
        # Their highest number is a lower bound of the size, and torchrun names the processes of one node.
        reason = (
            f"{ranks_text(sorted(calls))}, all of which lines were read, timed out in {names[0]}: the transport failed,"
        )
        reason += " or their arguments differ"
        diagnosis = job.explanation_by(Kind.STUCK_TOGETHER, reason, [], Doubt.UNNAMED_MEMBER)
        diagnosis.collect = pytorch.compare_size(calls)
    elif has_all and len(names) > 1 and is_collective:
        outliers = minority_of(calls) if 2 * len(minority_of(calls)) < len(calls) else []
        others = {row.call: row for rank, row in sorted(first.items(), reverse=True) if rank not in outliers}
        call = "another call" if len(others) > 1 else "".join(map(_call_text, others.values()))
        where = f"was in {_call_text(first[outliers[0]])} while the others were in {call}" if outliers else ""
        reason = f"{where or _ends_text(first)}, if all use one process group"
        diagnosis = job.explanation_by(Kind.MISMATCH, reason, outliers, Doubt.OTHER_GROUP, how=How.SWAPPED)
        job.cite(diagnosis, minority=[_line_of_call(first[rank]) for rank in outliers])
        job.cite(diagnosis, majority=[_line_of_call(row) for row in others.values()])
    elif silent and silent == _ranks_that_left(job, silent):
        end = "ended with exit code 0 before the others, for torchrun neither saw a failure of it nor ended it"
        reason = f"{end}: {_ends_text(first)}"
        diagnosis = job.explanation_by(Kind.RANK_DIED, reason, silent, Doubt.OTHER_TEXT, how=How.LEFT)
        diagnosis.collect = [
            f"read the end of the output of {ranks_text(silent)}: a program ends so that has no more data or work"
        ]
    else:
        diagnosis = job.explanation_by(Kind.UNDECIDABLE, _unexplained(first, silent), [], Doubt.OPEN)
        diagnosis.suspects = silent if len(silent) == 1 else []
        peers = list(dict.fromkeys(row.peer for row in errors if row.kind == CLOSED and row.peer))
        of_ended = ranks_text(silent) or f"the processes at {some_of(peers, MOST_PEERS)}" * bool(peers)
        kinds = {row.kind for row in errors}
        if of_ended and kinds != {TIMED_OUT}:  # a rank that ended without an error closes its connections, too
            diagnosis.collect = [f"collect the exit code and the end of the output of {of_ended}"]
        diagnosis.collect += COLLECT_STACKS * (TIMED_OUT in kinds) + COLLECT_OUTPUT * (not silent)
    awaited = [call for rank, call in calls.items() if rank not in outliers] if diagnosis.culprits else names
    if len(set(awaited)) == 1 and awaited[0] not in CALLS_WITHIN.values():
        diagnosis.call = Operation(name=awaited[0])
    culprit_numbers = job.rank_numbers(diagnosis.culprits)
    job.cite(diagnosis, minority=[first[rank] for rank in culprit_numbers if rank in first])
    job.cite(diagnosis, waiting=[row for rank, row in sorted(first.items()) if rank not in culprit_numbers] or errors)
    return diagnosis


def _judge_ended(job: Job, first: dict[int, TorchError], ended: list[int]) -> Explanation:
    """Judge ranks that stood in code of their own when they were told to end, where others had timed out in a call.

    Python calls a handler between two of its own steps, so these ranks were in no call.
    """
    waiting = {rank: row for rank, row in first.items() if rank not in ended}
    claim = f"stood in {first[ended[0]].place} when the job was ended"
    diagnosis = job.explanation_by(Kind.LAGGING, claim, ended, Doubt.OTHER_TEXT, basis=Basis.STACKS)
    diagnosis.remarks.append(_ends_text(waiting))
    job.cite(diagnosis, culprit=[_line_of_call(first[rank]) for rank in ended])
    return job.cite(diagnosis, waiting=[row for _, row in sorted(waiting.items())])


def _ranks_that_left(job: Job, silent: list[int]) -> list[int]:
    """Return the ranks among these that ended with exit code 0 before torchrun gave up.

    On each node it names the process ids of those that failed and of those that it ended. Where these are as many as
    the other ranks of the node, none of the silent ones is among them.
    """
    rows = job.pytorch["elastic_failure"]
    placed = [row for row in rows if row["rank"] is not None and row["local_rank"] is not None]
    per_node = 1 + max((row["local_rank"] for row in placed), default=0)
    left: set[int] = set()
    reported = {row["rank"] for row in placed}
    silent = [rank for rank in silent if rank not in reported]
    for source, first in {(row["source"], row["rank"] - row["local_rank"]) for row in placed}:
        named = {row["pid"] for row in rows if row["source"] == source and row["pid"] is not None}
        own = [rank for rank in silent if first <= rank < first + per_node]
        if len(named) == per_node - len(own):
            left.update(own)
    return sorted(left)


@recorder_open.with_dumps
def find_unrecorded_difference(job: Job, recordings: Recordings) -> Explanation | None:
    """Find the only rank without a dump, if a message of an unexpected size shows that calls differ and no dump does.

    All other ranks recorded the same last call of the only process group.
    """
    wrong_sizes = [row for row in job.torch_errors if row.kind == SIZE]
    if not wrong_sizes or len(recordings.positions) != 1:
        return None
    group, positions = next(iter(recordings.positions.items()))
    undumped = {*job.rank_id_of, *recordings.members[group]} - set(recordings.dumps)
    last = {recordings.enqueued(group, rank) for rank in positions}
    if len(undumped) != 1 or len(last) != 1 or recordings.outdated or len(positions) < 2:
        return None
    calls = [called for rows in recordings.collectives_at(group, last.pop()).values() for called in rows]
    recorded = {(call.name, call.elements, call.dtypes) for call in calls}
    if len(recorded) != 1 or len(calls) != len(positions):
        return None
    others = ranks_text(call.rank for call in calls)
    place = recorder_open.place_text(recordings, calls[0])
    reason = (
        f"made another call than {others}, which recorded {recorder_open.described(calls[0], with_size=True)},"
        f" {place}: a message of an unexpected size shows that calls differ, and only this rank left no dump"
    )
    diagnosis = job.explanation_by(Kind.MISMATCH, reason, [*undumped], Doubt.OTHER_TEXT, how=How.ANOTHER)
    recorder_open.set_call(diagnosis, calls[0])
    job.cite(diagnosis, failure=wrong_sizes)
    recorder_open.cite(job, diagnosis, majority=calls)
    return diagnosis


def _judge_wrong_sizes(job: Job, rows: list[TorchError]) -> Explanation:
    """Judge messages of an unexpected size: the ranks make different calls, and no line shows which rank differs."""
    ranks = ranks_text(sorted({row.rank for row in rows if row.rank is not None})) or "a rank"
    reason = f"{ranks} received more bytes than expected: the ranks do not make the same call, or differ in its size"
    diagnosis = job.explanation_by(Kind.MISMATCH, reason, [], Doubt.OTHER_TEXT, how=How.SWAPPED)
    diagnosis.collect = [
        "set, and run again, so that PyTorch names the call of every rank: `export TORCH_DISTRIBUTED_DEBUG=DETAIL`"
    ]
    return job.cite(diagnosis, failure=rows)


def _ends_text(first: dict[int, TorchError]) -> str:
    """Say what the ranks report: `rank 0 timed out in barrier and ranks 1-3 lost a connection`."""
    by_end: dict[str, list[int]] = defaultdict(list)
    for rank, row in sorted(first.items()):
        where = f" in {row.call}" if row.call else f" at {row.place}" if row.place else ""
        by_end[("timed out" if row.kind == TIMED_OUT else "lost a connection") + where].append(rank)
    return " and ".join(f"{ranks_text(ranks)} {what}" for what, ranks in by_end.items())


def _call_text(row: TorchError) -> str:
    """Name the call that a rank was in, and where the program made it."""
    return str(row.call) + (f" called from {row.place}" if row.place else "")


def _line_of_call(row: TorchError) -> TorchError:
    """Return an error at the line of its traceback that shows the call."""
    return row._replace(line=row.call_line or row.line)


def _unexplained(first: dict[int, TorchError], silent: list[int]) -> str:
    """Say what the ranks report, and which printed nothing."""
    without = f", and no error of {ranks_text(silent)} was read" * (len(silent) == 1)
    return (_ends_text(first) or "ranks lost a connection or timed out") + without


def describe_end(job: Job) -> Explanation:
    """Describe a job in whose text no rank failed and none timed out."""
    terminated = [row for row in job.pytorch["elastic_failure"] if row["form"] in ("terminated", "signal")]
    failed = any(row["form"] in IN_TABLE for row in job.pytorch["elastic_failure"])
    in_table = [row for row in job.process_exits if row.rank is not None] if failed else []
    reason = "what was read of PyTorch's text does not decide it"
    if terminated or job.text.is_cancelled:
        is_open = not job.stall_evidence
        reason = "the job was told to end" + "; whether it stood still is not known" * is_open
    elif failed:
        reason = (
            f"torchrun ended the job because {_failed_in_table(job)} failed; which of them failed first is not known"
        )
        if seen := first_seen_by_torchrun(job):
            reason = f"{seen[2:]}; one that a time-out or an error of another process ended looks the same"
    diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN])
    diagnosis.collect = [*COLLECT_STACKS * (not failed), *COLLECT_OUTPUT]
    return job.cite(diagnosis, context=[*terminated, *(first_ends_of_nodes(job) or in_table[:MOST_PEERS])])


def _failed_in_table(job: Job) -> str:
    """Name the ranks in torchrun's tables and their hosts, those whose entry is cut off at last."""
    exits = [row for row in job.process_exits if row.rank is not None]
    by_node: dict[str, list[ProcessExit]] = defaultdict(list)
    for row in sorted(exits, key=lambda row: row.rank or 0):
        by_node[row.node or ""].append(row)
    names = []
    for node, rows in by_node.items():
        names.append(ranks_text(row.rank for row in rows if row.rank is not None) + f" on {node}" * bool(node))
    in_table = {row["rank"] for row in job.pytorch["elastic_failure"] if row["form"] == "rank"}
    names.append(ranks_text(in_table - {row.rank for row in exits} - {None}))
    return " and ".join(filter(None, names)) or "processes"
