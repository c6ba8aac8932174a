"""Compare the order in which ranks called the collectives of several process groups, by their Flight Recorder dumps."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.hang.recorder_graph import Place, Recordings
from ncclforensics.analyses.job.text.torch_text import minority_of


def ranks_in_another_order(recordings: Recordings, cycle: list[int]) -> list[int]:
    """Return the ranks of a cycle that called two collectives in another order than most; without a majority, all.

    Ranks of one program use groups of one family in one order, whatever the names of the groups.
    """
    outliers: set[int] = set()
    differing: set[int] = set()
    pairs: set[frozenset[Place]] = set()
    for waiter in cycle:
        awaited = recordings.blocking(waiter)
        for rank in set(recordings.targets(waiter)) & set(cycle):
            own = recordings.blocking(rank)
            if awaited and own and not awaited.is_p2p and not own.is_p2p:
                pairs.add(frozenset((call.family, call.number) for call in (awaited, own)))
    for pair in pairs:
        if len(pair) == 2:
            orders = _called_first(recordings, *sorted(pair))
            minority = minority_of(orders)
            (outliers if len(minority) < len(orders) else differing).update(minority)
    return sorted((outliers or differing) & set(cycle))


def _called_first(recordings: Recordings, first: Place, second: Place) -> dict[int, Place]:
    """Rank -> which of two collectives, by family and number, it called first; ranks that made neither are left out.

    Where one is recorded alone, the rank stands before the other.
    """
    is_there = pl.any_horizontal(
        (pl.col("family") == family) & (pl.col("sequence") == number) for family, number in (first, second)
    )
    lines: dict[int, dict[Place, int]] = defaultdict(dict)
    found = recordings.calls.filter(is_there & ~pl.col("is_p2p")).select("rank", "family", "sequence", "line")
    for rank, family, number, line in found.iter_rows():
        lines[rank].setdefault((family, number), line)
    return {rank: min(seen, key=lambda place: seen[place]) for rank, seen in lines.items()}
