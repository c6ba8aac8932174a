"""List the Flight Recorder dumps whose entries must be read; of the others their heads suffice.

The head of a dump says how far its rank came in each process group. Where members differ, those that are behind are
suspects: their entries are read, those of one witness per group, and those of the ranks they wait for.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.recorder_graph import Recordings
from ncclforensics.frames.registry import analysis


@analysis({"source": pl.Int32()}, of=("recorder_dump",), is_step=True)
def recorder_next(
    source: pl.DataFrame,
    recorded_rank: pl.DataFrame,
    recorded_position: pl.DataFrame,
    recorded_call: pl.DataFrame,
) -> pl.DataFrame:
    """The dumps of which only the head was read, and whose entries are needed."""
    unread = recorded_rank.join(source.filter(~pl.col("is_whole")).select("source"), on="source", how="semi")
    if unread.is_empty():
        return unread
    recordings = Recordings(recorded_position, recorded_call, recorded_rank)
    placed = {rank for rows in recordings.positions.values() for rank in rows}
    is_ambiguous = pl.col("rank").is_null() | (pl.col("rank").count().over("rank") > 1)
    unclear = recorded_rank.filter(is_ambiguous)["source"]
    remaining = {row["rank"]: row["source"] for row in unread.filter("is_used").to_dicts()}
    wanted = {number for number in unread["source"] if number in set(unclear)}
    wanted |= {number for rank, number in remaining.items() if rank not in placed}
    wanted |= set(unread.filter("is_contested")["source"])  # their times show which are of the latest attempt
    if recorded_rank["is_before_run"].any():
        wanted |= set(unread["source"])
    suspects = _suspects(recordings)
    is_open = any(
        recordings.completed(group, rank) < recordings.enqueued(group, rank)
        for group, rows in recordings.positions.items()
        for rank in rows
    )
    if is_open and not suspects:
        suspects = set(remaining)  # all made the same calls: their entries show whether the calls agree
    wanted |= {remaining[rank] for rank in suspects | _waited_for(recordings) if rank in remaining}
    return pl.DataFrame({"source": sorted(wanted)}, schema={"source": pl.Int32()})


def _suspects(recordings: Recordings) -> set[int]:
    """The ranks that made or completed the fewest collectives of a group in which others wait, and another."""
    suspects: set[int] = set()
    for group, rows in recordings.positions.items():
        made = {rank: recordings.enqueued(group, rank) for rank in rows}
        completed = {rank: recordings.completed(group, rank) for rank in rows}
        if all(completed[rank] >= made[rank] for rank in rows) or any(row["has_p2p"] for row in rows.values()):
            continue
        for counts in (made, completed):
            fewest = min(counts.values())
            lagging = {rank for rank, count in counts.items() if count == fewest}
            if len(lagging) < len(counts):
                suspects |= lagging | {min(set(counts) - lagging)}
    return suspects


def _waited_for(recordings: Recordings) -> set[int]:
    """The ranks whose entries show whether a rank that was read waits for them."""
    needed: set[int] = set()
    for rank in recordings.read:
        call = recordings.blocking(rank)
        if call is None:
            continue
        if call.is_p2p:
            needed |= set() if call.peer is None else {call.peer}
            continue
        place = recordings.standing(*call.collective)
        if not place.missing:
            needed.update(place.unread)
    return needed
