"""Members of communicators on which they made no call, where Init lines are missing.

An init ends when all ranks have joined it (NCCL, src/bootstrap.cc): a communicator that has as many ranks as there are
processes holds all of them. A process without a call on it made none, unless its log begins behind that call.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.identity.communicator_ids import Member, group_by_key
from ncclforensics.frames.columns import OWNER, PROCESS, Row
from ncclforensics.frames.registry import analysis

CALLS_BEHIND = {
    **PROCESS,
    "comm": pl.Categorical(),
    "calls": pl.Int64(),  # of the process, behind its last one on this communicator; all, where `comm` is null
}


@analysis(CALLS_BEHIND, is_step=True)
def calls_behind(
    calls_without_init: pl.DataFrame,
    process: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    calls_between: pl.DataFrame,
) -> pl.DataFrame:
    """How far processes went on behind their calls on communicators of all processes.

    Of processes whose Init lines are missing; no rows where all show calls on equally many of these communicators.
    """
    pointer = [*OWNER, "comm"]
    of_world = calls_without_init.filter(nranks=process.height).select(pointer)
    shown = of_world.group_by(OWNER).len()
    if shown.is_empty() or (shown.height == process.height and shown["len"].n_unique() == 1):
        return pl.DataFrame(schema=CALLS_BEHIND)
    made = call_template.select(pointer)[call_occurrence["call_template"]]
    made = made.with_columns(call_occurrence["pos"], calls=pl.lit(1, dtype=pl.Int64))
    made = pl.concat([made, calls_between.select(made.columns)])
    last = made.join(of_world, on=pointer, how="semi").group_by(pointer).agg(last=pl.col("pos").max())
    later = made.select(*OWNER, "pos", "calls").join(last, on=OWNER).filter(pl.col("pos") > pl.col("last"))
    later = last.join(later.group_by(pointer).agg(pl.col("calls").sum()), on=pointer, how="left")
    # Calls of which only the number was kept may be on a communicator of all processes, too.
    hidden = calls_between.join(calls_without_init, on=pointer, how="anti")
    known = calls_without_init.join(hidden, on=OWNER, how="anti")
    every = made.join(known, on=OWNER, how="semi").group_by(OWNER).agg(pl.col("calls").sum())
    columns = [pl.col(name).cast(dtype) for name, dtype in CALLS_BEHIND.items()]
    found = pl.concat([later.with_columns(pl.col("calls").fill_null(0)), every], how="diagonal")
    return found.select(columns).sort("host", "pid")


def members_without_calls(
    members: list[Member],
    of_streams: dict[int, Member],
    streams: pl.DataFrame,
    calls_behind: pl.DataFrame,
    processes: list[Row],
) -> list[Member]:
    """Members of communicators of all processes on which they made no call.

    `members`: all others; `of_streams`: those by a row of `streams`, which is `calls_without_init`. Nothing is said of
    a process with no more calls than others made behind their last one on the communicator: its log may begin there.
    """
    if calls_behind.is_empty():
        return []
    calls = {tuple(pointer): count for *pointer, count in calls_behind.iter_rows()}
    pointers = streams.select(*OWNER, "comm").rows()
    most_behind: dict[str, int] = defaultdict(int)
    for number, m in of_streams.items():
        if m.nranks == len(processes):
            most_behind[m.key] = max(most_behind[m.key], calls[pointers[number]])
    groups = group_by_key(members)
    incomplete = {key: groups[key] for key in most_behind if len(groups[key]) < len(processes)}
    with_membership = {m.owner for group in incomplete.values() for m in group}
    absent = [row for row in processes if (row["host"], row["pid"]) not in with_membership]
    found = []
    for key, group in incomplete.items():
        if len({m.owner for m in group}) + len(absent) < len(processes) or len(group) + len(absent) > len(processes):
            continue
        taken = {m.rank for m in group}
        for row in absent:
            if calls.get((row["host"], row["pid"], None), 0) > most_behind[key]:
                rank = row["hint"] if None not in taken and row["hint"] not in taken else None
                owner = (row["host"], row["pid"])
                found.append(
                    Member(owner, rank, len(processes), created_pos=row["last_pos"], key=key, is_inferred=True)
                )
    return found
