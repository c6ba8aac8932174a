"""Memberships: which process is in which communicator, as which rank of which job.

All of it is worked out in one walk; the frames `member` and `rank` are made of what it finds.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, count, islice
from typing import Any

import polars as pl

from ncclforensics.analyses.job.calls.members_without_calls import members_without_calls
from ncclforensics.analyses.job.identity.communicator_ids import Member, group_by_key, name_communicators
from ncclforensics.analyses.job.identity.lifetimes import COMMUNICATOR_LIFETIME
from ncclforensics.analyses.job.identity.missing_init import inferred_members
from ncclforensics.analyses.job.identity.restarts import BANNERS
from ncclforensics.frames.columns import MADE_UP, OWNER, text_of
from ncclforensics.frames.registry import analysis

MOST_PAIRS = 1_000_000  # pairs of unfinished communicators of one host and size that are compared

MEMBER = {
    "job": pl.Int32(),
    "key": pl.Categorical(),  # name of the communicator, equal on all its ranks
    "rank_id": pl.Int32(),
    "is_inferred": pl.Boolean(),  # the key is inferred: the log prints nothing that is equal on all ranks
    "parent_key": pl.Categorical(),
    "child_number": pl.Int32(),  # number of the child of its parent, from 0 or as NCCL numbers them
    **COMMUNICATOR_LIFETIME,
}
JOB_MEMBER = {
    "is_alone": pl.Boolean(),  # of no communicator: the row stands for a process
    "job_rank": pl.Int32(),  # where a rank of the job is known by this membership: its number
    "is_hinted": pl.Boolean(),  # whether that comes from a file name; null where it is known by another membership
    **MEMBER,
}


@analysis(JOB_MEMBER, of=("communicator_lifetime", "calls_without_init", "process"), is_step=True)
def job_member(
    communicator_lifetime: pl.DataFrame,
    calls_without_init: pl.DataFrame,
    calls_behind: pl.DataFrame,
    process: pl.DataFrame,
    milestone: pl.DataFrame,
) -> pl.DataFrame:
    """Every communicator of every process, and every process without one, with job and rank."""
    lifetimes = communicator_lifetime.filter(pl.col("nranks").is_not_null())
    streams = calls_without_init.drop_nulls(OWNER)
    processes = process.select("host", "pid", "hint", "reported", "first_pos", "last_pos", "sources").to_dicts()
    members = name_communicators(lifetimes)
    later = inferred_members(streams, members, processes)
    _doubt_subgroups(members, {m.owner for m in later.values()})
    members += later.values()
    without_calls = members_without_calls(members, later, streams, calls_behind, processes)
    members += without_calls
    begun = milestone.filter(text_of("form").is_in(BANNERS) & ~text_of("host").str.starts_with(MADE_UP))
    memberless = _assign_ranks(members, processes, set(begun.drop_nulls(OWNER).select(OWNER).unique().iter_rows()))
    parts = [
        lifetimes,
        streams[list(later)]
        .select("host", "pid", "comm", "nranks", "source", created_pos="first_pos", incarnation=0, is_complete=True)
        .with_columns(_column("rank", [m.rank for m in later.values()])),
        _rows_without_calls(without_calls, process),
        pl.DataFrame([m.owner for m in memberless], {name: MEMBER[name] for name in OWNER}, orient="row"),
    ]
    rows = pl.concat(parts, how="diagonal_relaxed")
    known = members + memberless
    return rows.with_columns(
        _column("is_alone", [False] * len(members) + [True] * len(memberless)),
        _column("job", [m.job for m in known]),
        _column("key", [m.key for m in known]),
        _column("rank_id", [m.rank_id for m in known]),
        _column("is_inferred", [m.is_inferred for m in known]),
        _column("parent_key", [m.parent.key if m.parent else None for m in known]),
        _column("child_number", [m.child_number for m in known]),
        _column("job_rank", [m.job_rank for m in known]),
        _column("is_hinted", [m.is_hinted for m in known]),
    )


def _rows_without_calls(members: list[Member], process: pl.DataFrame) -> pl.DataFrame:
    """Rows of communicators of which neither an Init line nor a call of the member is in the logs."""
    rows = [(*m.owner, m.rank, m.nranks, m.created_pos) for m in members]
    names = [*OWNER, "rank", "nranks", "created_pos"]
    known = pl.DataFrame(rows, {name: MEMBER[name] for name in names}, orient="row")
    sources = process.select(*OWNER, "source")
    known = known.join(sources, on=OWNER, how="left", maintain_order="left")
    return known.with_columns(incarnation=0, is_complete=True)


def _column(name: str, values: list[Any]) -> pl.Series:
    return pl.Series(name, values, JOB_MEMBER[name])


def _assign_ranks(members: list[Member], processes: list[dict[str, Any]], begun: set[tuple[str, int]]) -> list[Member]:
    """Assign jobs, and ranks of them, to members; return the processes that are known as ranks, but of none.

    `begun`: processes of which the logs show that they started NCCL.
    """
    jobs = _jobs(members, processes, begun)
    job_of = {owner: number for number, owners in enumerate(jobs) for owner in owners}
    members_of_job: list[list[Member]] = [[] for _ in jobs]
    processes_of_job: list[list[dict[str, Any]]] = [[] for _ in jobs]
    for m in members:
        m.job = job_of[m.owner]
        members_of_job[m.job].append(m)
    for p in processes:
        processes_of_job[job_of[p["host"], p["pid"]]].append(p)
    memberless: list[Member] = []
    first = 0
    for number, (own_members, own_processes) in enumerate(zip(members_of_job, processes_of_job, strict=True)):
        first, of_job = _number_ranks(own_members, own_processes, first)
        for m in of_job:
            m.job = number
        memberless += of_job
    return memberless


def _doubt_subgroups(members: list[Member], begin_later: set[tuple[str, int]]) -> None:
    """Mark communicators as inferred that are smaller than the largest, of processes whose log begins later.

    Splits with one commId (2.18 to 2.21) or none are told apart by their order, which is not known there.
    """
    largest = max((m.nranks for m in members), default=0)
    for m in members:
        m.is_inferred |= m.owner in begin_later and m.parent is None and m.nranks < largest


def _jobs(
    members: list[Member], processes: list[dict[str, Any]], begun: set[tuple[str, int]]
) -> list[set[tuple[str, int]]]:
    """Group processes that share a communicator into jobs; processes without any join the job if there is only one.

    If all ranks of that one are other processes, those that started NCCL are of another job unless it is only one, and
    those of other hosts with files of their own in which more than one line of theirs stands.
    """
    leader: dict[tuple[str, int], tuple[str, int]] = {}

    def find_leader(owner: tuple[str, int]) -> tuple[str, int]:
        leader.setdefault(owner, owner)
        while leader[owner] != owner:
            leader[owner] = leader[leader[owner]]
            owner = leader[owner]
        return owner

    first: dict[str, tuple[str, int]] = {}
    for m in members:
        leader[find_leader(m.owner)] = find_leader(first.setdefault(m.key, m.owner))
    for left, right in _processes_in_crossed_init(members):
        leader[find_leader(left)] = find_leader(right)
    grouped: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for owner in list(leader):
        grouped[find_leader(owner)].add(owner)
    jobs = list(grouped.values())
    without_communicator = {(p["host"], p["pid"]) for p in processes} - set(leader)
    if without_communicator and len(jobs) == 1:
        if _is_whole(members):
            started = without_communicator & begun
            of_another = _apart(jobs[0], processes) | (started if len(started) > 1 else set())
            jobs += [of_another] if of_another else []
        jobs[0] |= without_communicator.difference(*jobs[1:])
    elif without_communicator:
        jobs.append(without_communicator)
    return jobs


def _apart(job: set[tuple[str, int]], processes: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """Processes that share neither a host nor a file with those of a job; of one line nothing is known."""
    hosts = {host for host, _ in job}
    files = {source for p in processes if (p["host"], p["pid"]) in job for source in p["sources"]}
    named = [p for p in processes if not (p["host"] or MADE_UP).startswith(MADE_UP) and p["first_pos"] < p["last_pos"]]
    others = [p for p in named if p["host"] not in hosts and files.isdisjoint(p["sources"])]
    return {(p["host"], p["pid"]) for p in others}


def _is_whole(members: list[Member]) -> bool:
    """Whether all ranks of the largest communicator are known."""
    largest = _largest_communicator(members)
    return len({m.rank for m in largest} - {None}) == max(m.nranks for m in largest)


def _processes_in_crossed_init(members: list[Member]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Return pairs of processes inside the init of two communicators of equal size and disjoint ranks on one host.

    Ranks that create two communicators in different order share none, and would appear as two jobs. Splits of different
    colours are different communicators.
    """
    unfinished = [
        group for group in group_by_key(members).values() if not any(m.is_complete or m.is_ended for m in group)
    ]
    # Of each host, size and colour: the sets of ranks in one init, and a process of each. Equal sets pair with the same
    # others.
    of_host: dict[tuple[str, int, int | None], dict[frozenset[int | None], dict[tuple[str, int], None]]] = {}
    for group in unfinished:
        ranks = frozenset(m.rank for m in group)
        if len(ranks) == len(group):
            for host in {m.owner[0] for m in group}:
                alike = of_host.setdefault((host, group[0].nranks, group[0].color), {})
                alike.setdefault(ranks, {})[group[0].owner] = None
    pairs = []
    for alike in of_host.values():
        for (ranks, owners), (others, other_owners) in islice(combinations(alike.items(), 2), MOST_PAIRS):
            if ranks.isdisjoint(others):
                pairs += [(owner, next(iter(other_owners))) for owner in owners]
                pairs += [(next(iter(owners)), owner) for owner in other_owners]
    return pairs


def _number_ranks(members: list[Member], processes: list[dict[str, Any]], first: int) -> tuple[int, list[Member]]:
    """Number the ranks of a job from `first` on; return the next number, and processes that are no member of any."""
    largest = _largest_communicator(members)
    by_process: dict[tuple[str, int], list[Member]] = defaultdict(list)
    memberless: list[Member] = []
    numbers = count(first)

    def add(owner: tuple[str, int], number: int | None, m: Member | None, *, is_hinted: bool) -> None:
        if m is None:
            m = Member(owner, None, 0)
            memberless.append(m)
        m.rank_id, m.job_rank, m.is_hinted = next(numbers), number, is_hinted
        by_process[owner].append(m)

    hints = _usable_hints(largest, members, processes)
    members_of: dict[tuple[str, int], list[Member]] = defaultdict(list)
    largest_of: dict[tuple[str, int], list[Member]] = defaultdict(list)
    for m in members:
        members_of[m.owner].append(m)
    for m in largest:
        largest_of[m.owner].append(m)
    taken_numbers = {m.rank for m in largest if m.rank is not None}
    echoes: list[tuple[Member, int]] = []
    for p in processes:
        owner = (p["host"], p["pid"])
        own = members_of[owner]
        memberships = (
            largest_of[owner] or [m for m in own if largest and m.nranks == largest[0].nranks and not m.is_complete][:1]
        )
        if hints:
            add(owner, p["hint"], own[0] if own else None, is_hinted=True)
        elif memberships:
            for m in memberships:
                add(owner, p["hint"] if m.rank is None else m.rank, m, is_hinted=m.rank is None)
        elif p["reported"] in taken_numbers and (owner[0] or "").startswith(MADE_UP):
            # Lines of NCCL that PyTorch repeats in the output of a rank whose own log is another file.
            echoes.append((Member(owner, None, 0), p["reported"]))
        else:
            number = p["hint"] if p["hint"] not in taken_numbers else None
            add(owner, number, own[0] if own else None, is_hinted=number is not None)
    for m in members:
        m.rank_id = _rank_id_of(m, by_process[m.owner])
    ids = {m.rank: m.rank_id for m in largest}
    for m, rank in echoes:
        m.rank_id = ids[rank]
        memberless.append(m)
    return next(numbers), memberless


def _largest_communicator(members: list[Member]) -> list[Member]:
    """Return the members of the job's largest communicator; of equal ones that with most members, then the first."""
    groups = list(group_by_key(members).values())
    if not groups:
        return []
    return max(groups, key=lambda g: (max(m.nranks for m in g), len(g), -min(m.created_pos for m in g)))


def _usable_hints(largest: list[Member], members: list[Member], processes: list[dict[str, Any]]) -> bool:
    """Whether file names number the processes: no communicator holds them all, and the numbers do not conflict."""
    hints = [p["hint"] for p in processes]
    with_membership = {m.owner for m in largest}
    if None in hints or len(set(hints)) < len(hints) or len(with_membership) == len(processes) or not members:
        return False
    hint = {(p["host"], p["pid"]): p["hint"] for p in processes}
    return all(hint[m.owner] == m.rank for m in largest) or max(m.nranks for m in members) < len(processes)


def _rank_id_of(m: Member, candidates: list[Member]) -> int | None:
    if m.rank_id is not None or len(candidates) == 1:
        return m.rank_id if m.rank_id is not None else candidates[0].rank_id
    if m.parent is not None and m.parent.rank_id is not None:
        return m.parent.rank_id
    same_gpu = [c.rank_id for c in candidates if c.cudadev == m.cudadev and c.busid == m.busid]
    return same_gpu[0] if len(same_gpu) == 1 else None
