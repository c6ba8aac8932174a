"""Leave out the time-outs of earlier attempts: torchrun starts all ranks again after a hang, and a log may hold both.

An attempt is known by torchrun's folder, or by time: a rank that reported before reports other work, so long after
that all ranks of the first hang had ended; or the logs show that the first communicator was created after the report.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import polars as pl

from ncclforensics.analyses.job.text.torch_text import attempt_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import NO_YEAR, december_first, elapsed, time_of

DEFAULT_TIMEOUT = 600_000  # milliseconds, of PyTorch's groups over NCCL
LEAST, MOST = 60_000, 300_000  # milliseconds between the reports of two attempts, of half a time-out
ALL_ZONES = timedelta(hours=26)
WORK = ("sequence", "enqueued", "completed", "operation", "numel")  # what a report says of a rank's work
CLOCKS = ("moment", "launcher_time")


@analysis({"rank": pl.Int32(), "source": pl.Int32()}, of=("work_timeout", "work_status"))
def early_timeout(
    work_timeout: pl.DataFrame, work_status: pl.DataFrame, source: pl.DataFrame, run_start: pl.DataFrame
) -> pl.DataFrame:
    """The ranks whose watchdogs reported a time-out before the run that NCCL's lines show began."""
    rank = pl.coalesce("global_rank", "launcher_rank", "group_rank").cast(pl.Int32).alias("rank")
    reports = pl.concat([frame.select(rank, "source", *CLOCKS) for frame in (work_timeout, work_status)])
    early = _with_attempt(reports, source).filter(_is_before_run(run_start))
    return early.select("rank", "source").drop_nulls("rank").unique().sort("rank", "source")


def of_latest_attempt(reports: pl.DataFrame, source: pl.DataFrame, run_start: pl.DataFrame) -> pl.DataFrame:
    """Return the reports (columns rank, guid, WORK, `timeout`, CLOCKS) of the latest attempt, without times."""
    numbered = _with_attempt(reports, source).filter(~_is_before_run(run_start))
    latest = numbered.filter(pl.col("attempt").is_null() | (pl.col("attempt") == pl.col("attempt").max()))
    clock = min(CLOCKS, key=lambda name: latest[name].null_count())
    timed = latest.with_columns(time=december_first(time_of(clock, NO_YEAR)))
    begin = _begin_of_latest(timed.filter(pl.col("time").is_not_null()).sort("time"))
    kept = timed if begin is None else timed.filter(pl.col("time").is_null() | (pl.col("time") >= begin))
    return kept.drop("attempt", "time", "timeout", *CLOCKS)


def _with_attempt(reports: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """Add the number of torchrun's attempt in whose folder a report stands."""
    attempt = pl.col("path").map_elements(attempt_of, pl.Int32)
    return reports.join(source.select("source", attempt=attempt), on="source", how="left", maintain_order="left")


def _is_before_run(run_start: pl.DataFrame) -> pl.Expr:
    """Whether a report is of an earlier attempt than NCCL's lines, or older than their first communicator.

    NCCL and PyTorch print the local time of one process, and a collector stamps the lines of both; between the two
    clocks may be all zones of the earth.
    """
    start = next(run_start.iter_rows(named=True), {})
    moment, collected = (time_of(name, NO_YEAR) for name in CLOCKS)
    pairs = [
        (moment, start.get("stamp"), timedelta()),
        (collected, start.get("launcher_time"), timedelta()),
        (moment, start.get("launcher_time"), ALL_ZONES),
        (collected, start.get("stamp"), ALL_ZONES),
    ]
    ages = [elapsed(time, since) < -zones for time, since, zones in pairs if since is not None]
    is_earlier = pl.col("attempt") < pl.lit(start.get("attempt"), pl.Int32)
    return pl.any_horizontal(*ages, is_earlier).fill_null(value=False)


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
