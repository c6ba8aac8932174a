"""Name communicators equally on all their ranks.

The name is the `commId` if NCCL prints one; for children, the parent with number and colour of the split; if nothing is
printed, it is inferred from the order of creation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

# Texts are replaced by their codes: equal texts of Categorical columns have equal codes.
_STATED = ("rank", "nranks", "cudadev", "busid", "child", "color", "created_pos", "is_complete")


@dataclass(slots=True)
class Member:
    """A row of `communicator_lifetime` while its job-wide identity is being worked out.

    There may be a million, and this takes a fifth of the memory of all its columns as a dictionary.
    """

    owner: tuple[str, int]  # host and pid of the process
    rank: int | None
    nranks: int
    cudadev: int | None = None
    busid: int | None = None  # its code
    child: int | None = None
    color: int | None = None
    created_pos: int = 0
    is_complete: bool = True
    is_ended: bool = False
    key: str = ""
    created: int = 0  # position among the communicators of its process
    is_inferred: bool = False
    parent: Member | None = None
    child_number: int | None = None
    job: int = 0
    rank_id: int | None = None
    job_rank: int | None = None  # the number of the rank of the job that is known by this membership
    is_hinted: bool | None = None  # whether that comes from a file name; null where it is known by another membership


def name_communicators(lifetimes: pl.DataFrame) -> list[Member]:
    """Return a member for every row of `communicator_lifetime`, all of which state a size, with its key."""
    codes = lifetimes.select(pl.col("comm", "parent", "commid").to_physical())
    id_of = dict(zip(codes["commid"], lifetimes["commid"], strict=True))
    owners: dict[tuple[str, int], tuple[str, int]] = {}
    stated = lifetimes.select("host", "pid", *_STATED, is_ended=pl.col("end").is_not_null())
    members = []
    newest: dict[tuple[tuple[str, int], int], Member] = {}
    counts: dict[tuple[str, int], int] = defaultdict(int)
    children: dict[int, int] = defaultdict(int)
    rows = stated.with_columns(pl.col("busid").to_physical()).iter_rows()
    for (host, pid, *values), (comm, parent, commid) in zip(rows, codes.iter_rows(), strict=True):
        owner = owners.setdefault((host, pid), (host, pid))
        m = Member(owner, *values)
        members.append(m)
        m.created, counts[owner] = counts[owner], counts[owner] + 1
        m.parent = newest.get((owner, parent)) if parent is not None else None
        newest[owner, comm] = m
        nth_child = m.child
        if m.parent is not None and nth_child is None:
            nth_child, children[id(m.parent)] = children[id(m.parent)], children[id(m.parent)] + 1
        m.child_number = nth_child
        if m.parent is not None:
            m.key = f"{m.parent.key}/{nth_child}.{m.color}"
        elif commid is not None:
            m.key = id_of[commid]
        elif parent is not None:
            m.key, m.is_inferred = f"split of an unseen communicator/{nth_child}.{m.color}:{m.nranks}", True
        else:
            m.key, m.is_inferred = f"unnamed, {m.nranks} ranks", True
    _count_unseen_creations(members)
    _separate_equal_ids(members)
    _separate_attempts(members)
    _doubt_equal_ids(members)
    _separate_unnamed(members)
    _join_named_world(members)
    return members


def group_by_key(members: list[Member]) -> dict[str, list[Member]]:
    """Return key -> members of the communicator."""
    grouped: dict[str, list[Member]] = defaultdict(list)
    for m in members:
        grouped[m.key].append(m)
    return grouped


def _count_unseen_creations(members: list[Member]) -> None:
    """Correct the position of communicators of processes whose log begins behind the creation of the first ones.

    Shown by their sizes, which are the last ones of the sequence that most processes created, and not the first ones.
    """
    sizes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for m in members:
        sizes[m.owner].append(m.nranks)
    most_common = Counter(map(tuple, sizes.values())).most_common(1)
    unseen: dict[tuple[str, int], int] = {}
    for owner, own in sizes.items():
        usual = list(most_common[0][0])
        if own != usual[: len(own)] and own == usual[len(usual) - len(own) :]:
            unseen[owner] = len(usual) - len(own)
    for m in members if unseen else ():
        m.created += unseen.get(m.owner, 0)


def _separate_equal_ids(members: list[Member]) -> None:
    """Separate communicators of equal commId by their size or their position among those of a process.

    2.18 to 2.21 give two splits of equal colour the same commId. Members of different size that all came out of init
    are of different communicators. Where one commId needs the position to be told apart, all others are separated by
    it, too: with some logs missing, no rank number shows twice.
    """
    distinctions: tuple[Callable[[Member], str], ...] = (
        lambda m: f":{m.nranks}",
        lambda m: f"#{m.created}",
        lambda m: f":{m.nranks}#{m.created}",
    )
    by_size, *by_position = distinctions
    ambiguous, needs_position = [], False
    counts = Counter(m.owner for m in members)
    most = max(counts.values(), default=0)  # a process with fewer may have created some before its log begins
    for key, group in group_by_key([m for m in members if not m.is_inferred]).items():
        ranks = {m.rank for m in group}
        are_complete = all(m.is_complete for m in group)
        if len(ranks) == len(group) and not (are_complete and len({m.nranks for m in group}) > 1):
            ambiguous.append((key, group))
            continue
        for distinction in distinctions:
            if len({(distinction(m), m.rank) for m in group}) == len(group):
                needs_position |= distinction is not by_size
                for m in group:
                    m.key = key + distinction(m)
                    m.is_inferred |= distinction is not by_size and counts[m.owner] < most
                break
    for key, group in ambiguous if needs_position else ():
        if len({m.created for m in group}) > 1:
            for m in group:
                m.key = key + by_position[0](m)


def _doubt_equal_ids(members: list[Member]) -> None:
    """Infer the communicators of a commId that a rank of a process has twice, and that no position tells apart."""
    for group in group_by_key([m for m in members if not m.is_inferred]).values():
        if len({(m.owner, m.rank) for m in group}) < len(group):
            for m in group:
                m.is_inferred = True


def _separate_attempts(members: list[Member]) -> None:
    """Separate attempts of one job whose communicators have equal ids, as where NCCL_COMM_ID states the address.

    Then each rank of the world is there once for each attempt, and on every host the pids of one attempt are above
    those of the one before.
    """
    size = max((m.nranks for m in members), default=0)
    for group in group_by_key([m for m in members if m.nranks == size and not m.is_inferred]).values():
        attempt_of = _attempts_by_pid(group)
        for m in members if attempt_of else ():
            if m.owner in attempt_of:
                m.key += f", attempt {attempt_of[m.owner]}"


def _attempts_by_pid(group: list[Member]) -> dict[tuple[str, int], int]:
    """Process -> number of its attempt, from 1; empty if these are not the processes of several attempts."""
    processes: dict[tuple[str, int | None], list[tuple[str, int]]] = defaultdict(list)
    for m in sorted(group, key=lambda m: m.owner[1]):
        processes[m.owner[0], m.rank].append(m.owner)
    counts = {len(owners) for owners in processes.values()}
    if len(counts) != 1 or counts == {1} or len({m.owner for m in group}) < len(group):
        return {}
    last: dict[tuple[str, int], int] = {}  # host and attempt -> highest pid
    for (host, _), owners in processes.items():
        for attempt, (_, pid) in enumerate(owners, 1):
            last[host, attempt] = max(pid, last.get((host, attempt), 0))
    for (host, _), owners in processes.items():
        if any(pid <= last.get((host, attempt - 1), 0) for attempt, (_, pid) in enumerate(owners, 1)):
            return {}
    return {owner: attempt for owners in processes.values() for attempt, owner in enumerate(owners, 1)}


def _separate_unnamed(members: list[Member]) -> None:
    """Separate communicators without an id: the j-th process with rank r joins the j-th processes with other ranks.

    In the order of the processes' job ranks this is right both for blocks (tensor parallelism) and for strides (data
    parallelism).
    """
    inferred = [m for m in members if m.is_inferred and m.rank is not None]  # None: the line is damaged
    world: dict[tuple[str, int], int | None] = {}
    for m in sorted(inferred, key=lambda m: -m.nranks):
        world.setdefault(m.owner, m.rank)
    nth: dict[tuple[str, int, str], int] = defaultdict(int)
    for m in inferred:  # a process created several of the same size
        place = (*m.owner, f"{m.key}, rank {m.rank}")
        m.key, nth[place] = f"{m.key}, {nth[place] + 1}. of its size", nth[place] + 1
    for key, group in group_by_key(inferred).items():
        memberships: dict[int | None, list[Member]] = defaultdict(list)
        for m in sorted(group, key=lambda m: (world[m.owner], m.created_pos)):
            memberships[m.rank].append(m)
        for members_of_rank in memberships.values():
            for group_number, m in enumerate(members_of_rank):
                m.key = f"{key}, group {group_number + 1}"


def _join_named_world(members: list[Member]) -> None:
    """Count unnamed members of the largest size to the one communicator of that size whose id is printed.

    Its id may stand in the log of one rank only, where the others begin later. A rank is taken once: what is
    left over is of another job.
    """
    size = max((m.nranks for m in members), default=0)
    world = [m for m in members if m.nranks == size]
    named = [m for m in world if not m.is_inferred]
    if len({m.key for m in named}) != 1:
        return
    taken = {m.rank for m in named}
    owners = {m.owner for m in named}
    unnamed = [m for m in world if m.is_inferred]
    ranks = Counter(m.rank for m in unnamed)
    if any(rank in taken or count > 1 for rank, count in ranks.items()) or any(m.owner in owners for m in unnamed):
        return
    for m in unnamed:
        m.key = named[0].key
