"""Files of launches that were over before those of other files began: folders keep the outputs of all attempts.

Times are compared as they are printed, those of programs with each other and those of collectors with each other, for
both may be of other zones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

import polars as pl

from ncclforensics.frames.launch_order import STEP
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.time_range import NO_YEAR, as_time, elapsed

OF_COLLECTORS = "launcher_time"
CLOCKS = ("stamp", "moment", "step_time", "time", OF_COLLECTORS)
# Frames of lines that a launch prints while it runs, or as it fails: their first one is not long after it began.
OF_LAUNCHES = (STEP, "exception", "gpu_exception", "work_timeout", "work_status", "watchdog", "c10d_note")
WAITED = "ran_for"  # column of time-outs: how long the call had been waiting, in ms
# Other nodes of a launch give up in less once they wait for one that ended, beside the time that they say they waited.
APART = timedelta(hours=1)
HALF_YEAR = timedelta(days=183)  # what is farther apart by times without a year may have any order


def find(run: Frames, ended: pl.DataFrame, frames: Iterable[str]) -> pl.Series:
    """Return the inputs in which a launch ended as a whole, before the launch of another input began.

    `ended`: the ends of launches; `frames`: names of those of what the programs of a job print.
    """
    over = ended["source"].unique().sort()
    if over.is_empty() or len(run.inputs) == 1:
        return over.clear()
    printed = [lines for name in frames if run.has(name) for lines in _times(run[name], name)]
    lines = pl.concat(printed).drop_nulls("at") if printed else pl.DataFrame()
    if lines.is_empty():
        return over.clear()
    lines = lines.with_columns(at=elapsed(pl.col("at"), lines["at"][0]))
    last = lines.filter(pl.col("source").is_in(over.implode())).group_by("source", "clock").agg(pl.col("at").max())
    begun = lines.filter("is_of_launch").group_by("clock", other="source").agg(begun=(pl.col("at") - "waited").min())
    pairs = last.join(begun, on="clock").filter(pl.col("source") != pl.col("other"))
    is_later = (pl.col("begun") - pl.col("at")).is_between(APART, HALF_YEAR)
    later = pairs.group_by("source", "other").agg(is_later=is_later.all()).filter("is_later")
    return later["source"].unique().sort()


def _times(rows: pl.DataFrame, name: str) -> Iterator[pl.DataFrame]:
    """Yield the times in each column of a frame that holds some, and how long its lines say they waited."""
    waited = pl.duration(milliseconds=pl.col(WAITED).fill_null(0)) if WAITED in rows.columns else pl.lit(timedelta())
    is_of_launch = pl.lit(name in OF_LAUNCHES)
    for clock in CLOCKS:
        if clock in rows.columns and rows[clock].null_count() < rows.height:
            text = pl.col(clock).cast(pl.String).str.replace("_", " ", literal=True).str.replace(",", ".", literal=True)
            of_collector = pl.lit(clock == OF_COLLECTORS)
            yield rows.select(
                "source", at=as_time(text, NO_YEAR), clock=of_collector, waited=waited, is_of_launch=is_of_launch
            )
