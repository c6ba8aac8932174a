"""Where a program was when it was told that a collective had timed out, by its tracebacks."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.tracebacks import PRINTER
from ncclforensics.data.names import some_of
from ncclforensics.data.stack_classes import is_of_launcher
from ncclforensics.frames.columns import count_behind, text_of

MOST_PLACES = 2
FROM_END = 2  # lines of a file behind the last call of a traceback that was cut


def ends_of_tracebacks(
    work_timeout: pl.DataFrame,
    watchdog: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    exception: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """The lines with which tracebacks end that tell of an aborted communicator, or that were cut before the error."""
    found = [_aborted(work_timeout), _aborted(watchdog), _cut(traceback_frame, exception, source)]
    return pl.concat(found, how="vertical_relaxed").sort("pos")


def _aborted(frame: pl.DataFrame) -> pl.DataFrame:
    """The lines by which a call of the program tells that the watchdog aborted its communicator."""
    return frame.filter(text_of("form") == "aborted").select(*PRINTER, "pos", rank="global_rank")


def _cut(traceback_frame: pl.DataFrame, exception: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The last calls of the program's tracebacks with which a file ends, before the error is named."""
    rank = pl.coalesce("rank", "launcher_rank").cast(pl.Int32)
    last = traceback_frame.drop_nulls("file").sort("pos").group_by("source", maintain_order=True).last()
    named = exception.filter(text_of("form") != "traceback").group_by("source").agg(named=pl.col("pos").max())
    ends = last.join(source.select("source", "lines"), on="source").join(named, on="source", how="left")
    is_of_program = ~pl.col("file").map_elements(is_of_launcher, return_dtype=pl.Boolean)
    is_open = (
        is_of_program & (count_behind() <= FROM_END) & (pl.col("named") > pl.col("pos")).fill_null(value=False).not_()
    )
    return ends.filter(is_open).select(*PRINTER, "pos", rank=rank)


def raised_in(errors: pl.DataFrame) -> str:
    """Where the program was when it was told of the time-out, by the tracebacks."""
    places = [
        f"{place} (rank {rank})" if rank is not None else place
        for place, rank in errors.drop_nulls("place").select("place", "rank").unique(maintain_order=True).iter_rows()
    ]
    return f"; an exception of the program came through {some_of(places, MOST_PLACES)}" if places else ""
