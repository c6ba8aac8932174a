"""Own time: how long each rank works in a step, outside of all calls.

A step lies between the ends of two calls in which all ranks wait for each other, so that it is equally long on all of
them. What is left of it without the calls, as far as no computation hides them, is a rank's own time; it needs no clock
but the rank's own. A call's wait is what it lasts longer than on the rank that came last; its transfer is the rest.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.slow.alignment import period_of
from ncclforensics.frames.registry import analysis

CALL_WAIT = {
    "key": pl.String(),
    "nth": pl.Int32(),
    "rank": pl.Int32(),
    "operation": pl.String(),
    "bytes": pl.Int64(),
    "duration_us": pl.Float64(),
    "transfer_us": pl.Float64(),  # the shortest of all members: at least so long it takes once all are there
    "wait_us": pl.Float64(),
}

OWN_TIME = {
    "rank": pl.Int32(),
    "step": pl.Int32(),  # equal on all ranks
    "number": pl.Int64(),  # as the profiler numbers it; null: it does not
    "ended_us": pl.Float64(),  # on the clock of the host
    "length_us": pl.Float64(),
    "own_us": pl.Float64(),
    "busy_us": pl.Float64(),  # of it, that kernels compute
    "unlaunched_us": pl.Float64(),  # of it, that no kernel runs because the host has launched none; null: not known
    "wait_us": pl.Float64(),  # not hidden behind computation
    "transfer_us": pl.Float64(),  # not hidden either; with calls whose waits are not known,
    "unsplit_us": pl.Float64(),  # which take this much of it: messages, and all-to-all of unequal sizes
}

RANK_TIME = {
    "rank": pl.Int32(),
    "host": pl.String(),
    "own_us": pl.Float64(),  # of a step, as are the others: medians
    "wait_us": pl.Float64(),
    "transfer_us": pl.Float64(),
    "busy_us": pl.Float64(),
    "idle_us": pl.Float64(),  # of its own time, in which no kernel computes
    "last": pl.Int32(),  # steps in which it worked longest
    "steps": pl.Int32(),
}


@analysis(CALL_WAIT, of=("profiled_call",))
def call_wait(timed_call: pl.DataFrame) -> pl.DataFrame:
    """One row per rank and call in which all members wait for each other, of calls that all members' traces hold."""
    of_call = pl.struct("key", "nth")
    waiting = timed_call.filter("waits_for_all").with_columns(traced=pl.len().over("key", "nth"))
    complete = waiting.filter(pl.col("traced") == pl.col("size"))
    shortest = pl.col("duration_us").min().over(of_call)
    return complete.with_columns(transfer_us=shortest, wait_us=pl.col("duration_us") - shortest)


@analysis(OWN_TIME, of=("profiled_call",))
def own_time(timed_call: pl.DataFrame, call_wait: pl.DataFrame, profiled_step: pl.DataFrame) -> pl.DataFrame:
    """One row per rank and step, without the cut ones at both ends of the traces."""
    boundaries = _boundaries(timed_call, profiled_step)
    if boundaries.is_empty():
        return pl.DataFrame(schema=OWN_TIME)
    transfers = call_wait.select("key", "nth", "rank", "transfer_us")
    calls = timed_call.join(transfers, on=["key", "nth", "rank"], how="left").sort("end_us")
    of_step = calls.join_asof(
        boundaries.select("rank", "step", bound_us="ended_us").sort("bound_us"),
        left_on="end_us",
        right_on="bound_us",
        by="rank",
        strategy="forward",
        check_sortedness=False,
    ).drop_nulls("step")
    wait = (pl.col("exposed_us") - pl.col("transfer_us")).clip(lower_bound=0).fill_null(0)
    unsplit = pl.col("exposed_us").filter(pl.col("transfer_us").is_null())
    parts = of_step.group_by("rank", "step").agg(
        pl.col("exposed_us").sum(), wait_us=wait.sum(), unsplit_us=unsplit.sum()
    )
    steps = boundaries.sort("rank", "step").with_columns(
        pl.col("busy_us", "unlaunched_us").diff().over("rank"),
        length_us=pl.col("ended_us").diff().over("rank"),
        is_next=pl.col("step").diff().over("rank") == 1,
    )
    known = steps.filter("is_next").join(parts, on=["rank", "step"], how="left", maintain_order="left")
    known = known.with_columns(
        own_us=(pl.col("length_us") - pl.col("exposed_us")).clip(lower_bound=0),
        transfer_us=pl.col("exposed_us") - pl.col("wait_us"),
    )
    ranks = timed_call["rank"].n_unique()
    return known.filter(pl.len().over("step") == ranks).sort("step", "rank")


@analysis(RANK_TIME, of=("profiled_call",))
def rank_time(own_time: pl.DataFrame, ranked_process: pl.DataFrame) -> pl.DataFrame:
    """One row per rank: its times in a usual step, and how often it was the last."""
    parts = ("own_us", "wait_us", "transfer_us", "busy_us", "idle_us")
    is_last = pl.col("own_us") == pl.col("own_us").max().over("step")
    idle = (pl.col("own_us") - pl.col("busy_us")).clip(lower_bound=0)
    rows = own_time.with_columns(is_last=is_last, idle_us=idle)
    medians = rows.group_by("rank").agg(pl.col(parts).median(), last=pl.col("is_last").sum(), steps=pl.len())
    return medians.join(ranked_process.select("rank", "host"), on="rank", how="left").sort("rank")


def _boundaries(calls: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The ends of steps on every rank: columns `rank`, `step`, `ended_us`, `busy_us`, `unlaunched_us`, `number`.

    They are ends of calls of the widest group of each rank; of several such calls in a step, the first in each.
    """
    waiting = calls.filter("waits_for_all")
    widest = waiting.filter(pl.col("size") == pl.col("size").max().over("rank"))
    of_rank = widest.group_by("rank", "key").agg(pl.len())
    chosen = of_rank.sort("len", "key", descending=[True, False]).unique("rank", keep="first")
    anchors = widest.join(chosen.select("rank", "key"), on=["rank", "key"]).sort("rank", "nth")
    per_step = _calls_per_step(anchors, steps)
    if not per_step:
        return anchors.clear().with_columns(step=pl.lit(0), ended_us=pl.lit(0.0), number=pl.lit(0))
    bounds = anchors.filter(pl.col("nth") % per_step == 0).select(
        "rank", "source", "busy_us", "unlaunched_us", step=pl.col("nth") // per_step, ended_us="end_us"
    )
    middle = (pl.col("ended_us") - pl.col("ended_us").diff().over("rank") / 2).fill_null(pl.col("ended_us"))
    numbers = steps.select("source", number="step", begun_us="start_us").sort("begun_us")
    return (
        bounds.sort("rank", "step")
        .with_columns(middle_us=middle)
        .sort("middle_us")
        .join_asof(
            numbers,
            left_on="middle_us",
            right_on="begun_us",
            by="source",
            strategy="backward",
            check_sortedness=False,
        )
    )


def _calls_per_step(anchors: pl.DataFrame, steps: pl.DataFrame) -> int:
    """How many calls of the widest group a step has: by the profiler's steps, or by what repeats."""
    kind = pl.format("{} {}", "operation", pl.col("bytes").fill_null(-1))
    first = anchors.filter(pl.col("rank") == pl.col("rank").min()).with_columns(kind=kind)
    period = period_of(first["kind"].to_list())
    numbered = steps.join(first.select("source").unique(), on="source", how="semi").height
    counted = round(first.height / numbered) if numbered > 1 else 0
    return counted if counted and (not period or counted % period == 0) else period
