"""What the times of hosts say of a slow job: which rank makes its calls later than all others.

It is possible at most: the GPU of a late host may be in time, and the clock of a host may be ahead. Where groups nest,
a rank that comes last may have waited for the culprit in another group: then no rank is named.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.slow.alignment import period_of
from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation
from ncclforensics.analyses.slow.step_window import FEWEST_MEMBERS, HARDLY_EVER, often_by_chance
from ncclforensics.analyses.slow.what_if import FEWEST_STEPS
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.data.names import ranks_text

MOSTLY = 0.75  # of the steps, in which a rank is the last
MUCH = 0.1  # of a step, by which it is late; behind a slow link an innocent rank was late by 0.04
TIMES_NEXT = 3  # times as late as the next
BEYOND_CLOCK = 3  # times what the times can tell apart
TOOLS = {"recorder": "Flight Recorder dumps", "log": "lines of NCCL"}
TRACES = Request(
    "traces of torch.profiler of all ranks: they show what each does between its calls, and need no clocks",
    Observation.TRACES,
)


def of_host_calls(host_call: pl.DataFrame) -> list[SlowExplanation]:
    """Return the rank whose host is late at a call of each step; that none is named, where there are such times."""
    return [
        _explanation(calls, TOOLS[str(tool)])
        for (tool,), calls in host_call.group_by("tool", maintain_order=True)
        if calls["rank"].n_unique() >= FEWEST_MEMBERS
    ]


def _explanation(calls: pl.DataFrame, tool: str) -> SlowExplanation:
    size = max(calls["size"].to_list())
    missing = sorted(set(range(size)) - set(calls["rank"].to_list()))
    late = None
    if calls["groups"][0] > 1:
        reason = "ranks also wait for each other in other groups, and those that do so come late without a fault"
    elif missing:
        reason = f"the others may wait for {ranks_text(missing)}, of which there are none"
    else:
        late, reason = _latest(calls, size)
    if late is None:
        return SlowExplanation(
            SlowKind.UNDECIDABLE,
            f"the times at which hosts made their calls, by {tool}, name no rank: {reason}",
            (Doubt.OPEN,),
            collect=(TRACES,),
            evidence=((calls["source"][0], calls["line"][0]),),
        )
    where = f" on {late.host}" if late.host else ""
    return SlowExplanation(
        SlowKind.RANK,
        f"{ranks_text([late.rank])}{where} makes a call of each step {late.late_us / 1e6:.3g} s after the other "
        f"{size - 1}, in {late.last} of {late.steps} steps",
        (Doubt.HOST_TIMES,),
        details=(f"by the times at which hosts made their calls ({tool}), in steps of {late.step_us / 1e6:.3g} s",),
        ranks=(late.rank,),
        hosts=(late.host,) if late.host else (),
        collect=(TRACES,),
        evidence=(late.place,),
    )


class _Latest(NamedTuple):
    """The rank that is late most at a call that each step has: by how much, and in how many steps it is the last."""

    rank: int
    host: str | None
    late_us: float
    step_us: float
    last: int
    steps: int
    place: tuple[int, int]  # source and line of such a call


def _latest(calls: pl.DataFrame, size: int) -> tuple[_Latest | None, str]:
    """Return the rank whose host is late; or why none is named. `calls`: of one group, of all its ranks."""
    first = calls.filter(pl.col("rank") == calls["rank"].min()).sort("nth")
    period = period_of(first["kind"].to_list())
    if not period:
        return None, "no sequence of calls repeats"
    complete = calls.filter(pl.len().over("nth") == size).sort("nth", "rank")
    late_us = pl.col("time_us") - pl.col("time_us").median().over("nth")
    complete = complete.with_columns(late_us=late_us, is_last=late_us == late_us.max().over("nth"))
    complete = complete.with_columns(in_step=pl.col("nth") % period)
    of_rank = complete.group_by("in_step", "rank").agg(
        pl.col("late_us").median(), pl.col("is_last").sum(), pl.len(), pl.col("host", "source", "line").last()
    )
    of_rank = of_rank.filter(pl.col("len") >= FEWEST_STEPS).sort("late_us", "rank", descending=[True, False])
    if of_rank.is_empty():
        return None, f"less than {FEWEST_STEPS} steps are shown of all {size} ranks"
    begun = complete.group_by("nth").agg(pl.col("time_us").median()).sort("nth")["time_us"].to_list()
    step_us = median(after - before for before, after in zip(begun, begun[period:], strict=False))
    row = of_rank.row(0, named=True)
    next_us = of_rank.filter(in_step=row["in_step"])["late_us"][1]
    least = max(MUCH * step_us, TIMES_NEXT * next_us, BEYOND_CLOCK * max(calls["resolution_us"].to_list()))
    is_chance = often_by_chance(row["is_last"], row["len"], 1 / size) * size > HARDLY_EVER
    if row["late_us"] < least or row["is_last"] < MOSTLY * row["len"] or is_chance:
        return None, f"none is late by a tenth of a step in most of {row['len']} steps"
    place = (row["source"], row["line"])
    return _Latest(row["rank"], row["host"], row["late_us"], step_us, row["is_last"], row["len"], place), ""
