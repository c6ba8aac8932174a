"""Floods: lines that a process repeats so often that only the first and the last of them were kept."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from ncclforensics.frames.columns import OWNER, PROCESS
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import as_time

FLOOD = {
    **PROCESS,
    "message": pl.String(),  # without its prefix
    "repeats": pl.Int64(),  # at least so many equal lines
    "rate": pl.Float64(),  # of these in a second; null where their lines have no time, or only one second of it
    "share": pl.Float64(),  # of all lines read of the file
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first
    "pos": pl.Int64(),
    "last_line": pl.Int32(),
}


@analysis(FLOOD, of=("repeated_line",))
def flood(repeated_line: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """Every message that one process repeats in one file, where equal lines were counted instead of kept."""
    moment = as_time(pl.col("time"), datetime.now().year)
    is_equal = pl.col("host").is_not_null() & pl.col("message").is_not_null()
    rows = repeated_line.filter(is_equal).with_columns(moment=moment).sort("pos")
    seconds = (pl.col("moment").max() - pl.col("moment").min()).dt.total_milliseconds() / 1000
    floods = rows.group_by("source", *OWNER, "message", maintain_order=True).agg(
        pl.col("repeats").sum(),
        pl.col("line", "pos").first(),
        pl.col("last_line").last(),
        seconds=seconds,
        # The lines of the last moment are not counted: they go on after the time that was printed.
        before_last=pl.col("repeats").filter(pl.col("moment") < pl.col("moment").max()).sum(),
    )
    read = source.select("source", "lines")
    return (
        floods.join(read, on="source", how="left", maintain_order="left")
        .with_columns(
            rate=pl.when(pl.col("seconds") >= 1).then(pl.col("before_last") / pl.col("seconds")),
            share=pl.col("repeats") / pl.col("lines"),
        )
        .sort("pos")
    )
