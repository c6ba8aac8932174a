"""Who waits for whom by the Flight Recorder dumps, in the form of the edges that NCCL's lines give."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.recorder_graph import Recordings
from ncclforensics.analyses.hang.recorder_roots import wait_edges
from ncclforensics.analyses.hang.wait_graph import RECORDED, Edge
from ncclforensics.analyses.job.text.recorder_groups import RecordedCall
from ncclforensics.frames.columns import Row, columns_of
from ncclforensics.frames.registry import analysis

RECORDED_WAIT = {
    **columns_of(Edge),
    "name": pl.String(),  # of the call, as NCCL names it
    "count": pl.Int64(),
    "datatype": pl.Int32(),  # NCCL's number
    "root": pl.Int32(),  # the peer of a message
}


@analysis(RECORDED_WAIT, of=("recorder_status", "dumped_call"))
def recorded_wait(
    recorded_position: pl.DataFrame, recorded_call: pl.DataFrame, recorded_rank: pl.DataFrame, rank: pl.DataFrame
) -> pl.DataFrame:
    """Every rank that stands in a recorded call, with the ranks it waits for there."""
    recordings = Recordings(recorded_position, recorded_call, recorded_rank)
    rank_ids = dict(rank.filter(pl.col("rank").is_not_null()).select("rank", "rank_id").iter_rows())
    jobs = rank["job"].unique().to_list()
    if len(jobs) != 1:
        return pl.DataFrame(schema=RECORDED_WAIT)  # dumps name no job
    rows = []
    for waiter, targets in sorted(wait_edges(recordings).items()):
        awaited = sorted(rank_ids[target] for target in set(targets) if target in rank_ids)
        call = recordings.blocking(waiter) or _next_call(recordings, waiter)
        if waiter in rank_ids and awaited and call:
            rows.append({**call.of_nccl, **_place(recordings, waiter, call), "job": jobs[0], "waits_for": awaited})
            rows[-1]["waiter"] = rank_ids[waiter]
    return pl.DataFrame(rows, schema=RECORDED_WAIT)


def _place(recordings: Recordings, waiter: int, call: RecordedCall) -> Row:
    head = recordings.head(waiter)
    key = f"process group {call.group}"
    return {**head, "kind": RECORDED, "key": key, "nth": call.sequence, "pos": waiter}


def _next_call(recordings: Recordings, rank: int) -> RecordedCall | None:
    """Return the first call that a rank did not complete, as another member recorded it."""
    for group, rows in recordings.positions.items():
        if rank in rows and recordings.completed(group, rank) < recordings.enqueued(group, rank):
            called = recordings.collectives_at(group, recordings.enqueued(group, rank))
            if called:
                return next(iter(called.values()))[0]
    return None
