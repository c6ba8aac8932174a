"""Faults of machines in the kernel log, without those of other days than the run.

A kernel log goes back to the start of the machine. Where its lines and the lines of the run carry dates, an event more
than a day before or after the run is none of it; a day, because each may be printed in another time zone.
"""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from ncclforensics.frames.columns import ORIGIN
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import CLOCKS, as_time

YEAR = 2000  # of all dates: syslog prints none
ANOTHER_DAY = timedelta(days=1)

KERNEL_EVENT = {
    "form": pl.Categorical(),  # of `hardware_event`
    "node": pl.Categorical(),
    "busid": pl.Categorical(),
    "pid": pl.Int32(),
    "xid": pl.Int32(),
    "fault": pl.Categorical(),
    "severity": pl.Categorical(),
    "pci_severity": pl.Categorical(),
    "memory_error": pl.Categorical(),  # UE: uncorrectable; CE: corrected
    "memory_fault": pl.Categorical(),
    "netdev": pl.Categorical(),
    "state": pl.Categorical(),
    **ORIGIN,
}


@analysis(KERNEL_EVENT, of=("hardware_event",))
def kernel_event(
    hardware_event: pl.DataFrame,
    source: pl.DataFrame,
    failure: pl.DataFrame,
    warning: pl.DataFrame,
    communicator: pl.DataFrame,
    work_timeout: pl.DataFrame,
    work_status: pl.DataFrame,
    c10d_note: pl.DataFrame,
    job_end: pl.DataFrame,
) -> pl.DataFrame:
    """One row per event that the kernel logged, except for those of other days than the run."""
    kernel_logs = set(hardware_event["source"])
    times = [_times(source.filter(~pl.col("source").is_in(kernel_logs)), "last_time"), _times(job_end, "time")]
    frames = (failure, warning, communicator, work_timeout, work_status, c10d_note)
    times += [_times(frame, clock) for frame in frames for clock in CLOCKS]
    of_run = pl.concat(times)
    if of_run.is_empty():
        return hardware_event
    first, last = pl.lit(of_run).min(), pl.lit(of_run).max()
    logged = pl.coalesce(_time("logged"), _time("launcher_time"))  # the latter in a journal as JSON
    return hardware_event.filter(logged.is_between(first - ANOTHER_DAY, last + ANOTHER_DAY) | logged.is_null())


def _time(column: str) -> pl.Expr:
    return as_time(pl.col(column).cast(pl.String), YEAR).dt.replace(year=YEAR)


def _times(frame: pl.DataFrame, column: str) -> pl.Series:
    """Return the times in a column; an empty series where a frame has no such column."""
    if column not in frame.columns:
        return pl.Series(dtype=pl.Datetime("us"))
    return frame.select(time=_time(column))["time"].drop_nulls()
