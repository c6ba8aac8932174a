"""Ends of processes that are reported of another launch than that of NCCL's lines, such as in an old error file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import ExitReport, Row
from ncclforensics.analyses.job.ends.torchrun_reports import TORCHRUN


def mark_other_launches(
    rows: Iterable[Row], reports: Iterable[ExitReport], rank: pl.DataFrame, nranks: int | None
) -> None:
    """Take `is_placed` from rows of `process_exit` that torchrun's process ids show to be of other processes.

    Torchrun starts the ranks itself, and names its children by their ids: another id for a rank than NCCL prints, or
    none of NCCL's where all ranks are known, is that of another launch, or of a script that starts the rank.
    """
    named: dict[int, dict[int, int | None]] = defaultdict(dict)  # source -> process id -> rank
    for report in reports:
        if report.reporter == TORCHRUN and report.pid:
            named[report.row["source"]][report.pid] = report.rank
    if not named:
        return
    pid_of = dict(rank.drop_nulls(["rank", "pid"]).select("rank", "pid").iter_rows())
    are_all_known = nranks is not None and len(pid_of) == nranks
    for row in rows:
        pids = named.get(row["source"], {})
        own = {pid for pid, number in pids.items() if number == row["rank"]} if row["rank"] is not None else set()
        is_other = row["rank"] in pid_of and bool(own) and pid_of[row["rank"]] not in own
        row["is_placed"] &= not (is_other or (are_all_known and bool(pids) and pids.keys().isdisjoint(pid_of.values())))
