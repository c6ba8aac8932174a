"""Tell whether Flight Recorder dumps and watchdogs' messages are of the run that NCCL's lines show.

All three count the collectives of a process group from its creation. A rank that waits made its last call by each of
them. Where on no rank two of them agree, an earlier run left one behind, or all logs lack lines: then they do not show
one moment of one run, and what follows from the one says nothing about the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import polars as pl

from ncclforensics.analyses.hang.job import Job
from ncclforensics.analyses.hang.pytorch import WORLD as GUIDS_OF_WORLD
from ncclforensics.analyses.job.recorder_groups import WORLD
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.torch_calls import ONE_CALL
from ncclforensics.data.variables import COLLECT_ANEW

DUMPS, WATCHDOGS = "the Flight Recorder dumps", "the watchdogs' messages"
OTHER_COUNTS = "on no rank {source} count as many collectives as NCCL's lines"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many collectives of one communicator or process group a rank made, by its log and by another source."""

    rank: int
    logged: int
    other: int


def weigh_counts_of_sources(job: Job) -> None:
    """Leave out dumps that all ranks wrote before their logs end, and say why sources may be of another run."""
    job.communicators_of_groups = _communicators_of_groups(job)
    counts = _counts_of_dumps(job)
    for known, name in ((counts, "log"), (_counts_of_time_outs(job), "time-out")):
        if known and job.recordings is not None and all(row.logged > row.other for row in known):
            job.recordings, first = None, known[0]
            job.left_out.append(
                "the Flight Recorder dumps do not count, for all ranks wrote them before: that of rank"
                f" {first.rank} shows {count_of(first.other, 'collective')} of a group, and its {name} {first.logged}"
            )
    if _differ(counts):
        job.doubts[DUMPS] = OTHER_COUNTS.format(source=DUMPS)
    elif size := _size_of_unknown_communicator(job):
        job.doubts[DUMPS] = f"{DUMPS} show calls of all {size} ranks, and the logs no communicator of as many"
    if _differ(_counts_of_watchdogs(job)):
        job.doubts[WATCHDOGS] = OTHER_COUNTS.format(source=WATCHDOGS)


def as_possibility(job: Job, diagnosis: Explanation | None, source: str) -> Explanation | None:
    """Return the diagnosis by a source that may be of another run as a possibility."""
    if diagnosis is not None:
        diagnosis.doubt(
            Doubt.OF_ANOTHER_RUN, f"{job.doubts[source]}: they may be of another run, or the logs lack lines"
        )
        diagnosis.collect += COLLECT_ANEW
    return diagnosis


def mention_later_calls(job: Job, diagnosis: Explanation | None) -> Explanation | None:
    """Return a diagnosis by watchdogs; as a possibility where the logs show the calls that its culprits lacked."""
    if diagnosis is not None and diagnosis.verdict == Kind.LAGGING:
        blamed = job.numbers_blamed(diagnosis)
        of_culprits = [row for row in _counts_of_watchdogs(job) if row.rank in blamed]
        later = [row.rank for row in of_culprits if row.logged > row.other]
        if later:
            diagnosis.doubt(
                Doubt.MADE_LATER,
                f"the log of {ranks_text(later)} shows more collectives than the time-outs count: it made them later,"
                " or the time-outs are of another run",
            )
    return diagnosis


def _size_of_unknown_communicator(job: Job) -> int | None:
    """Return the number of all ranks by the dumps that show calls of NCCL on them, if no log has so large a one."""
    if job.recordings is None or any(row["line"] is None for row in job.memberships):
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
        numbers = job.rank_numbers(row["rank_id"] for row in rows)
        candidates = groups_of[numbers[0], rows[0]["nranks"]] if numbers else []
        alike = [group for group in candidates if members[group].issuperset(numbers)]
        for group in alike:
            keys[group].append(key if len(alike) == 1 else "")
    return {group: found[0] for group, found in keys.items() if len(found) == 1 and found[0]}


def _counts_of_dumps(job: Job) -> list[Counts]:
    """Return what dumps and logs count on each rank, of groups whose every collective is one call of NCCL."""
    if job.recordings is None:
        return []
    names = dict(job.recordings.calls.group_by("group").agg(pl.col("name").unique()).iter_rows())
    dumped = {}
    for group, key in job.communicators_of_groups.items():
        rows = job.recordings.positions[group]
        if set(names.get(group, ())).issubset(ONE_CALL) and not any(row["has_p2p"] for row in rows.values()):
            dumped[key] = {rank: job.recordings.enqueued(group, rank) for rank in rows}
    return _counts(job, dumped)


def _counts_of_time_outs(job: Job) -> list[Counts]:
    """Return what time-outs and dumps count on each rank; `logged`: by the time-out."""
    if job.recordings is None:
        return []
    reported = [row for row in job.timeouts if row["enqueued"] and row["guid"] in job.recordings.positions]
    dumped = [row for row in reported if row["rank"] in job.recordings.positions[row["guid"]]]
    return [Counts(row["rank"], row["enqueued"], job.recordings.enqueued(row["guid"], row["rank"])) for row in dumped]


def _counts_of_watchdogs(job: Job) -> list[Counts]:
    """Return what watchdogs and logs count on each rank, of the group of all ranks."""
    keys = [key for key, rows in job.members.items() if rows[0]["nranks"] == job.nranks]
    enqueued = {
        row["rank"]: row["enqueued"] for row in job.timeouts if row["guid"] in GUIDS_OF_WORLD and row["enqueued"]
    }
    return _counts(job, {keys[0]: enqueued} if len(keys) == 1 else {})


def _counts(job: Job, others: dict[str, dict[int, int]]) -> list[Counts]:
    """Return both counts of ranks whose log has the creation of a communicator, and calls or an unfinished init.

    `others`: communicator -> rank -> what the other source counts.
    """
    if not others:
        return []
    calls = job.last_calls.select("rank_id", pl.col("key").cast(pl.String), "calls")
    made = {(rank_id, key): number for rank_id, key, number in calls.iter_rows() if key in others}
    unplaced = {(rank_id, key) for rank_id, key, _ in job.unplaced}
    counts = []
    for key, counted in others.items():
        for row in job.members[key]:
            place, rank = (row["rank_id"], key), job.rank_number(row["rank_id"])
            logged = made.get(place, None if row["is_complete"] else 0)
            is_known = row["line"] is not None and not row["is_inferred"] and place not in unplaced
            if rank is not None and logged is not None and is_known and counted.get(rank, 0) > 0:
                counts.append(Counts(rank, logged, counted[rank]))
    return counts


def _differ(counts: list[Counts]) -> bool:
    return bool(counts) and all(row.logged != row.other for row in counts)
