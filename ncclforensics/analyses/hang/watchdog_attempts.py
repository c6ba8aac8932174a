"""Leave out the time-outs of earlier attempts: torchrun starts all ranks again after a hang, and a log may hold both.

An attempt is known by torchrun's folder, or by time: a rank that reported before reports other work, so long after
that all ranks of the first hang had ended.
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import polars as pl

from ncclforensics.frames.time_range import CLOCKS, as_time

DEFAULT_TIMEOUT = 600_000  # milliseconds, of PyTorch's groups over NCCL
LEAST, MOST = 60_000, 300_000  # milliseconds between the reports of two attempts, of half a time-out
WORK = ("sequence", "enqueued", "completed", "operation", "numel")  # what a report says of a rank's work


def of_latest_attempt(reports: pl.DataFrame, torch_source: pl.DataFrame) -> pl.DataFrame:
    """Return the reports (columns rank, guid, WORK, `timeout`, CLOCKS) of the latest attempt, without times."""
    numbered = reports.join(torch_source.select("source", "attempt"), on="source", how="left", maintain_order="left")
    latest = pl.col("attempt").is_null() | (pl.col("attempt") == pl.col("attempt").max())
    clocks = [name for name in CLOCKS if name in reports.columns]
    times = [as_time(pl.col(name).cast(pl.String), datetime.now().year) for name in clocks]
    timed = numbered.filter(latest).with_columns(time=pl.coalesce(times))
    begin = _begin_of_latest(timed.filter(pl.col("time").is_not_null()).sort("time"))
    kept = timed if begin is None else timed.filter(pl.col("time").is_null() | (pl.col("time") >= begin))
    return kept.drop("attempt", "time", "timeout", *clocks)


def _begin_of_latest(timed: pl.DataFrame) -> datetime | None:
    """Return the time of the first report of the latest attempt; None where there is one attempt."""
    if timed.is_empty():
        return None
    timeout = timed["timeout"].min()
    apart = min(MOST, max(LEAST, (timeout if isinstance(timeout, int) else DEFAULT_TIMEOUT) // 2))
    times: list[datetime] = timed["time"].unique().sort().to_list()
    begins = [after for before, after in pairwise(times) if (after - before).total_seconds() * 1000 > apart]
    return next((begin for begin in reversed(begins) if _is_new_attempt(timed, begin)), None)


def _is_new_attempt(timed: pl.DataFrame, begin: datetime) -> bool:
    """Whether a rank reports other work of the same group from this time on than it did before."""
    work = [pl.col(name).drop_nulls().first() for name in WORK]
    ranks = ["rank", "guid"]
    before = timed.filter(pl.col("time") < begin).group_by(ranks).agg(work)
    after = timed.filter(pl.col("time") >= begin).group_by(ranks).agg(work)
    both = before.join(after, on=ranks, suffix="_after")
    differs = pl.any_horizontal(pl.col(name) != pl.col(f"{name}_after") for name in WORK)
    return bool(both.select(differs.fill_null(value=False).any()).item())
