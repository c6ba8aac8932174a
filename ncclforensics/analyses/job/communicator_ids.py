"""Names for communicators that are equal on all their ranks.

`commId` where NCCL prints one; parent, number and colour of the split for children; and where nothing is printed, the
order of creation, which is an inference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl


@dataclass(slots=True)
class Member:
    """A row of `communicator_lifetime` while its job-wide identity is being worked out."""

    row: dict[str, Any]
    key: str = ""
    created: int = 0  # place among the communicators of its process
    is_inferred: bool = False
    parent: Member | None = None
    birth: int | None = None
    job: int = 0
    rank_id: int | None = None

    @property
    def owner(self) -> tuple[str, int]:
        """Host and pid of the process."""
        return self.row["host"], self.row["pid"]


def named(communicator_lifetime: pl.DataFrame) -> list[Member]:
    """Every row of `communicator_lifetime` with a size, in the order of birth, under its job-wide name."""
    members = [Member(row) for row in communicator_lifetime.filter(pl.col("nranks").is_not_null()).to_dicts()]
    newest: dict[tuple[str, int, str], Member] = {}
    counts: dict[tuple[str, int], int] = defaultdict(int)
    children: dict[int, int] = defaultdict(int)
    for m in members:
        row = m.row
        m.created, counts[m.owner] = counts[m.owner], counts[m.owner] + 1
        m.parent = newest.get((*m.owner, row["parent"])) if row["parent"] else None
        newest[(*m.owner, row["comm"])] = m
        nth_child = row["child"]
        if m.parent is not None and nth_child is None:
            nth_child, children[id(m.parent)] = children[id(m.parent)], children[id(m.parent)] + 1
        m.birth = nth_child
        if m.parent is not None:
            m.key = f"{m.parent.key}/{nth_child}.{row['color']}"
        elif row["commid"]:
            m.key = str(row["commid"])
        elif row["parent"]:
            m.key, m.is_inferred = f"split of an unseen communicator/{nth_child}.{row['color']}:{row['nranks']}", True
        else:
            m.key, m.is_inferred = f"unnamed, {row['nranks']} ranks", True
    _split_by_creation(members)
    _split_by_order(members)
    return members


def by_key(members: list[Member]) -> dict[str, list[Member]]:
    """The members of each communicator."""
    grouped: dict[str, list[Member]] = defaultdict(list)
    for m in members:
        grouped[m.key].append(m)
    return grouped


def _split_by_creation(members: list[Member]) -> None:
    """One commId, two communicators: they differ in size, or were created at different places of every program."""
    distinctions: tuple[Callable[[Member], str], ...] = (
        lambda m: f":{m.row['nranks']}",
        lambda m: f"#{m.created}",
        lambda m: f":{m.row['nranks']}#{m.created}",
    )
    for key, group in by_key([m for m in members if not m.is_inferred]).items():
        for distinction in distinctions:
            memberships = [(distinction(m), m.row["rank"]) for m in group]
            ranks = {rank for _, rank in memberships}
            if len(ranks) == len(group):
                break
            if len(set(memberships)) == len(group):
                for m in group:
                    m.key = key + distinction(m)
                break


def _split_by_order(members: list[Member]) -> None:
    """Without any id: the j-th communicator of a shape in which a process is rank r meets the j-th ones of the others.

    In the order of the processes' world ranks this is right for blocks (tensor parallel) and for strides (data
    parallel) alike.
    """
    inferred = [m for m in members if m.is_inferred]
    world: dict[tuple[str, int], int] = {}
    for m in sorted(inferred, key=lambda m: -int(m.row["nranks"])):
        world.setdefault(m.owner, int(m.row["rank"]))
    nth: dict[tuple[str, int, str], int] = defaultdict(int)
    for m in inferred:  # the same shape created again in one process
        place = (*m.owner, f"{m.key}, rank {m.row['rank']}")
        m.key, nth[place] = f"{m.key}, {nth[place] + 1}. of its size", nth[place] + 1
    for key, group in by_key(inferred).items():
        memberships: dict[int, list[Member]] = defaultdict(list)
        for m in sorted(group, key=lambda m: (world[m.owner], m.row["created_pos"])):
            memberships[int(m.row["rank"])].append(m)
        for held in memberships.values():
            for table, m in enumerate(held):
                m.key = f"{key}, group {table + 1}"
