"""Process groups in Flight Recorder dumps: their members, and a name that no other group of the job has.

A group made with `split_group`, as a device mesh does, bears the same name on the ranks of all parts of the split
(torch/distributed/flight_recorder/components/builder.py): there the members belong to the name.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

import polars as pl

from ncclforensics.data.names import parse_short_integer
from ncclforensics.data.torch_calls import BATCHES, NCCL_NAMES
from ncclforensics.frames.columns import Large, Row, text_of

# Source -> name of a process group -> its row, with `members`, and with `group`, the name that is its own.
Groups = dict[int, dict[str, Row]]

Place = tuple[str, int]  # process group and number of a collective in it

WORLD = "0"  # name of the process group of all ranks
MOST_MEMBERS = 1 << 20
LONGEST_RANKS = 24  # characters of a list of ranks in the name of a group


class RecordedCall(NamedTuple):
    """A call in the dump of a rank: a row of `recorded_call`."""

    rank: int
    group: str
    group_desc: str | None
    family: str  # equal for the groups that the ranks of one program use at the same place
    sequence: Large | None  # number of the collective in its group; of a point-to-point call, of the rank's own
    name: str  # as PyTorch calls it
    library: str
    peer: int | None  # of a point-to-point call; null: unknown or any
    is_p2p: bool
    elements: Large | None  # of its input
    datatype: int | None  # NCCL's number
    dtypes: str | None  # as PyTorch names them
    is_open: bool  # it has not completed
    is_started: bool  # a GPU was seen to have begun it; PyTorch looks only if it measures times
    is_partial: bool  # the rest of a batch whose first calls were overwritten
    created_ns: Large | None
    called_from: str | None  # file and line of the application, and the function
    record_id: Large | None
    source: int
    line: int

    @property
    def of_nccl(self) -> Row:
        """The call as NCCL names it; `root` is the peer of a message."""
        root = self.peer if self.is_p2p else None
        name = NCCL_NAMES.get(self.name, self.name)
        return {"name": name, "count": self.elements, "datatype": self.datatype, "root": root}

    @property
    def number(self) -> int:
        """The number of a collective in its process group."""
        return -1 if self.sequence is None else self.sequence

    @property
    def collective(self) -> Place:
        """The process group, and the number in it."""
        return self.group, self.number


@lru_cache(maxsize=4096)
def members_of(ranks: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `0-511, 520`."""
    members: list[int] = []
    for part in ranks.split(","):
        first, _, last = part.strip().partition("-")
        begin, end = parse_short_integer(first), parse_short_integer(last or first)
        if begin is None or end is None or end - begin >= MOST_MEMBERS:
            return ()
        members.extend(range(begin, end + 1))
    return tuple(members)


@lru_cache(maxsize=4096)
def size_of(ranks: str) -> int:
    """Return how many ranks a text such as `0-511, 520` names."""
    return len(members_of(ranks))


def groups_by_source(dumped_group: pl.DataFrame) -> Groups:
    """Return the process groups of every dump. A group without a name belongs to no entry."""
    rows = dumped_group.with_columns(pl.col("group_name", "group_desc", "ranks").cast(pl.String)).drop_nulls(
        ["group_name", "ranks"]
    )
    lists = rows.select("group_name", "ranks").unique()
    shared_names = set(lists.filter(pl.len().over("group_name") > 1)["group_name"])
    groups: Groups = defaultdict(dict)
    for row in rows.to_dicts():
        if members := members_of(row["ranks"]):
            name = row["group_name"]
            own_name = f"{name} of {_ranks_text(row['ranks'], members)}" if name in shared_names else name
            groups[row["source"]][name] = {**row, "members": members, "group": own_name}
    return groups


def _ranks_text(ranks: str, members: tuple[int, ...]) -> str:
    if len(ranks) <= LONGEST_RANKS:
        return f"rank {ranks}" if len(members) == 1 else f"ranks {ranks}"
    return f"rank {members[0]} and {len(members) - 1} others"


def own_names(calls: pl.DataFrame, groups: Groups) -> pl.Series:
    """Return the process group of each recorded call, by the name that is its own.

    Torch 2.2 prints only the number that a group has in its process, which is that of other groups on other ranks.
    """
    places = calls.select("source", text_of("group_name"), text_of("group_desc").is_null()).iter_rows()
    names = [
        groups[number][name]["group"]
        if name in groups.get(number, ())
        else f"{name} of dump {number}"
        if is_local and name not in (None, WORLD)
        else name
        for number, name, is_local in places
    ]
    return pl.Series(names, dtype=pl.String)


def groups_with_one_number(calls: pl.DataFrame) -> list[str]:
    """Return the groups that count collectives and messages together, so that the numbers of their ranks differ.

    All groups do before torch 2.4; until 2.5 a batch of messages takes the next number of the collectives. `calls`:
    rows of `dumped_call`, with `group`.
    """
    title = text_of("profiling_name").str.split(":").list.last()
    rows = calls.select(
        "source",
        "group",
        "collective_seq",
        "p2p_seq",
        is_p2p=text_of("is_p2p") == "true",
        is_batch=title.is_in(BATCHES),
    ).drop_nulls("group")
    in_common = rows.filter((pl.col("is_p2p") | pl.col("is_batch")) & pl.col("p2p_seq").is_null())
    of_messages = rows.filter("is_p2p").join(
        rows.filter(~pl.col("is_p2p")), on=["source", "group", "collective_seq"], how="anti"
    )
    counted = of_messages.group_by("source", "group").agg(pl.col("collective_seq").n_unique())
    return sorted({*in_common["group"], *counted.filter(pl.col("collective_seq") > 1)["group"]})
