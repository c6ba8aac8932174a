"""Judge a hang by the stacks of the ranks: which rank stands outside of any collective while the others wait in one.

Equal places are grouped over the ranks, as STAT does. Stacks show a moment: a rank that computes may be a slow one of
a healthy job. Without a sign that the job stood still, only a rank that waits for something else is named. Where all
ranks stand in the same call, stacks cannot tell which one made another call before.

Sources: Arnold et al., Stack Trace Analysis for Large Scale Debugging (IPDPS 2007); torch.distributed.debug.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ncclforensics.analyses.hang.rank_stacks import RankStack
from ncclforensics.analyses.job.identity.rank_numbers import numbers_below
from ncclforensics.analyses.job.text.torch_text import TIMED_OUT
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.sources import torch_text
from ncclforensics.analyses.verdict.sources.recorder_open import diagnose
from ncclforensics.analyses.verdict.vocabulary import Basis, How, Kind
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.stack_classes import (
    BACKWARD,
    COLLECTIVE,
    GPU,
    MEETINGS,
    POINT_TO_POINT,
    PYTHON,
    REQUESTS,
    UNSHOWN,
    short_name,
)
from ncclforensics.data.variables import COLLECT_STUCK_HOSTS, stacks_of
from ncclforensics.frames.columns import Row

SHOWN = 3  # places in a text
DRIVER_LOCK = "it waits for a lock of the CUDA driver, which another thread of its process holds"
LONGEST_LIST = 24  # characters of a list of ranks
COLLECT_RECORDER = "collect the Flight Recorder dumps of all ranks: they show which call each rank made last"
COLLECT_AGAIN = "take the stacks of all ranks again in a minute: a rank that stands at the same line does not move"


def place_text(row: RankStack) -> str:
    """Return where a stack stands: `load_batch, dataset.py:212 (data loader)`."""
    if row.call and (row.kind in (COLLECTIVE, BACKWARD, GPU) or row.call in MEETINGS):
        return f"{row.call} called from {_file_text(row)}"
    kind = f" ({DRIVER_LOCK})" if row.is_locked else "" if row.kind == PYTHON else f" ({row.kind})"
    place = f", {_file_text(row)}" if row.file else ""
    return f"{short_name(row.function)}{place}{kind}"


def _file_text(row: RankStack) -> str:
    name = (row.file or "").rpartition("/")[2]
    return f"{name}:{row.number}" if row.number else name


def describe_stacks(rows: list[RankStack], numbers: Mapping[int, int | None]) -> list[tuple[str, RankStack]]:
    """Return each place with its ranks, and the first row that is there; the largest group first.

    `numbers`: rank id -> number of the rank, or None. A text: `ranks 0-2 stand in all_reduce called from a.py:8`. A
    row without a rank id is a process.
    """
    groups: dict[str, list[RankStack]] = defaultdict(list)
    for row in rows:
        groups[place_text(row)].append(row)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(f"{_ranks(group, numbers)} {_verb(group)} in {place}", group[0]) for place, group in ordered]


def _verb(rows: list[RankStack]) -> str:
    return "stands" if len(rows) == 1 else "stand"


def _ranks(rows: list[RankStack], numbers: Mapping[int, int | None]) -> str:
    """Return the ranks of these rows; many of them only as a number."""
    known = [number for row in rows if (number := numbers.get(row.rank_id)) is not None]
    text = ranks_text(known)
    if len(known) < len(rows):
        pids = {row.pid for row in rows}
        return f"process {rows[0].pid}" if len(rows) == 1 and None not in pids else count_of(len(rows), "process")
    return text if len(text) <= LONGEST_LIST else count_of(len(rows), "rank")


def _groups_text(job: Job, rows: list[RankStack]) -> str:
    """Return the places of ranks in one text."""
    described = describe_stacks(rows, {rank_id: row.rank for rank_id, row in job.rank_ids.items()})
    parts = [text for text, _ in described[:SHOWN]]
    if len(described) > SHOWN:
        parts.append(f"others stand at {count_of(len(described) - SHOWN, 'other place')}")
    return ", ".join(parts)


def is_standing_still(job: Job) -> bool:
    """Whether stacks show that the job stood still: a watchdog took them, or all ranks are where they were before."""
    rows = job.stacks or job.unranked_stacks
    return bool(rows) and (any(row.by_watchdog for row in rows) or all(row.is_still for row in rows))


def find_odd_stacks(job: Job) -> Explanation | None:
    """Find ranks that stand outside of any collective, or in another one than all others; None without stacks."""
    rows = job.stacks
    if len(rows) < 2:
        return None
    outside = [row for row in rows if not row.is_waiting]
    waiting = [row for row in rows if row.is_waiting]
    if any(row.has_moved for row in rows):
        return _describe(job, "between two dumps ranks moved on", collect=COLLECT_AGAIN)
    if not outside:
        return _judge_calls(job, waiting)
    if not waiting and all(row.has_ended and job.rank_ids[row.rank_id].rank is None for row in rows):
        return None  # parts of one program, which ended as it was interrupted
    if all(row.kind in UNSHOWN for row in waiting):  # the main thread, which is not shown, may stand anywhere
        return _describe(job, "no rank is shown in a collective", collect=COLLECT_AGAIN)
    if len(outside) > len(waiting):
        return _describe(job, "most ranks stand outside of any collective", collect=COLLECT_AGAIN)
    is_still = is_standing_still(job) or has_stall_lines(job)
    if not is_still and any(row.kind == REQUESTS for row in outside):
        return _describe(job, "a server without work looks like this", collect=COLLECT_AGAIN)
    is_blocked = [row.is_blocked or row.is_still or None for row in outside]
    if not is_still and any(row.is_blocked is False and not row.is_still for row in outside):
        reason = "one look does not show whether a rank that computes is stuck or slow"
        return _describe(job, reason, collect=COLLECT_AGAIN)
    places = list(dict.fromkeys(place_text(row) for row in outside))
    claim = f"{_verb(outside)} in {' and '.join(places[:SHOWN])}"
    is_init = all(row.call in MEETINGS for row in waiting)
    verdict = Kind.INIT_INCOMPLETE if is_init else Kind.LAGGING
    is_running = Doubt.MET_AGAIN if is_standing_still(job) else Doubt.RUNS_ON
    diagnosis = _diagnose(job, verdict, is_running, claim, outside, waiting)
    diagnosis.remarks.append(_groups_text(job, waiting))
    is_collective = all(row.kind == COLLECTIVE or row.call in MEETINGS for row in waiting)
    if missing := _ranks_without_stack(job):
        diagnosis.remarks.append(f"there is no stack of {ranks_text(missing)}")
        diagnosis.collect.append(stacks_of(ranks_text(missing)))
    if not is_collective and not is_still:
        diagnosis.remarks.append("these calls may wait for other ranks, or compute")
    if missing or (not is_still and (None in is_blocked or not is_collective)):
        diagnosis.doubt(Doubt.CALL_WAITS_OR_COMPUTES)
    if any(row.kind == PYTHON and not row.call for row in outside):  # a call of C++ has no frame of Python
        diagnosis.doubt(Doubt.WAITS_FOR_WORK)
    return diagnosis


def has_stall_lines(job: Job) -> bool:
    """Whether lines of PyTorch show that the job stood still."""
    return bool(job.timeouts or job.text.desyncs or job.torch_errors)


def _judge_calls(job: Job, rows: list[RankStack]) -> Explanation:
    """Judge ranks that all wait: one that is alone in its call is not where the others are."""
    groups: dict[str, list[RankStack]] = defaultdict(list)
    for row in rows:
        groups[place_text(row)].append(row)
    ordered = sorted(groups.values(), key=len)
    odd, largest = ordered[0], ordered[-1]
    calls = {row.call for row in rows}
    is_comparable = all(row.kind == COLLECTIVE or row.call in MEETINGS for row in rows) and not calls & POINT_TO_POINT
    missing = _ranks_without_stack(job)  # the rank that is alone in its call may wait for one of these
    if len(ordered) == 2 and len(odd) == 1 < len(largest) and is_comparable and len(calls) > 1 and not missing:
        reason = f"stands in {place_text(odd[0])}; {_groups_text(job, largest)}: another call, or one of another group"
        diagnosis = _diagnose(job, Kind.MISMATCH, Doubt.OTHER_GROUP, reason, odd, largest)
        diagnosis.how = How.SWAPPED
        diagnosis.collect = [COLLECT_RECORDER]
        return diagnosis
    if len(ordered) == 1:
        reason = "all ranks stand at the same place; stacks cannot tell which rank made another call before"
    elif beside := [row.rank_id for row in rows if row.kind in UNSHOWN]:
        reason = f"the stacks do not show the main thread of {job.names(beside)}"
    else:
        reason = "all ranks wait for others; stacks cannot tell which of them is waited for"
    reason += f", and there is no stack of {ranks_text(missing)}" if missing else ""
    return _describe(job, reason, collect=COLLECT_RECORDER)


def _ranks_without_stack(job: Job) -> list[int]:
    """Return the numbers of known ranks of which there is no stack; a number implies all lower ones."""
    numbers = job.rank_numbers(row.rank_id for row in job.stacks)
    known = {*job.rank_numbers(job.rank_ids), *job.absent, *numbers_below(max(numbers, default=-1) + 1)}
    return sorted(known - set(numbers))


def _diagnose(
    job: Job, verdict: Kind, doubt: Doubt, reason: str, odd: list[RankStack], others: list[RankStack]
) -> Explanation:
    diagnosis = job.explanation_of(verdict, reason, (row.rank_id for row in odd), doubt, basis=Basis.STACKS)
    diagnosis.call = Operation(name=next((row.call for row in others if row.call), None))
    return diagnosis.add_evidence(culprit=odd[:4], waiting=others[:3])


def _describe(job: Job, reason: str, collect: str) -> Explanation:
    """Return where the ranks stand, without naming a culprit."""
    diagnosis = Explanation(
        Kind.UNDECIDABLE, f"{reason}: {_groups_text(job, job.stacks)}", [Doubt.OPEN], basis=Basis.STACKS
    )
    diagnosis.collect = [collect]
    return diagnosis.add_evidence(context=job.stacks[:4])


def describe_one(job: Job) -> Explanation | None:
    """Describe where one process stands, if nothing else was read of its job."""
    if len(job.stacks) != 1 or any(job.pytorch.values()):
        return None
    return _describe(job, "the stacks of one process were read", collect=COLLECT_STUCK_HOSTS[0])


def are_in_collectives(job: Job) -> bool:
    """Whether all ranks stand in collectives, by stacks that do not show their ranks."""
    rows = job.unranked_stacks
    return not job.stacks and len(rows) >= len(job.rank_ids) and all(row.kind == COLLECTIVE for row in rows)


def mention_stacks(job: Job, diagnosis: Explanation) -> None:
    """Add where the ranks of a diagnosis stand, if it is not by the stacks."""
    if not job.stacks and diagnosis.basis != Basis.STACKS and (rows := _unranked(job)):
        diagnosis.remarks.append(f"of the stacks, which do not show their ranks: {_groups_text(job, rows)}")
        diagnosis.add_evidence(context=rows[:2])
    if len(job.stacks) == 1 and diagnosis.verdict == Kind.UNDECIDABLE and diagnosis.basis != Basis.STACKS:
        diagnosis.remarks.append(f"by the stacks of one process alone: {_groups_text(job, job.stacks)}")
        diagnosis.add_evidence(context=job.stacks)
    of_culprits = [row for row in job.stacks if row.rank_id in diagnosis.culprits]
    is_of_calls = diagnosis.verdict in (Kind.LAGGING, Kind.MISMATCH, Kind.UNMATCHED)
    if not of_culprits or not is_of_calls or diagnosis.basis == Basis.STACKS:
        return
    others = [row for row in job.stacks if row.rank_id not in diagnosis.culprits]
    are_together = len({place_text(row) for row in job.stacks}) == 1
    groups = [job.stacks] if are_together else [rows for rows in (of_culprits, others) if rows]
    diagnosis.remarks.append(f"by the stacks: {', '.join(_groups_text(job, rows) for rows in groups)}")
    diagnosis.add_evidence(culprit=of_culprits[:2], waiting=others[:2])


def _unranked(job: Job) -> list[RankStack]:
    """Return where processes stand whose stacks do not show which rank they are; those outside of collectives first."""
    return sorted(job.unranked_stacks, key=lambda row: bool(row.is_waiting))


def find_silent_outside(job: Job) -> Explanation | None:
    """Find the ranks that announced fewer calls, or printed no time-out, if as many processes stand outside of calls.

    Neither source alone shows so much: the stacks name no rank, and a running job announces calls, too. So they have to
    be twice alike, unless the others timed out.
    """
    lagging, leading = _announced(job) or _timed_out(job)
    rows = _unranked(job)
    waiting, outside = [row for row in rows if row.is_waiting], [row for row in rows if not row.is_waiting]
    are_as_many = not job.stacks and (len(lagging), len(leading)) == (len(outside), len(waiting))
    is_stalled = all(row.is_still for row in rows) or has_stall_lines(job)
    if not 0 < len(lagging) < len(leading) or not are_as_many or not is_stalled:
        return None
    others = ranks_text(row["rank"] for row in leading)
    newest = leading[0].get("sequence")
    reason = f"announced no call {newest} to PyTorch, and {others} did, which stand in it"
    places = dict.fromkeys(place_text(row) for row in outside)
    diagnosis = diagnose(
        job, Kind.LAGGING, reason if newest else f"{_verb(outside)} in {' and '.join(places)}", [*lagging]
    )
    if newest is None:
        diagnosis.basis = Basis.STACKS
        diagnosis.remarks.append("the stacks name no rank: as many wait as ranks timed out")
    diagnosis.call = Operation(name=waiting[0].call)
    return diagnosis.add_evidence(culprit=[*lagging.values()][:2] if newest else outside[:1], waiting=leading[:2])


def _announced(job: Job) -> tuple[dict[int, Row], list[Row]] | None:
    """Return the ranks that announced fewer calls to PyTorch than others, with their lines, and the lines of these."""
    announced = job.pytorch["announced_position"]
    newest = max((row["sequence"] for row in announced), default=None)
    lagging = {row["rank"]: row for row in announced if row["sequence"] < newest}
    return (lagging, [row for row in announced if row["sequence"] == newest]) if announced else None


def _timed_out(job: Job) -> tuple[dict[int, Row], list[Row]]:
    """Return the ranks that printed no error while others timed out, and the first lines of these."""
    first = torch_text.first_errors(job)
    silent = torch_text.silent_ranks(job, first)
    is_timeout = all(row.kind == TIMED_OUT for row in first.values())
    return ({rank: {} for rank in silent}, [row._asdict() for row in first.values()]) if is_timeout else ({}, [])
