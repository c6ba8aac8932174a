"""Compute how late each rank made each collective call, against the other ranks of its communicator.

A line has a time if the user asked for it (2.26 and later), or if the launcher adds one. Host clocks are aligned
by the creation of the largest communicator, which completes on all its ranks together.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.names import MESSAGES
from ncclforensics.frames.columns import LINE, OWNER, text_of, with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import of_template
from ncclforensics.frames.time_range import as_time

YEAR = 2000  # assumed for clocks without a year; only differences are used
SECOND = 1e6  # in microseconds
MIN_RANKS = 3  # of two ranks the median cannot show which one is late

LAG = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "rank_id": pl.Int32(),
    "host": pl.Categorical(),
    "nth": pl.Int32(),  # which collective of the communicator
    "lag": pl.Float64(),  # seconds after the median of the ranks
    "time_us": pl.Float64(),  # microseconds, on the aligned clocks
    "clock_resolution": pl.Float64(),  # seconds
    **LINE,
}


def _rows_with_time(rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the rows that have a time, with `time` in microseconds and whether it has a fraction of a second."""
    text = pl.coalesce(pl.col("stamp", "launcher_time").cast(pl.String))
    return (
        rows.filter(pl.col("stamp").is_not_null() | pl.col("launcher_time").is_not_null())
        .select("source", "line", *columns, has_fraction=text.str.contains(".", literal=True), time=as_time(text, YEAR))
        .with_columns(pl.col("time").dt.epoch("us"))
        .filter(pl.col("time").is_not_null())
    )


@analysis(LAG, of=("operation", "journal_call"))
def lag(
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    communicator: pl.DataFrame,
    journal_call: pl.DataFrame,
    journal_init: pl.DataFrame,
    call: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank and collective that all ranks of a communicator made, where lines have times."""
    is_stamped = of_template(call_occurrence, call_template, "stamp").is_not_null()
    lines = call_occurrence.filter(is_stamped | pl.col("launcher_time").is_not_null())
    lines = with_line(lines.with_columns(of_template(lines, call_template, "stamp")))
    timed = pl.concat([_rows_with_time(lines), _rows_with_time(journal_call)])
    if timed.is_empty():
        return pl.DataFrame(schema=LAG)
    has_fraction = bool(timed["has_fraction"].all())
    collectives = call.filter(pl.col("nth").is_not_null())
    timed_collectives = (
        with_line(collectives.hstack(member.select("job", "nranks")[collectives["member"]]))
        .filter(pl.col("nranks") >= MIN_RANKS)
        .join(timed.select("source", "line", "time"), on=["source", "line"])
        .join(rank.select("job", "rank_id", "host"), on=["job", "rank_id"])
        .select(_TIMED_CALL)
    )
    # Before 2.26 NCCL's lines have no times, but a capture's journal has times of the same calls.
    journal_calls = _journal_collectives(journal_call, journal_init, rank).join(timed_collectives, on="job", how="anti")
    calls = pl.concat([timed_collectives, journal_calls])
    calls = calls.filter(pl.len().over("job", "key", "nth") == pl.col("nranks"))
    clock_offsets = _clock_offsets(
        pl.concat([rows.select(*_COMPLETION, text_of("stamp")) for rows in (communicator, journal_init)])
    )
    has_several_hosts = pl.col("host").n_unique().over("job") > 1
    corrected = calls.join(clock_offsets, on="host", how="left").filter(
        ~has_several_hosts | pl.col("ahead").is_not_null()
    )
    time = pl.col("time") - pl.col("ahead").fill_null(0)
    lag_seconds = (time - time.median().over("job", "key", "nth")) / SECOND
    return corrected.with_columns(
        lag=lag_seconds, time_us=time.cast(pl.Float64), clock_resolution=pl.lit(0.0 if has_fraction else 1.0)
    )


def _journal_collectives(journal_call: pl.DataFrame, journal_init: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives in a capture's journal (columns _TIMED_CALL).

    A pointer of several communicators, and a process of several ranks, do not say whose call it is.
    """
    collectives = journal_call.filter(text_of("called").is_in(MESSAGES).not_())
    created = journal_init.filter(pl.col("phase") == "START").filter(pl.len().over(*OWNER, "comm") == 1)
    created = created.filter(pl.col("nranks") >= MIN_RANKS)
    ranks = rank.filter(pl.len().over(OWNER) == 1)
    return (
        _rows_with_time(collectives, *OWNER, "comm", "ordinal")
        .join(created.select(*OWNER, "comm", "nranks", key="commid"), on=[*OWNER, "comm"])
        .join(ranks.select("job", "rank_id", *OWNER), on=OWNER)
        .rename({"ordinal": "nth"})
        .select(_TIMED_CALL)
    )


_TIMED_CALL = ["job", "key", "rank_id", "nth", "nranks", "host", "source", "line", "time"]
_COMPLETION = ["source", "line", "host", "launcher_time", "phase", "nranks"]


def _clock_offsets(communicator: pl.DataFrame) -> pl.DataFrame:
    """Return by how many microseconds each host's clock is ahead, from the completion of the largest communicator."""
    ends = communicator.filter((pl.col("phase") == "COMPLETE") & (pl.col("nranks") == pl.col("nranks").max()))
    timed = _rows_with_time(ends, "host")
    hosts = timed.group_by("host").agg(pl.col("time").min())
    return hosts.select("host", ahead=pl.col("time") - hosts["time"].median())
