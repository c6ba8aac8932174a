"""What must still be read before the two ends of each file decide the question as the whole of it would."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls import only_replayed
from ncclforensics.frames.columns import OWNER, with_line
from ncclforensics.frames.registry import analysis

GAP = {
    "source": pl.Int32(),
    "reach": pl.String(),  # head, tail (double that window) or all
}


@analysis(GAP)
def read_next(
    source: pl.DataFrame,
    process: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    replay: pl.DataFrame,
    failure: pl.DataFrame,
    call: pl.DataFrame,
    last_call: pl.DataFrame,
    divergence: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
) -> pl.DataFrame:
    """The files to read more of, and where; no rows when the windows suffice."""
    partly = source.filter(~pl.col("is_whole")).select("source")
    if partly.is_empty():
        return pl.DataFrame(schema=GAP)
    tail = with_line(call.filter("in_tail"))
    everything = [
        # No line of NCCL at either end: it may stand anywhere.
        partly.join(process.select(pl.col("sources").explode().alias("source")), on="source", how="anti"),
        # The place of these calls is not known unless those before them are counted.
        tail.filter(pl.col("ordinal").is_null()).select("source"),
    ]
    more_head = [
        _of_unknown_communicators(call_template, call_occurrence, replay, tail),
        _without_birth(process, communicator_lifetime),
    ]
    more_tail = [_behind(tail, last_call), _at_the_edge(tail, divergence), _all_failures(failure, tail)]
    wanted = [
        (frame.select("source"), reach)
        for reach, frames in (("all", everything), ("head", more_head), ("tail", more_tail))
        for frame in frames
    ]
    return (
        pl.concat(
            [
                frame.join(partly, on="source", how="semi").select("source", reach=pl.lit(reach))
                for frame, reach in wanted
            ]
        )
        .unique("source", keep="first", maintain_order=True)
        .sort("source")
    )


def _of_unknown_communicators(
    call_template: pl.DataFrame, call_occurrence: pl.DataFrame, replay: pl.DataFrame, tail: pl.DataFrame
) -> pl.DataFrame:
    """Calls at the end whose communicator was not born in what was read: its birth lies further in."""
    both = [with_line(call_occurrence), only_replayed(call_template, replay)]
    told = pl.concat([frame.select("source", "line") for frame in both]).filter(pl.col("line") < 0)
    return told.join(tail.select("source", "line"), on=["source", "line"], how="anti")


def _without_birth(process: pl.DataFrame, communicator_lifetime: pl.DataFrame) -> pl.DataFrame:
    """Processes that have no communicator yet, or are still inside the init of one: what comes next was not read."""
    unborn = process.join(communicator_lifetime.select(OWNER).unique(), on=OWNER, how="anti")
    inside = process.join(
        communicator_lifetime.filter(~pl.col("is_complete") & pl.col("end").is_null()).select(OWNER),
        on=OWNER,
        how="semi",
    )
    return pl.concat([frame.select(pl.col("sources").explode().alias("source")) for frame in (unborn, inside)])


def _behind(tail: pl.DataFrame, last_call: pl.DataFrame) -> pl.DataFrame:
    """Windows that begin after the call which a lagging member has not made."""
    fewest = last_call.group_by("key").agg(fewest=pl.col("calls").min(), most=pl.col("calls").max())
    begins = tail.filter(pl.col("nth").is_not_null()).group_by("source", "key").agg(pl.col("nth").min())
    return begins.join(fewest, on="key").filter(
        (pl.col("fewest") < pl.col("most")) & (pl.col("nth") > pl.col("fewest"))
    )


def _at_the_edge(tail: pl.DataFrame, divergence: pl.DataFrame) -> pl.DataFrame:
    """Windows that begin with a difference: an earlier one may lie before them."""
    begins = tail.filter(pl.col("nth").is_not_null()).group_by("source", "key").agg(first=pl.col("nth").min())
    return begins.join(divergence, on="key").filter(pl.col("first") >= pl.col("nth"))


def _all_failures(failure: pl.DataFrame, tail: pl.DataFrame) -> pl.DataFrame:
    """Windows in which failures stand from the first line on: what came before them is not seen (2.21 repeats one
    warning without end).
    """
    first = failure.filter(pl.col("line") < 0).group_by("source").agg(failed=pl.col("line").min())
    called = tail.group_by("source").agg(called=pl.col("line").min())
    return first.join(called, on="source", how="left").filter(
        pl.col("called").is_null() | (pl.col("failed") < pl.col("called"))
    )
