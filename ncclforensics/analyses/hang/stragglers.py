"""Who comes late: when each rank made each collective call, against the other ranks of its communicator.

Lines carry a time from 2.26 on, where the user asked for it, or by their launcher. The clocks of hosts are compared by
the creation of the largest communicator: all its ranks come out of it together.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.names import MESSAGES
from ncclforensics.frames.columns import OWNER, text_of, with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import as_time
from ncclforensics.parsing.templates import CALL_TEMPLATE

YEAR = 2000  # stands for the year in clocks without one; only differences count
SECOND = 1e6  # in microseconds
ENOUGH = 3  # ranks, of which two can be wrong only together

LATENESS = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "rank_id": pl.Int32(),
    "host": pl.Categorical(),
    "nth": pl.Int32(),  # which collective of the communicator
    "late": pl.Float64(),  # seconds behind the median of the ranks
    "grain": pl.Float64(),  # seconds that the clocks can tell apart
    "source": pl.Int32(),
    "line": pl.Int32(),
}


def _timed(rows: pl.DataFrame, *more: str) -> pl.DataFrame:
    """The rows with a time, as microseconds in `time`."""
    text = pl.coalesce(pl.col("stamp", "launcher_time").cast(pl.String))
    return (
        rows.filter(pl.col("stamp").is_not_null() | pl.col("launcher_time").is_not_null())
        .select("source", "line", *more, is_fine=text.str.contains(".", literal=True), time=as_time(text, YEAR))
        .with_columns(pl.col("time").dt.epoch("us"))
        .filter(pl.col("time").is_not_null())
    )


@analysis(LATENESS, of=("operation", "journal_call"))
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
    """One row per rank and collective that all ranks of a communicator made, where lines carry times."""
    is_stamped = call_template["stamp"].is_not_null().gather(call_occurrence[CALL_TEMPLATE])
    lines = call_occurrence.filter(is_stamped | pl.col("launcher_time").is_not_null())
    lines = with_line(lines.with_columns(call_template["stamp"].gather(lines[CALL_TEMPLATE])))
    timed = pl.concat([_timed(lines), _timed(journal_call)])
    if timed.is_empty():
        return pl.DataFrame(schema=LATENESS)
    is_fine = bool(timed["is_fine"].all())
    collectives = call.filter(pl.col("nth").is_not_null())
    placed = (
        with_line(collectives.hstack(member.select("job", "nranks")[collectives["member"]]))
        .filter(pl.col("nranks") >= ENOUGH)
        .join(timed.select("source", "line", "time"), on=["source", "line"])
        .join(rank.select("job", "rank_id", "host"), on=["job", "rank_id"])
        .select(_MADE)
    )
    # Before 2.26 NCCL's lines have no times; the journal of a capture has its own of the same calls.
    journaled = _journaled(journal_call, journal_init, rank).join(placed, on="job", how="anti")
    made = pl.concat([placed, journaled])
    made = made.filter(pl.len().over("job", "key", "nth") == pl.col("nranks"))
    clocks = _clocks(pl.concat([rows.select(*_MEETING, text_of("stamp")) for rows in (communicator, journal_init)]))
    several = pl.col("host").n_unique().over("job") > 1
    corrected = made.join(clocks, on="host", how="left").filter(~several | pl.col("ahead").is_not_null())
    time = pl.col("time") - pl.col("ahead").fill_null(0)
    late = (time - time.median().over("job", "key", "nth")) / SECOND
    return corrected.with_columns(late=late, grain=pl.lit(0.0 if is_fine else 1.0))


def _journaled(journal_call: pl.DataFrame, journal_init: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """The collectives that a journal tells of, whoever else does (columns _MADE)."""
    collectives = journal_call.filter(text_of("called").is_in(MESSAGES).not_())
    created = journal_init.filter(pl.col("phase") == "START").filter(pl.col("nranks") >= ENOUGH)
    return (
        _timed(collectives, *OWNER, "comm", "ordinal")
        .join(created.select(*OWNER, "comm", "nranks", key="commid"), on=[*OWNER, "comm"])
        .join(rank.select("job", "rank_id", *OWNER), on=OWNER)
        .rename({"ordinal": "nth"})
        .select(_MADE)
    )


_MADE = ["job", "key", "rank_id", "nth", "nranks", "host", "source", "line", "time"]
_MEETING = ["source", "line", "host", "launcher_time", "phase", "nranks"]


def _clocks(communicator: pl.DataFrame) -> pl.DataFrame:
    """How far each host's clock is ahead: the largest communicator is complete on all of them at the same moment."""
    ends = communicator.filter((pl.col("phase") == "COMPLETE") & (pl.col("nranks") == pl.col("nranks").max()))
    timed = _timed(ends, "host")
    hosts = timed.group_by("host").agg(pl.col("time").min())
    return hosts.select("host", ahead=pl.col("time") - hosts["time"].median())
