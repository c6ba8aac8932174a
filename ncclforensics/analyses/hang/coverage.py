"""List what must still be read, so that windows at the ends of the files give the same verdict as the whole files."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls.calls import replay_only_calls
from ncclforensics.frames.columns import OWNER, with_line
from ncclforensics.frames.registry import analysis

READ_NEXT = {
    "source": pl.Int32(),
    "reach": pl.String(),  # head, tail (a longer window there) or all
}


@analysis(READ_NEXT)
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
    stack_dump: pl.DataFrame,
    recorded_rank: pl.DataFrame,
    recorder_next: pl.DataFrame,
    member: pl.DataFrame,
    unexplained_difference: pl.DataFrame,
) -> pl.DataFrame:
    """The files of which more must be read, and where; no rows if the windows suffice."""
    dumps = recorder_next.with_columns(reach=pl.lit("all"))
    partly_read = source.filter(~pl.col("is_closed")).select("source").join(recorded_rank, on="source", how="anti")
    if partly_read.is_empty():
        return dumps
    tail = with_line(call.filter("in_tail"))
    hidden, hidden_in_use = _ends_between_windows(call, tail, partly_read)
    unseen = _without_call_at_end(member, process, tail).join(partly_read, on="source", how="semi")
    hidden_in_use = pl.concat([hidden_in_use.select(unseen.columns), unseen])
    read_all = [
        # Neither window has an NCCL line: one may be anywhere in the file.
        partly_read.join(process.select(pl.col("sources").explode().alias("source")), on="source", how="anti"),
        # The ordinal of these calls is unknown until the calls before them are counted.
        tail.filter(pl.col("ordinal").is_null()).select("source"),
        unexplained_difference.select("source"),
        # A dump that lies between the windows may be of another rank.
        stack_dump.select("source"),
    ]
    read_head = [
        _calls_of_unknown_communicators(call_template, call_occurrence, replay, tail),
        _processes_in_init(process, communicator_lifetime),
        # Only the end of these was read: who shares them stands where they were created.
        communicator_lifetime.filter(pl.col("nranks").is_null()).select("source"),
        _behind_others(hidden, call),
    ]
    read_tail = [
        hidden_in_use,
        _after_missing_call(tail, last_call.join(hidden_in_use, on=["rank_id", "key"], how="anti")),
        _at_divergence(tail, divergence),
        _failures_from_first_line(failure, tail),
    ]
    requests = [
        (frame.select("source"), reach)
        for reach, frames in (("all", read_all), ("head", read_head), ("tail", read_tail))
        for frame in frames
    ]
    return (
        pl.concat(
            [
                frame.join(partly_read, on="source", how="semi").select("source", reach=pl.lit(reach))
                for frame, reach in requests
            ]
            + [dumps]
        )
        .unique("source", keep="first", maintain_order=True)
        .sort("source")
    )


def _ends_between_windows(
    call: pl.DataFrame, tail: pl.DataFrame, partly_read: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return where the last call of a rank on a communicator may lie between the windows: only the head shows some.

    Columns `source`, `rank_id`, `key`, `calls`: those of communicators that no rank uses at the end, and all others.
    """
    at_head = with_line(call.filter(~pl.col("in_tail"))).join(partly_read, on="source", how="semi")
    shown = at_head.group_by("source", "rank_id", "key").agg(calls=pl.col("ordinal").max() + 1)
    hidden = shown.join(tail, on=["source", "rank_id", "key"], how="anti")
    is_in_use = pl.col("key").is_in(tail["key"].unique().implode())
    has_no_call_at_end = ~pl.col("source").is_in(tail["source"].unique().implode())
    return hidden.filter(~(is_in_use | has_no_call_at_end)), hidden.filter(is_in_use | has_no_call_at_end)


def _without_call_at_end(member: pl.DataFrame, process: pl.DataFrame, tail: pl.DataFrame) -> pl.DataFrame:
    """Return the files of members that show no call at the end on a communicator that another rank uses there."""
    in_use = member.filter(pl.col("key").is_in(tail["key"].unique().implode())).select(*OWNER, "rank_id", "key")
    files = in_use.join(process.select(*OWNER, source="sources").explode("source"), on=OWNER)
    return files.join(tail, on=["rank_id", "key"], how="anti").select("source", "rank_id", "key")


def _behind_others(hidden: pl.DataFrame, call: pl.DataFrame) -> pl.DataFrame:
    """Return windows that show fewer calls on a communicator than another rank made, of communicators in no tail."""
    most = call.group_by("key").agg(most=pl.col("ordinal").max() + 1)
    return hidden.join(most, on="key").filter(pl.col("calls") < pl.col("most"))


def _calls_of_unknown_communicators(
    call_template: pl.DataFrame, call_occurrence: pl.DataFrame, replay: pl.DataFrame, tail: pl.DataFrame
) -> pl.DataFrame:
    """Return calls in a tail window whose communicator was created in lines that were not read."""
    frames = [call_occurrence, replay_only_calls(call_template, replay)]
    unknown = pl.concat([frame.select("pos") for frame in frames]).join(tail.select("pos"), on="pos", how="anti")
    return with_line(unknown).filter(pl.col("line") < 0)


def _processes_in_init(process: pl.DataFrame, communicator_lifetime: pl.DataFrame) -> pl.DataFrame:
    """Return the files of processes that have no communicator, or one in init: the next lines were not read."""
    created = communicator_lifetime.filter(pl.col("nranks").is_not_null())  # of the others, only the end was read
    without_communicator = process.join(created.select(OWNER).unique(), on=OWNER, how="anti")
    in_init = process.join(
        communicator_lifetime.filter(~pl.col("is_complete") & pl.col("end").is_null()).select(OWNER),
        on=OWNER,
        how="semi",
    )
    return pl.concat(
        [frame.select(pl.col("sources").explode().alias("source")) for frame in (without_communicator, in_init)]
    )


def _after_missing_call(tail: pl.DataFrame, last_call: pl.DataFrame) -> pl.DataFrame:
    """Return windows that begin after the call that a lagging member lacks."""
    counts = last_call.group_by("key").agg(fewest=pl.col("calls").min(), most=pl.col("calls").max())
    first_calls = tail.filter(pl.col("nth").is_not_null()).group_by("source", "key").agg(pl.col("nth").min())
    return first_calls.join(counts, on="key").filter(
        (pl.col("fewest") < pl.col("most")) & (pl.col("nth") > pl.col("fewest"))
    )


def _at_divergence(tail: pl.DataFrame, divergence: pl.DataFrame) -> pl.DataFrame:
    """Return windows that begin with a divergence: an earlier one may lie before them."""
    first_calls = tail.filter(pl.col("nth").is_not_null()).group_by("source", "key").agg(first=pl.col("nth").min())
    return first_calls.join(divergence, on="key").filter(pl.col("first") >= pl.col("nth"))


def _failures_from_first_line(failure: pl.DataFrame, tail: pl.DataFrame) -> pl.DataFrame:
    """Return windows that begin with failures: earlier lines are not visible (2.21 repeats one warning endlessly)."""
    first_failures = failure.filter(pl.col("line") < 0).group_by("source").agg(failed=pl.col("line").min())
    first_calls = tail.group_by("source").agg(called=pl.col("line").min())
    return first_failures.join(first_calls, on="source", how="left").filter(
        pl.col("called").is_null() | (pl.col("failed") < pl.col("called"))
    )
