"""Faults of machines in the kernel log, without those of other days than the run.

A kernel log goes back to the start of the machine. Where its lines and the lines of the run carry dates, an event more
than a day before or after the run is none of it; a day, because each may be printed in another time zone. Whether it is
of the run itself, only equal zones would show: an event whose printed time is outside of the run proves nothing.
"""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from ncclforensics.frames.columns import ORIGIN, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import CLOCKS, NO_YEAR, december_first, elapsed, time_of

ANOTHER_DAY = timedelta(days=1)
WITH_ZONES = timedelta(hours=15)  # a process of the run is not killed outside of it by more than a time zone
SOON_AFTER = timedelta(minutes=30)  # the last line: ranks that wait print no more until they time out

BUS_ERRORS = ("bus_error", "bus_error_received")  # forms of `hardware_event`: the device that reports, and its port

KERNEL_EVENT = {
    "form": pl.Categorical(),  # of `hardware_event`
    "node": pl.Categorical(),
    "busid": pl.Categorical(),
    "pid": pl.Int32(),
    "program": pl.Categorical(),
    "xid": pl.Int32(),
    "fault": pl.Categorical(),
    "message": pl.String(),
    "switch": pl.Int32(),
    "severity": pl.Categorical(),
    "pci_severity": pl.Categorical(),
    "errors": pl.Int32(),
    "memory_error": pl.Categorical(),  # UE: uncorrectable; CE: corrected
    "memory_fault": pl.Categorical(),
    "netdev": pl.Categorical(),
    "state": pl.Categorical(),
    "section": pl.Categorical(),  # of a report of the firmware: what failed
    "part": pl.Categorical(),
    "logged": pl.String(),
    "launcher_time": pl.String(),
    "is_in_run": pl.Boolean(),  # its time, as printed, is one of the run; null: no times show it
    **ORIGIN,
}


KERNEL_MESSAGE = {
    "form": pl.Categorical(),  # of `kernel_report`
    "node": pl.Categorical(),
    "busid": pl.Categorical(),
    "driver": pl.Categorical(),
    "driver_of_device": pl.Categorical(),
    "errno": pl.Int32(),
    "command": pl.Categorical(),
    "worker": pl.Categorical(),
    "files": pl.Int32(),
    "watts": pl.Int32(),
    "bus_error": pl.Categorical(),
    "vendor": pl.Categorical(),
    "pci_error": pl.Categorical(),
    "outcome": pl.Categorical(),
    "device": pl.Categorical(),
    "netdev": pl.Categorical(),
    "ring": pl.Categorical(),
    "driver_status": pl.Categorical(),
    "block": pl.Categorical(),
    "errors": pl.Int32(),
    "correctability": pl.Categorical(),
    "severity": pl.Categorical(),
    "page": pl.Categorical(),
    "bank": pl.Int32(),
    "mce_status": pl.Categorical(),
    "cpu": pl.Int32(),
    "check_fault": pl.Categorical(),  # what failed, below a machine check of AMD's processors
    "check_kind": pl.Categorical(),
    "memory_place": pl.Categorical(),
    "seconds": pl.Int32(),
    "pid": pl.Int32(),
    "program": pl.Categorical(),
    "detail": pl.String(),
    "detail_of_bug": pl.Categorical(),
    "warned_at": pl.Categorical(),
    "logged": pl.String(),
    "launcher_time": pl.String(),
    "is_in_run": pl.Boolean(),  # as in `kernel_event`
    **ORIGIN,
}

RUN_DAYS = {"first": pl.Datetime("us"), "last": pl.Datetime("us")}  # a day before and after the run; without a year


@analysis(RUN_DAYS)
def run_days(
    hardware_event: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    kernel_report: pl.DataFrame,
    source: pl.DataFrame,
    failure: pl.DataFrame,
    warning: pl.DataFrame,
    communicator: pl.DataFrame,
    work_timeout: pl.DataFrame,
    work_status: pl.DataFrame,
    c10d_note: pl.DataFrame,
    job_end: pl.DataFrame,
) -> pl.DataFrame:
    """One row with the days that an event may be of; none if no line of the run has a date."""
    kernel_logs = {*hardware_event["source"], *kernel_kill["source"], *kernel_report["source"]}
    printed = [_texts(source.filter(~pl.col("source").is_in(kernel_logs)), "last_time"), _texts(job_end, "time")]
    frames = (failure, warning, communicator, work_timeout, work_status, c10d_note)
    printed += [_texts(frame, clock) for frame in frames for clock in CLOCKS]
    distinct = pl.DataFrame({"printed": pl.concat(printed).drop_nulls().unique()})
    of_run = distinct.select(_time("printed")).to_series().drop_nulls()
    if of_run.is_empty():
        return pl.DataFrame(schema=RUN_DAYS)
    in_order = pl.select(time=december_first(pl.lit(of_run)))
    first, last = pl.col("time").min() - ANOTHER_DAY, pl.col("time").max() + ANOTHER_DAY
    return in_order.select(first=first.cast(RUN_DAYS["first"]), last=last.cast(RUN_DAYS["last"]))


@analysis(KERNEL_EVENT, of=("hardware_event",))
def kernel_event(hardware_event: pl.DataFrame, run_days: pl.DataFrame, run_start: pl.DataFrame) -> pl.DataFrame:
    """One row per event that the kernel logged, except for those of other days than the run."""
    return of_these_days(hardware_event, run_days, run_start)


@analysis(KERNEL_MESSAGE, of=("kernel_report",))
def kernel_message(kernel_report: pl.DataFrame, run_days: pl.DataFrame, run_start: pl.DataFrame) -> pl.DataFrame:
    """One row per report of the kernel or a driver, except for those of other days than the run."""
    device = pl.coalesce(text_of("device"), pl.format("/dev/nvidia{}", "minor")).cast(pl.Categorical)
    return of_these_days(kernel_report.with_columns(device=device), run_days, run_start)


def of_these_days(
    rows: pl.DataFrame, run_days: pl.DataFrame, run_start: pl.DataFrame, margin: timedelta = ANOTHER_DAY
) -> pl.DataFrame:
    """Return the events of the kernel that are of the days of the run, or have no date; with `is_in_run`.

    `margin`: how long before or after the run an event may be printed. Column `node`: that of the collector, where the
    kernel's line names none.
    """
    rows = rows.with_columns(node=pl.coalesce(text_of("node"), text_of("launcher_node")).cast(pl.Categorical))
    if run_days.is_empty():
        return rows.with_columns(is_in_run=pl.lit(None, pl.Boolean))
    first, last = run_days.row(0)
    # The launcher's time is that of a journal as JSON.
    logged = rows.select(pl.coalesce(_time("logged"), _time("launcher_time"))).to_series()
    after = pl.select(elapsed(pl.lit(logged), last - ANOTHER_DAY)).to_series()
    is_near = after.is_between(first - last + 2 * ANOTHER_DAY - margin, margin)
    start = next(run_start.iter_rows(named=True), {})
    began = start.get("launcher_time") or start.get("stamp")
    is_begun = elapsed(pl.lit(logged), began) >= timedelta() if began else pl.lit(value=True)
    return rows.with_columns(is_in_run=is_begun & (after <= SOON_AFTER)).filter(is_near.fill_null(value=True))


def _time(column: str) -> pl.Expr:
    return time_of(column, NO_YEAR).dt.replace(year=NO_YEAR)  # syslog prints none


def _texts(frame: pl.DataFrame, column: str) -> pl.Series:
    """Return the times in a column as they are printed; an empty series where a frame has no such column."""
    return frame[column].cast(pl.String) if column in frame.columns else pl.Series(dtype=pl.String)
