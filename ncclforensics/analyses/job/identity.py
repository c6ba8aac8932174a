"""Who is who: processes, the communicators they were members of, jobs, and the ranks of a job.

A communicator's pointer is valid in one process and is used again after a destroy; `commId` is equal on all ranks, but
children of a split print none from 2.23.4 on, no communicator does before 2.16.2, and 2.18 to 2.21 give two splits of
equal colour the same one (formats: NCCL's init lines, section 2; traps 8 and 9.1b).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from ncclforensics.analyses.job.communicator_ids import Member, by_key, named
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.frames.registry import analysis

PROCESS = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "source": pl.Int32(),  # the file that holds most of it
    "sources": pl.List(pl.Int32()),
    "first_pos": pl.Int64(),
    "last_pos": pl.Int64(),
    "last_line": pl.Int32(),
    "last_source": pl.Int32(),
    "hint": pl.Int32(),  # the rank that its launcher or the file's name suggests
    "is_cut": pl.Boolean(),  # its last line has no end
}

LIFE = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "comm": pl.Categorical(),
    "incarnation": pl.Int32(),
    "rank": pl.Int32(),
    "nranks": pl.Int32(),
    "cudadev": pl.Int32(),
    "busid": pl.Categorical(),
    "commid": pl.Categorical(),
    "parent": pl.Categorical(),
    "child": pl.Int32(),
    "color": pl.Int64(),
    "creator": pl.Categorical(),
    "created_pos": pl.Int64(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of its first line
    "is_complete": pl.Boolean(),
    "end": pl.Categorical(),  # Destroy, Abort, Revoke
    "end_pos": pl.Int64(),
    "end_source": pl.Int32(),
    "end_line": pl.Int32(),
}

MEMBER = {
    "job": pl.Int32(),
    "key": pl.Categorical(),  # equal on all ranks of one communicator
    "rank_id": pl.Int32(),
    "is_inferred": pl.Boolean(),  # the log prints nothing that is equal on all ranks
    "parent_key": pl.Categorical(),
    "birth": pl.Int32(),  # which child of its parent, counted from 0 or as NCCL numbers them
    **LIFE,
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
    "is_hinted": pl.Boolean(),  # the number comes from the name of a file
}

_BIRTH = ["rank", "nranks", "cudadev", "busid", "commid", "parent", "child", "color", "creator"]
_POINTER = [*OWNER, "comm"]


@analysis(PROCESS)
def process(
    source: pl.DataFrame, speaker: pl.DataFrame, journal_process: pl.DataFrame, work: pl.DataFrame
) -> pl.DataFrame:
    """Every process that says anything, and the files that hold it."""
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
    alone = pl.struct("host", "pid").n_unique().over("source") == 1
    # A launcher that labels one process with two ranks, or two with one, counts something else: nodes, say.
    label = pl.when(pl.col("launcher_ranks").list.len() == 1).then(pl.col("launcher_ranks").list.first())
    launched = pl.when(pl.struct("host", "pid").n_unique().over(label) == 1).then(label)
    reported = work.group_by("source").agg(pl.col("rank").unique()).filter(pl.col("rank").list.len() == 1)
    names = (
        source.select("source", "hint", cut="is_cut")
        .join(reported.select("source", told=pl.col("rank").list.first()), on="source", how="left")
        .with_columns(hint=pl.coalesce("told", "hint"))
    )
    return (
        per_file.join(names, on="source")
        .with_columns(hint=pl.coalesce(launched, pl.when(alone).then("hint")))
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


@analysis(LIFE)
def communicator_lifetime(
    communicator: pl.DataFrame, ending: pl.DataFrame, milestone: pl.DataFrame, journal_only_lifetime: pl.DataFrame
) -> pl.DataFrame:
    """One row per communicator of a process, from its birth to its end. Pointers are told apart by incarnation."""
    event = pl.when(pl.col("form") == "begun").then(pl.lit("START")).otherwise(text_of("phase"))
    births = communicator.select("source", "line", "pos", *_POINTER, *_BIRTH, event=event)
    ends = ending.select(
        "source", "line", "pos", *_POINTER, "rank", event=pl.col("event").fill_null("Destroy COMPLETE")
    )
    same_line = ["event", *_POINTER, "rank", "nranks", "commid", "parent", "child", "color"]
    events = (
        pl.concat([births, ends.with_columns(text_of("event")), journal_only_lifetime], how="diagonal")
        .sort("pos")
        .with_columns(copy=pl.int_range(pl.len()).over(*same_line, "source"))
        .unique([*same_line, "copy"], keep="first", maintain_order=True)  # one line in two files is one event
        .with_columns(before=pl.col("event").shift().over(_POINTER))
        .with_columns(
            created=(pl.col("event") == "START")
            | (pl.col("event").eq("COMPLETE") & pl.col("before").ne_missing("START"))
        )
        .with_columns(incarnation=pl.col("created").cast(pl.Int64).cum_sum().over(_POINTER))
    )
    is_end = ~pl.col("event").is_in(["START", "COMPLETE"])
    lifetimes = (
        events.group_by([*_POINTER, "incarnation"], maintain_order=True)
        .agg(
            *(pl.col(name).drop_nulls().first() for name in _BIRTH),
            pl.col("pos").first().alias("created_pos"),
            pl.col("source").first(),
            pl.col("line").first(),
            (pl.col("event") == "COMPLETE").any().alias("is_complete"),
            pl.col("event").filter(is_end).last().str.split(" ").list.first().cast(pl.Categorical).alias("end"),
            pl.col("pos").filter(is_end).last().alias("end_pos"),
            pl.col("source").filter(is_end).last().alias("end_source"),
            pl.col("line").filter(is_end).last().alias("end_line"),
        )
        .sort("created_pos")
    )
    # Rings are connected at the end of init: a COMPLETE line that is lost is not missed.
    connected = milestone.filter(pl.col("form").is_in(["rings", "trees"])).select("host", "pid", "pos")
    latest = connected.sort("pos").join_asof(
        lifetimes.select("host", "pid", "comm", "incarnation", "created_pos"),
        left_on="pos", right_on="created_pos", by=OWNER, strategy="backward", check_sortedness=False,
    )  # fmt: skip
    through = latest.select(*_POINTER, "incarnation", through=True).unique()
    return lifetimes.join(through, on=[*_POINTER, "incarnation"], how="left", maintain_order="left").with_columns(
        is_complete=pl.col("is_complete") | pl.col("through").fill_null(False)
    )


@analysis(MEMBER)
def member(communicator_lifetime: pl.DataFrame, process: pl.DataFrame) -> pl.DataFrame:
    """Every communicator of every process under its job-wide name, with the actor (rank of the job) it belongs to."""
    members, _ = _placed(communicator_lifetime, process)
    rows = [
        {
            **m.row,
            "job": m.job,
            "key": m.key,
            "rank_id": m.rank_id,
            "is_inferred": m.is_inferred,
            "parent_key": m.parent.key if m.parent else None,
            "birth": m.birth,
        }
        for m in members
        if m.rank_id is not None
    ]
    return pl.DataFrame(rows, schema=MEMBER)


@analysis(RANK)
def rank(
    communicator_lifetime: pl.DataFrame, process: pl.DataFrame, work: pl.DataFrame, ras_member: pl.DataFrame
) -> pl.DataFrame:
    """The ranks of every job: one row per GPU that a process drives; `rank_id` is a number of our own for it.

    A rank of which only PyTorch speaks has neither host nor process; of one that only RAS shows, `host` is an address.
    """
    _, rank_ids = _placed(communicator_lifetime, process)
    jobs, numbers = {rank_id["job"] for rank_id in rank_ids}, {rank_id["rank"] for rank_id in rank_ids}
    if len(jobs) < 2:
        world = communicator_lifetime["nranks"].max()
        shown = ras_member if world is None else ras_member.filter(pl.col("nranks") == world)
        theirs = shown.select("rank", "source", host="node", pid="process", cudadev="gpu")
        unseen = pl.concat([theirs, work.select("rank", "source").unique("rank", keep="first")], how="diagonal")
        unseen = unseen.filter(~pl.col("rank").is_in(numbers - {None}).fill_null(False))
        is_first = pl.col("rank").is_null() | pl.col("rank").is_first_distinct()
        nobody = {"job": min(jobs, default=0), "is_hinted": False}
        rank_ids += [
            {**nobody, "rank_id": len(rank_ids) + place, **row}
            for place, row in enumerate(unseen.filter(is_first).sort("rank", nulls_last=True).to_dicts())
        ]
    return pl.DataFrame(rank_ids, schema=RANK)


def _placed(communicator_lifetime: pl.DataFrame, process: pl.DataFrame) -> tuple[list[Member], list[dict[str, Any]]]:
    members = named(communicator_lifetime)
    processes = process.to_dicts()
    jobs = _jobs(members, processes)
    rank_ids: list[dict[str, Any]] = []
    for number, owners in enumerate(jobs):
        ours = [m for m in members if m.owner in owners]
        for m in ours:
            m.job = number
        rank_ids += _actors(number, ours, [p for p in processes if (p["host"], p["pid"]) in owners], len(rank_ids))
    return members, rank_ids


def _jobs(members: list[Member], processes: list[dict[str, Any]]) -> list[set[tuple[str, int]]]:
    """Processes that share a communicator are one job; those without any join the only job there is."""
    leader: dict[tuple[str, int], tuple[str, int]] = {}

    def root(owner: tuple[str, int]) -> tuple[str, int]:
        leader.setdefault(owner, owner)
        while leader[owner] != owner:
            leader[owner] = leader[leader[owner]]
            owner = leader[owner]
        return owner

    first: dict[str, tuple[str, int]] = {}
    for m in members:
        leader[root(m.owner)] = root(first.setdefault(m.key, m.owner))
    for one, other in _crossed(members):
        leader[root(one)] = root(other)
    grouped: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for owner in list(leader):
        grouped[root(owner)].add(owner)
    jobs = list(grouped.values())
    strangers = {(p["host"], p["pid"]) for p in processes} - set(leader)
    if strangers and len(jobs) == 1:
        jobs[0] |= strangers
    elif strangers:
        jobs.append(strangers)
    return jobs


def _crossed(members: list[Member]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Processes that are stuck in the init of two equally large communicators whose ranks complete each other.

    Ranks that create two communicators in different order share none: they would look like two jobs.
    """
    groups = [g for g in by_key(members).values() if not any(m.row["is_complete"] or m.row["end"] for m in g)]
    pairs = []
    for place, one in enumerate(groups):
        for other in groups[place + 1 :]:
            ranks = [m.row["rank"] for m in one + other]
            same_size = one[0].row["nranks"] == other[0].row["nranks"]
            if (
                same_size
                and len(set(ranks)) == len(ranks)
                and {m.row["host"] for m in one} & {m.row["host"] for m in other}
            ):
                pairs.append((one[0].owner, other[0].owner))
    return pairs


def _actors(job: int, members: list[Member], processes: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    world = _world(members)
    by_process: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    rank_ids: list[dict[str, Any]] = []

    def add(p: dict[str, Any], number: int | None, m: Member | None, *, hinted: bool) -> None:
        row = m.row if m else {}
        rank_id = {
            "job": job,
            "rank_id": first + len(rank_ids),
            "rank": number,
            "host": p["host"],
            "pid": p["pid"],
            "cudadev": row.get("cudadev"),
            "busid": row.get("busid"),
            "source": p["source"],
            "is_hinted": hinted,
        }
        rank_ids.append(rank_id)
        by_process[p["host"], p["pid"]].append(rank_id)
        if m:
            m.rank_id = rank_id["rank_id"]

    hints = _usable_hints(world, members, processes)
    for p in processes:
        owner = (p["host"], p["pid"])
        memberships = [m for m in world if m.owner == owner] or [
            m
            for m in members
            if world and m.owner == owner and m.row["nranks"] == world[0].row["nranks"] and not m.row["is_complete"]
        ][:1]
        if hints:
            add(p, p["hint"], next((m for m in members if m.owner == owner), None), hinted=True)
        elif memberships:
            for m in memberships:
                add(p, m.row["rank"], m, hinted=False)
        else:
            taken = {m.row["rank"] for m in world}
            number = p["hint"] if p["hint"] not in taken else None
            add(p, number, next((m for m in members if m.owner == owner), None), hinted=number is not None)
    for m in members:
        m.rank_id = _actor_of(m, by_process[m.owner])
    return rank_ids


def _world(members: list[Member]) -> list[Member]:
    """The members of the job's largest communicator; of equals, the one with most members seen, then the first."""
    groups = list(by_key(members).values())
    if not groups:
        return []
    return max(groups, key=lambda g: (max(m.row["nranks"] for m in g), len(g), -min(m.row["created_pos"] for m in g)))


def _usable_hints(world: list[Member], members: list[Member], processes: list[dict[str, Any]]) -> bool:
    """Where no communicator holds all processes, the names of the files number them, if they do so without conflict."""
    hints = [p["hint"] for p in processes]
    inside = {m.owner for m in world}
    if None in hints or len(set(hints)) < len(hints) or len(inside) == len(processes) or not members:
        return False
    hint = {(p["host"], p["pid"]): p["hint"] for p in processes}
    return all(hint[m.owner] == m.row["rank"] for m in world) or max(m.row["nranks"] for m in members) < len(processes)


def _actor_of(m: Member, candidates: list[dict[str, Any]]) -> int | None:
    if m.rank_id is not None or len(candidates) == 1:
        return m.rank_id if m.rank_id is not None else int(candidates[0]["rank_id"])
    if m.parent is not None and m.parent.rank_id is not None:
        return m.parent.rank_id
    same_gpu = [c["rank_id"] for c in candidates if c["cudadev"] == m.row["cudadev"] and c["busid"] == m.row["busid"]]
    return int(same_gpu[0]) if len(same_gpu) == 1 else None
