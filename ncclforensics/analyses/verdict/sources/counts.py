"""Compare how many collectives the sources of a job count on each rank: NCCL's lines, dumps, watchdogs, and memory.

Dumps and watchdogs count the collectives of a process group from its creation, as NCCL's lines show them. A rank that
waits made its last call by each of them. Where on no rank two of them agree, an earlier run left one behind, or all
logs lack lines: then what follows from the one says nothing about the other.

The last lines of a log may be lost in a buffer. A number that NCCL counted in memory, and that its Inspector, a
profiler's trace, RAS or a dump shows, proves that the rank made the call. That a source shows no later call proves
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.hang.watchdog_works import WORLD as GUIDS_OF_WORLD
from ncclforensics.analyses.job.calls.counted_calls import INSPECTOR, PROFILER, RAS
from ncclforensics.analyses.job.text.recorder_groups import WORLD
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import Kind, Source
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.torch_calls import ONE_CALL
from ncclforensics.data.variables import COLLECT_ANEW
from ncclforensics.frames.columns import Row

OTHER_COUNTS = "on no rank {source} count as many collectives as NCCL's lines"
# No member completes one of these before all have called it.
SYMMETRIC = ("AllReduce", "AllGather", "ReduceScatter")
IN_MEMORY = {INSPECTOR: Source.INSPECTOR, PROFILER: Source.PROFILER, RAS: Source.REPORTS}
Counted = dict[str, dict[int, int]]  # communicator -> rank id -> collectives


class Count(NamedTuple):
    """How many collectives of one communicator a rank made, by its log and by another source.

    `logged` is None where the log shows that the communicator was created, and no call on it: calls may not be logged.
    """

    rank_id: int
    key: str
    logged: int | None
    counted: int


def compare_counts(job: Job) -> None:
    """Leave out dumps that all ranks wrote before their logs end, and say why sources may be of another run."""
    job.communicators_of_groups = _communicators_of_groups(job)
    known = [row for row in counts_of(job, Source.DUMPS) if row.logged is not None]
    in_logs = [(job.rank_number(row.rank_id), row.logged, row.counted) for row in known if row.logged is not None]
    for counts, name in ((in_logs, "log"), (_counts_of_time_outs(job), "time-out")):
        if counts and all(newer > dumped for _, newer, dumped in counts):
            job.recordings, (rank, newer, dumped) = None, counts[0]
            job.left_out.append(
                "the Flight Recorder dumps do not count, for all ranks wrote them before: that of rank"
                f" {rank} shows {count_of(dumped, 'collective')} of a group, and its {name} {newer}"
            )
    if _differ(known):
        job.doubts[Source.DUMPS] = OTHER_COUNTS.format(source=Source.DUMPS)
    elif size := _size_of_unknown_communicator(job):
        job.doubts[Source.DUMPS] = (
            f"{Source.DUMPS} show calls of all {size} ranks, and the logs no communicator of as many"
        )
    if _differ(counts_of(job, Source.WATCHDOGS)):
        job.doubts[Source.WATCHDOGS] = OTHER_COUNTS.format(source=Source.WATCHDOGS)


def _differ(counts: list[Count]) -> bool:
    known = [row for row in counts if row.logged is not None]
    return bool(known) and all(row.logged != row.counted for row in known)


def as_possibility(job: Job, diagnosis: Explanation | None, source: Source) -> Explanation | None:
    """Return the diagnosis by a source that may be of another run as a possibility."""
    if diagnosis is not None:
        diagnosis.doubt(
            Doubt.OF_ANOTHER_RUN, f"{job.doubts[source]}: they may be of another run, or the logs lack lines"
        )
        diagnosis.collect += COLLECT_ANEW
    return diagnosis


def _size_of_unknown_communicator(job: Job) -> int | None:
    """Return the number of all ranks by the dumps that show calls of NCCL on them, if no log has so large a one."""
    if job.recordings is None or any(row.line is None for row in job.memberships):
        return None
    size = len(job.recordings.members.get(WORLD, ()))
    is_of_nccl = job.recordings.calls.filter((pl.col("group") == WORLD) & (pl.col("library") == "nccl")).height > 0
    return size if is_of_nccl and job.nranks and job.nranks < size else None


def _communicators_of_groups(job: Job) -> dict[str, str]:
    """Process group -> the only communicator that has its members, as far as these have a log."""
    if job.recordings is None:
        return {}
    groups_of: dict[tuple[int, int], list[str]] = defaultdict(list)  # rank, size -> groups
    members = {group: frozenset(ranks) for group, ranks in job.recordings.members.items()}
    for group, ranks in members.items():
        for rank in ranks:
            groups_of[rank, len(ranks)].append(group)
    keys: dict[str, list[str]] = defaultdict(list)
    for key, rows in job.members.items():
        numbers = job.rank_numbers(row.rank_id for row in rows)
        candidates = groups_of[numbers[0], rows[0].nranks] if numbers else []
        alike = [group for group in candidates if members[group].issuperset(numbers)]
        for group in alike:
            keys[group].append(key if len(alike) == 1 else "")
    return {group: found[0] for group, found in keys.items() if len(found) == 1 and found[0]}


def counts_of(job: Job, source: Source) -> list[Count]:
    """Return what a source and the logs count of each rank whose log has the creation of a communicator."""
    counted = COUNTED_BY[source](job)
    if not counted:
        return []
    logged = job.run.collectives_made
    unplaced = {(rank_id, key) for rank_id, key, _ in job.unplaced}
    return [
        Count(rank_id, key, logged[rank_id].get(key, None if row.is_complete else 0), of_ranks[rank_id])
        for key, of_ranks in counted.items()
        for row in job.members[key]
        for rank_id in [row.rank_id]
        if of_ranks.get(rank_id, 0) > 0 and (rank_id, key) not in unplaced
        if row.line is not None and not row.is_inferred
    ]


def _counted_by_dumps(job: Job) -> Counted:
    """Count in the groups of the dumps whose every collective is one call of NCCL."""
    if job.recordings is None:
        return {}
    names = dict(job.recordings.calls.group_by("group").agg(pl.col("name").unique()).iter_rows())
    dumped = {}
    for group, key in job.communicators_of_groups.items():
        rows = job.recordings.positions[group]
        if set(names.get(group, ())).issubset(ONE_CALL) and not any(row["has_p2p"] for row in rows.values()):
            dumped[key] = _by_rank_id(job, key, {rank: job.recordings.enqueued(group, rank) for rank in rows})
    return dumped


def _counts_of_time_outs(job: Job) -> list[tuple[int | None, int, int]]:
    """Return each rank with what its time-out and its dump count."""
    if job.recordings is None:
        return []
    reported = [row for row in job.timeouts if row.enqueued and row.guid in job.recordings.positions]
    dumped = [row for row in reported if row.rank in job.recordings.positions[row.guid]]
    return [(row.rank, row.enqueued or 0, job.recordings.enqueued(row.guid, row.rank)) for row in dumped]


def _counted_by_watchdogs(job: Job) -> Counted:
    """Count in the group of all ranks."""
    keys = [key for key, rows in job.members.items() if rows[0].nranks == job.nranks]
    enqueued = {row.rank: row.enqueued for row in job.timeouts if row.guid in GUIDS_OF_WORLD and row.enqueued}
    return {keys[0]: _by_rank_id(job, keys[0], enqueued)} if len(keys) == 1 else {}


def _by_rank_id(job: Job, key: str, by_number: dict[int, int]) -> dict[int, int]:
    numbers = {rank_id: job.rank_number(rank_id) for rank_id in job.seen_members(key)}
    return {rank_id: by_number[rank] for rank_id, rank in numbers.items() if rank is not None and rank in by_number}


def _counted_in_memory(job: Job, shown_by: str) -> Counted:
    """Count what NCCL counted itself; a completed call was made by all members."""
    most: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)  # communicator, operation
    for row in job.counted_calls:
        if row["shown_by"] == shown_by:
            is_by_all = shown_by == INSPECTOR and row["operation"] in SYMMETRIC
            of_ranks = most[row["key"], row["operation"]]
            for rank_id in job.seen_members(row["key"]) if is_by_all else [row["rank_id"]]:
                of_ranks[rank_id] = max(row["calls"], of_ranks.get(rank_id, 0))
    counted: Counted = defaultdict(lambda: defaultdict(int))
    for (key, _), of_ranks in most.items():
        for rank_id, calls in of_ranks.items():
            counted[key][rank_id] += calls
    return counted


COUNTED_BY: dict[Source, Callable[[Job], Counted]] = {
    Source.DUMPS: _counted_by_dumps,
    Source.WATCHDOGS: _counted_by_watchdogs,
    **{source: partial(_counted_in_memory, shown_by=shown_by) for shown_by, source in IN_MEMORY.items()},
}


def find_made(job: Job, source: Source) -> list[Count]:
    """Find the ranks that the logs show missing from a collective, and of which a source counts that they made it.

    The logs of the other members must show as many calls: else the source is of another moment, or counts calls that
    are replayed from CUDA graphs. Dumps show other calls, too, so that they are known to be of this run.
    """
    if source in job.doubts:
        return []
    awaited: dict[str, set[int]] = defaultdict(set)
    for edge in job.awaited_calls:
        if edge.kind == "collective":
            awaited[edge.key].update(edge.waits_for)
    counts = [row for row in counts_of(job, source) if row.key in awaited]
    others = [row for row in counts if row.rank_id not in awaited[row.key]]
    unfit = {row.key for row in others if row.counted > (row.logged or 0)}
    comparable = {row.key for row in others} - unfit
    return [
        row
        for row in counts
        if row.rank_id in awaited[row.key] and row.counted > (row.logged or 0)
        if row.key in comparable or source is Source.DUMPS
    ]


def made_text(job: Job, source: Source, made: list[Count]) -> str:
    """Say that ranks made the call that their logs lack."""
    verb, first = "completed" if source is Source.INSPECTOR else "launched", made[0]
    return (
        f"{source.shows} that {ranks_text(job.rank_numbers(row.rank_id for row in made)) or 'a rank'} {verb}"
        f" {count_of(first.counted, 'collective')} of {first.key}, and the log shows {first.logged or 0}: it lacks"
        " lines, and NCCL's own count decides"
    )


def rows_in_memory(job: Job, source: Source, counts: list[Count]) -> list[Row]:
    """Return the lines by which a source counts these calls; those of other members if it names none of these ranks."""
    places = {(row.rank_id, row.key) for row in counts}
    keys = {row.key for row in counts}
    rows = [row for row in job.counted_calls if IN_MEMORY[row["shown_by"]] is source and row["key"] in keys]
    return [row for row in rows if (row["rank_id"], row["key"]) in places] or rows


def mention_counts(job: Job, diagnosis: Explanation) -> None:
    """Add that a source counts the missing call on others, and not on the culprits; or that none completed it."""
    if diagnosis.verdict != Kind.LAGGING:
        return
    for source in IN_MEMORY.values():
        counts = [row for row in counts_of(job, source) if row.key == diagnosis.key]
        of_culprits = [row for row in counts if row.rank_id in diagnosis.culprits]
        others = [row for row in counts if row not in of_culprits]
        made = min((row.logged or 0 for row in of_culprits), default=0)
        beyond = [row.rank_id for row in others if row.counted > made]
        if not of_culprits or any(row.counted > (row.logged or 0) for row in counts):
            continue
        if beyond:
            culprits = ranks_text(job.rank_numbers(row.rank_id for row in of_culprits)) or "these"
            shown = f"this call on {ranks_text(job.rank_numbers(beyond))}, too, and not on {culprits}"
        elif source is Source.INSPECTOR and max(row.counted for row in counts) == made:
            shown = f"that {count_of(made, 'collective')} of this communicator completed, and not this one"
        else:
            continue
        diagnosis.remarks.append(f"{source.shows} {shown}")
        diagnosis.add_evidence(context=rows_in_memory(job, source, of_culprits)[:1])
