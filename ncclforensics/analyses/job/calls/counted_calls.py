"""Collectives that other sources than the logs count: NCCL's Inspector, its example profiler, and RAS.

NCCL counts the collectives of each kind on a communicator when it launches them, from 0 on, and gives these three the
number (NCCL, src/plugin/profiler.cc, ncclProfilerStartTaskEvents; src/ras/collectives.cc). So a number that one of them
prints is the least number of such calls that the rank made. That a later one is not printed shows nothing: the
Inspector leaves out small calls and those that it did not time, and writes at intervals; it prints a call when it has
completed (NCCL, plugins/profiler/inspector).
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.identity.communicator_hashes import Members, hash_number, members_by_hash
from ncclforensics.frames.columns import LINE, Row, text_of
from ncclforensics.frames.registry import analysis

INSPECTOR, PROFILER, RAS = "inspector", "profiler", "ras"
COUNTED_CALL = {
    "rank_id": pl.Int32(),  # null where no other line shows this rank
    "key": pl.String(),  # of the communicator
    "operation": pl.String(),  # as NCCL names it; "collective" for all operations together (RAS up to 2.25)
    "calls": pl.Int64(),  # the rank made so many of them, or more
    "shown_by": pl.String(),  # inspector, which shows completed calls; profiler, ras
    **LINE,
}
MOST_CALLS = 1 << 62  # no rank makes more: such a number is none that NCCL counted
_NUMBERED = ["hash", "rank", "operation", "number", "source", "line"]


@analysis(COUNTED_CALL, of=("ended_operation", "profiler_event", "ras_state"))
def counted_call(
    ended_operation: pl.DataFrame,
    profiler_event: pl.DataFrame,
    ras_state: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """How many collectives of each kind every member of a communicator made at least, by each of these sources."""
    completed = ended_operation.filter(text_of("form") == "collective").select(
        "rank", "source", "line", hash=text_of("commhash"), operation=text_of("operation"), number="sequence"
    )
    launched = profiler_event.filter(text_of("form") == "coll").select(
        "rank", "source", "line", hash=text_of("comm_hash"), operation=text_of("event"), number="sequence"
    )
    printed = ((ended_operation, "commhash", 0), (ras_state, "communicator", 16))
    members = members_by_hash(member, rank, printed)
    rows = [
        {**row, "calls": number + 1, "shown_by": shown_by}
        for shown_by, numbered in ((INSPECTOR, completed), (PROFILER, launched))
        for number, row in _highest(numbered, members)
    ]
    return pl.DataFrame([*rows, *_launched_by_ras(ras_state, members)], schema=COUNTED_CALL)


def _highest(numbered: pl.DataFrame, members: Members) -> list[tuple[int, Row]]:
    """The highest number of each operation of each member, with where it stands."""
    highest = (
        numbered.select(_NUMBERED)
        .drop_nulls()
        .filter(pl.col("number") < MOST_CALLS)
        .group_by("hash", "rank", "operation")
        .agg(pl.all().sort_by("number").last())
        .sort("source", "line")
    )
    found = []
    for text, rank, operation, number, source, line in highest.select(_NUMBERED).iter_rows():
        of_communicator = members.get(hash_number(text, 0), {})
        rank_id, key = of_communicator.get(rank, (None, next((key for _, key in of_communicator.values()), None)))
        if key is not None:
            place = {"rank_id": rank_id, "key": key, "operation": operation, "source": source, "line": line}
            found.append((number, place))
    return found


def _launched_by_ras(ras_state: pl.DataFrame, members: Members) -> list[Row]:
    """The calls of every member in the last report; where several sets of ranks are counted, not named, the lowest."""
    last = ras_state.filter(pl.col("state_kind") == "launched").filter(pl.col("report") == pl.col("report").max())
    counts: dict[tuple[str, str], dict[int | None, Row]] = defaultdict(dict)
    for state in last.filter(pl.col("communicator").is_not_null()).sort("launched", descending=True).to_dicts():
        counts[state["communicator"], state["operation"]][state["rank"]] = state
    rows = []
    for (communicator, operation), by_rank in counts.items():
        for rank, (rank_id, key) in members.get(hash_number(communicator, 16), {}).items():
            row = by_rank.get(rank) or by_rank.get(None)
            if row:
                place = {"source": row["source"], "line": row["line"], "shown_by": RAS}
                rows.append({"rank_id": rank_id, "key": key, "operation": operation, "calls": row["launched"], **place})
    return rows
