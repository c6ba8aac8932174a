"""Identify processes, the communicators they are members of, jobs, and the ranks of a job.

A communicator's pointer is valid in one process and is reused after a destroy; `commId` is equal on all ranks, but
children of a split print none from 2.23.4 on, no communicator does before 2.16.2, and 2.18 to 2.21 give two splits of
equal colour the same one (formats: NCCL's init lines, section 2; traps 8 and 9.1b).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, islice
from typing import Any

import polars as pl

from ncclforensics.analyses.job.communicator_ids import Member, group_by_key, name_communicators
from ncclforensics.analyses.job.lifetimes import COMMUNICATOR_LIFETIME
from ncclforensics.analyses.job.missing_init import inferred_members
from ncclforensics.analyses.job.stack_processes import STACK_PROCESS, RankIndex
from ncclforensics.frames.columns import OWNER, no_rows
from ncclforensics.frames.registry import analysis

MOST_PROCESSES = 1 << 17  # without a communicator; more than any job has
ROWS_AT_ONCE = 1 << 14  # turned from dictionaries into a frame
MOST_PAIRS = 1_000_000  # pairs of unfinished communicators of one host and size that are compared

PROCESS = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "source": pl.Int32(),  # the file with most of its lines
    "sources": pl.List(pl.Int32()),
    "first_pos": pl.Int64(),
    "last_pos": pl.Int64(),
    "last_line": pl.Int32(),
    "last_source": pl.Int32(),
    "hint": pl.Int32(),  # the rank that the launcher or the file name suggests
    "is_cut": pl.Boolean(),  # its last line is incomplete
}

MEMBER = {
    "job": pl.Int32(),
    "key": pl.Categorical(),  # name of the communicator, equal on all its ranks
    "rank_id": pl.Int32(),
    "is_inferred": pl.Boolean(),  # the key is inferred: the log prints nothing that is equal on all ranks
    "parent_key": pl.Categorical(),
    "child_number": pl.Int32(),  # number of the child of its parent, from 0 or as NCCL numbers them
    **COMMUNICATOR_LIFETIME,
}

RANK = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "rank": pl.Int32(),  # in the largest communicator of the job
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "cudadev": pl.Int32(),
    "busid": pl.Categorical(),
    "source": pl.Int32(),
    "is_hinted": pl.Boolean(),  # the rank number comes from a file name
    "dump": pl.Int32(),  # the dump of stacks that alone shows it
}


@analysis(PROCESS)
def process(
    source: pl.DataFrame,
    speaker: pl.DataFrame,
    journal_process: pl.DataFrame,
    work: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
    calls_without_init: pl.DataFrame,
) -> pl.DataFrame:
    """Every process with NCCL lines or a journal, and its files; not of too many without a communicator."""
    with_communicator = pl.concat([rows.select(OWNER) for rows in (communicator_lifetime, calls_without_init)])
    per_file = (
        pl.concat([speaker.select(journal_process.columns), journal_process])
        .sort("last_pos")
        .group_by("host", "pid", "source")
        .agg(
            pl.col("lines").sum(),
            pl.col("pos").min().alias("first_pos"),
            pl.col("last_pos").max(),
            pl.col("last").last().alias("last_line"),
            pl.col("launcher_ranks").explode().drop_nulls().unique(),
        )
    )
    is_only_process = pl.struct("host", "pid").n_unique().over("source") == 1
    # If a launcher's label is not one-to-one with processes, it numbers something else, such as nodes.
    label = pl.when(pl.col("launcher_ranks").list.len() == 1).then(pl.col("launcher_ranks").list.first())
    launched = pl.when(pl.struct("host", "pid").n_unique().over(label) == 1).then(label)
    rank_of_file = work.group_by("source").agg(pl.col("rank").unique()).filter(pl.col("rank").list.len() == 1)
    hints = (
        source.select("source", "hint", cut="is_cut")
        .join(rank_of_file.select("source", reported=pl.col("rank").list.first()), on="source", how="left")
        .with_columns(hint=pl.coalesce("reported", "hint"))
    )
    per_file = _bounded(per_file, with_communicator)
    return (
        per_file.join(hints, on="source")
        .with_columns(hint=pl.coalesce(launched, pl.when(is_only_process).then("hint")))
        .sort("last_pos")
        .group_by("host", "pid")
        .agg(
            pl.col("source").sort_by("lines").last(),
            pl.col("source").sort().alias("sources"),
            pl.col("first_pos").min(),
            pl.col("last_pos").max(),
            pl.col("last_line").last(),
            pl.col("source").last().alias("last_source"),
            pl.col("hint").sort_by("lines").last(),
            pl.col("cut").last().alias("is_cut"),
        )
        .sort("first_pos")
    )


def _bounded(per_file: pl.DataFrame, with_communicator: pl.DataFrame) -> pl.DataFrame:
    """The rows of processes with a communicator, and of MOST_PROCESSES others: those that print most, then first."""
    if per_file.height <= MOST_PROCESSES:
        return per_file
    others = per_file.join(with_communicator, on=OWNER, how="anti")
    printed = others.group_by(OWNER).agg(pl.col("lines").sum(), pl.col("first_pos").min())
    kept = printed.sort("lines", "first_pos", descending=[True, False]).head(MOST_PROCESSES).select(OWNER)
    return per_file.join(pl.concat([with_communicator, kept]), on=OWNER, how="semi")


@analysis(MEMBER)
def member(
    communicator_lifetime: pl.DataFrame, calls_without_init: pl.DataFrame, process: pl.DataFrame
) -> pl.DataFrame:
    """Every membership: a communicator of a process, with its job-wide key and the rank of the job."""
    members, _ = _assign_ranks(communicator_lifetime, calls_without_init, process)
    rows = (
        {
            **m.row,
            "job": m.job,
            "key": m.key,
            "rank_id": m.rank_id,
            "is_inferred": m.is_inferred,
            "parent_key": m.parent.key if m.parent else None,
            "child_number": m.child_number,
        }
        for m in members
        if m.rank_id is not None
    )
    # A row takes 1 KB while it is a dictionary, and there may be a million.
    pieces = [no_rows(MEMBER)]
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        pieces.append(pl.DataFrame(chunk, schema=MEMBER))
    return pl.concat(pieces)


@analysis(RANK)
def rank(
    communicator_lifetime: pl.DataFrame,
    calls_without_init: pl.DataFrame,
    process: pl.DataFrame,
    work: pl.DataFrame,
    ras_member: pl.DataFrame,
    torch_rank: pl.DataFrame,
    stack_process: pl.DataFrame,
    recorded_rank: pl.DataFrame,
) -> pl.DataFrame:
    """The ranks of every job: one row per GPU that a process drives, numbered by `rank_id` over all jobs.

    A rank that only PyTorch or its Flight Recorder reports has neither host nor process; for a rank that only RAS
    shows, `host` is an address.
    """
    _, rank_rows = _assign_ranks(communicator_lifetime, calls_without_init, process)
    jobs, numbers = {rank_id["job"] for rank_id in rank_rows}, {rank_id["rank"] for rank_id in rank_rows}
    if len(jobs) < 2:
        largest = communicator_lifetime["nranks"].max()
        ras_members = ras_member if largest is None else ras_member.filter(pl.col("nranks") == largest)
        ras_ranks = ras_members.select("rank", "source", host="node", pid="process", cudadev="gpu")
        reported = [ras_ranks, work.select("rank", "source").unique("rank", keep="first")]
        if not rank_rows and ras_ranks.is_empty():
            reported.append(torch_rank)
        reported.append(recorded_rank.filter("is_used").select("rank", "source"))
        unseen = pl.concat(reported, how="diagonal_relaxed")
        unseen = pl.concat(
            [unseen, _dumped_ranks(stack_process, [*rank_rows, *unseen.to_dicts()])], how="diagonal_relaxed"
        )
        unseen = unseen.filter(~pl.col("rank").is_in(numbers - {None}).fill_null(False))
        is_first = pl.col("rank").is_null() | pl.col("rank").is_first_distinct()
        default_columns = {"job": min(jobs, default=0), "is_hinted": False}
        dumped = RankIndex(stack_process.filter(~pl.col("is_helper")).unique(["rank", "host", "pid"]).to_dicts())
        rank_rows += [
            {**default_columns, "rank_id": len(rank_rows) + number, **_with_process(row, dumped)}
            for number, row in enumerate(unseen.filter(is_first).sort("rank", nulls_last=True).to_dicts())
        ]
    return pl.DataFrame(rank_rows, schema=RANK)


def _with_process(row: dict[str, Any], dumped: RankIndex) -> dict[str, Any]:
    """Add to a rank that other lines show the host and the pid that a dump of its stack shows."""
    process = dumped.find({**row, "first_dump": row.get("dump")}) if row.get("pid") is None else None
    return {**row, "pid": process["pid"], "host": row.get("host") or process["host"]} if process else row


def _dumped_ranks(stack_process: pl.DataFrame, known: list[dict[str, Any]]) -> pl.DataFrame:
    """Return the ranks that only a stack shows: those with a number; all processes where no other line shows any."""
    index = RankIndex(known)
    rows = [
        row
        for row in stack_process.filter(~pl.col("is_helper") & pl.col("kind").is_not_null()).to_dicts()
        if index.find(row) is None and (row["rank"] is not None or not known)
    ]
    is_named = pl.col("rank").is_not_null() | pl.col("pid").is_not_null()
    dumped = pl.DataFrame(rows, schema=STACK_PROCESS).select(
        *(pl.col(name).cast(RANK[name]) for name in ("rank", "source", "host", "pid")),
        dump=pl.when(~is_named).then("first_dump"),
    )
    return dumped.unique(["rank", "host", "pid", "dump"], keep="first", maintain_order=True)


def _assign_ranks(
    communicator_lifetime: pl.DataFrame, calls_without_init: pl.DataFrame, process: pl.DataFrame
) -> tuple[list[Member], list[dict[str, Any]]]:
    members = name_communicators(communicator_lifetime)
    processes = process.to_dicts()
    without_init = inferred_members(calls_without_init.drop_nulls(OWNER), members, processes)
    _doubt_subgroups(members, {m.owner for m in without_init})
    members += without_init
    jobs = _jobs(members, processes)
    job_of = {owner: number for number, owners in enumerate(jobs) for owner in owners}
    members_of_job: list[list[Member]] = [[] for _ in jobs]
    processes_of_job: list[list[dict[str, Any]]] = [[] for _ in jobs]
    for m in members:
        m.job = job_of[m.owner]
        members_of_job[m.job].append(m)
    for p in processes:
        processes_of_job[job_of[p["host"], p["pid"]]].append(p)
    rank_rows: list[dict[str, Any]] = []
    for number, (own_members, own_processes) in enumerate(zip(members_of_job, processes_of_job, strict=True)):
        rank_rows += _ranks_of_job(number, own_members, own_processes, len(rank_rows))
    return members, rank_rows


def _doubt_subgroups(members: list[Member], begin_later: set[tuple[str, int]]) -> None:
    """Mark communicators as inferred that are smaller than the largest, of processes whose log begins later.

    Splits with one commId (2.18 to 2.21) or none are told apart by their order, which is not known there.
    """
    largest = max((m.row["nranks"] for m in members), default=0)
    for m in members:
        m.is_inferred |= m.owner in begin_later and m.parent is None and m.row["nranks"] < largest


def _jobs(members: list[Member], processes: list[dict[str, Any]]) -> list[set[tuple[str, int]]]:
    """Group processes that share a communicator into jobs; processes without any join the job if there is only one."""
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
        jobs[0] |= without_communicator
    elif without_communicator:
        jobs.append(without_communicator)
    return jobs


def _processes_in_crossed_init(members: list[Member]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Return pairs of processes inside the init of two communicators of equal size and disjoint ranks on one host.

    Ranks that create two communicators in different order share none, and would appear as two jobs. Splits of different
    colours are different communicators.
    """
    unfinished = [
        group
        for group in group_by_key(members).values()
        if not any(m.row["is_complete"] or m.row["end"] for m in group)
    ]
    # Of each host, size and colour: the sets of ranks in one init, and a process of each. Equal sets pair with the same
    # others.
    of_host: dict[tuple[str, int, int | None], dict[frozenset[int | None], dict[tuple[str, int], None]]] = {}
    for group in unfinished:
        ranks = frozenset(m.row["rank"] for m in group)
        if len(ranks) == len(group):
            for host in {m.row["host"] for m in group}:
                alike = of_host.setdefault((host, group[0].row["nranks"], group[0].row["color"]), {})
                alike.setdefault(ranks, {})[group[0].owner] = None
    pairs = []
    for alike in of_host.values():
        for (ranks, owners), (others, other_owners) in islice(combinations(alike.items(), 2), MOST_PAIRS):
            if ranks.isdisjoint(others):
                pairs += [(owner, next(iter(other_owners))) for owner in owners]
                pairs += [(next(iter(owners)), owner) for owner in other_owners]
    return pairs


def _ranks_of_job(job: int, members: list[Member], processes: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    largest = _largest_communicator(members)
    by_process: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    rank_rows: list[dict[str, Any]] = []

    def add(p: dict[str, Any], number: int | None, m: Member | None, *, is_hinted: bool) -> None:
        row = m.row if m else {}
        rank_id = {
            "job": job,
            "rank_id": first + len(rank_rows),
            "rank": number,
            "host": p["host"],
            "pid": p["pid"],
            "cudadev": row.get("cudadev"),
            "busid": row.get("busid"),
            "source": p["source"],
            "is_hinted": is_hinted,
        }
        rank_rows.append(rank_id)
        by_process[p["host"], p["pid"]].append(rank_id)
        if m:
            m.rank_id = rank_id["rank_id"]

    hints = _usable_hints(largest, members, processes)
    members_of: dict[tuple[str, int], list[Member]] = defaultdict(list)
    largest_of: dict[tuple[str, int], list[Member]] = defaultdict(list)
    for m in members:
        members_of[m.owner].append(m)
    for m in largest:
        largest_of[m.owner].append(m)
    taken_numbers = {m.row["rank"] for m in largest}
    for p in processes:
        owner = (p["host"], p["pid"])
        own = members_of[owner]
        memberships = (
            largest_of[owner]
            or [m for m in own if largest and m.row["nranks"] == largest[0].row["nranks"] and not m.row["is_complete"]][
                :1
            ]
        )
        if hints:
            add(p, p["hint"], own[0] if own else None, is_hinted=True)
        elif memberships:
            for m in memberships:
                add(p, p["hint"] if m.row["rank"] is None else m.row["rank"], m, is_hinted=m.row["rank"] is None)
        else:
            number = p["hint"] if p["hint"] not in taken_numbers else None
            add(p, number, own[0] if own else None, is_hinted=number is not None)
    for m in members:
        m.rank_id = _rank_id_of(m, by_process[m.owner])
    return rank_rows


def _largest_communicator(members: list[Member]) -> list[Member]:
    """Return the members of the job's largest communicator; of equal ones that with most members, then the first."""
    groups = list(group_by_key(members).values())
    if not groups:
        return []
    return max(groups, key=lambda g: (max(m.row["nranks"] for m in g), len(g), -min(m.row["created_pos"] for m in g)))


def _usable_hints(largest: list[Member], members: list[Member], processes: list[dict[str, Any]]) -> bool:
    """Whether file names number the processes: no communicator holds them all, and the numbers do not conflict."""
    hints = [p["hint"] for p in processes]
    with_membership = {m.owner for m in largest}
    if None in hints or len(set(hints)) < len(hints) or len(with_membership) == len(processes) or not members:
        return False
    hint = {(p["host"], p["pid"]): p["hint"] for p in processes}
    return all(hint[m.owner] == m.row["rank"] for m in largest) or max(m.row["nranks"] for m in members) < len(
        processes
    )


def _rank_id_of(m: Member, candidates: list[dict[str, Any]]) -> int | None:
    if m.rank_id is not None or len(candidates) == 1:
        return m.rank_id if m.rank_id is not None else int(candidates[0]["rank_id"])
    if m.parent is not None and m.parent.rank_id is not None:
        return m.parent.rank_id
    same_gpu = [c["rank_id"] for c in candidates if c["cudadev"] == m.row["cudadev"] and c["busid"] == m.row["busid"]]
    return int(same_gpu[0]) if len(same_gpu) == 1 else None
