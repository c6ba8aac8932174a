"""The communicators that NCCL's Inspector, a profiler and RAS name by their hash.

A log prints the hash as commId where a communicator is initialised, and not where one is split from another. The
Inspector and RAS print process, rank and size beside the hash, as the log does beside the pointer: where these fit one
communicator only, and that one no other hash, it is meant. Anything else is left open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import polars as pl

from ncclforensics.frames.columns import text_of

Members = dict[int | None, dict[int, tuple[int, str]]]  # hash of a communicator -> rank in it -> rank id and key
Printed = tuple[pl.DataFrame, str, int]  # rows, the column that holds a hash as text, and the base of its digits
Place = tuple[int, int]  # process and rank in the communicator


def hash_number(text: str, base: int) -> int | None:
    """Return the number that a hash is; None for any other text, which a document may hold in its place."""
    try:
        return int(text, base)
    except ValueError:
        return None


def members_by_hash(member: pl.DataFrame, rank: pl.DataFrame, printed: Iterable[Printed]) -> Members:
    """Return the members of every communicator whose hash is known, without hashes that several communicators have.

    `printed`: what sources other than logs print, in the columns `process`, `rank` and `nranks` beside the hash.
    """
    keys: dict[int, set[str]] = defaultdict(set)
    members: Members = defaultdict(dict)
    unnamed: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    rows = member.select("rank_id", "rank", text_of("key"), text_of("commid"), "nranks").drop_nulls(["rank_id", "rank"])
    for rank_id, number, key, commid, nranks in rows.drop_nulls("key").iter_rows():
        if commid is None:
            unnamed[key][number] = (rank_id, key)
            sizes[key] = nranks
        elif (value := hash_number(commid, 16)) is not None:
            keys[value].add(key)
            members[value][number] = (rank_id, key)
    known: Members = {value: members[value] for value, of_value in keys.items() if len(of_value) == 1}
    processes = dict(rank.select("rank_id", "pid").iter_rows())
    of_keys = {
        key: {(processes.get(rank_id), number) for number, (rank_id, _) in places.items()}
        for key, places in unnamed.items()
    }
    fitting = {
        value: [key for key, of_key in of_keys.items() if places <= of_key and sizes[key] == nranks]
        for value, (places, nranks) in _places(printed).items()
        if value not in keys
    }
    fits = [key for of_value in fitting.values() for key in of_value]
    return known | {
        value: unnamed[of_value[0]]
        for value, of_value in fitting.items()
        if len(of_value) == 1 and fits.count(of_value[0]) == 1
    }


def _places(printed: Iterable[Printed]) -> dict[int, tuple[set[Place], int]]:
    """Hash -> processes with their ranks, and the size of the communicator; without hashes printed with two sizes."""
    places: dict[int, set[Place]] = defaultdict(set)
    sizes: dict[int, set[int]] = defaultdict(set)
    for rows, column, base in printed:
        columns = rows.select(text_of(column), "process", "rank", "nranks").drop_nulls().unique(maintain_order=True)
        for text, process, rank, nranks in columns.iter_rows():
            if (value := hash_number(text, base)) is not None:
                places[value].add((process, rank))
                sizes[value].add(nranks)
    return {value: (places[value], min(found)) for value, found in sizes.items() if len(found) == 1}
