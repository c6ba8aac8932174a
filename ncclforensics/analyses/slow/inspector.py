"""What NCCL's Inspector says of a slow job: which rank spends least time in calls, because the others wait for it.

It times calls, and nothing between them, so that it names a rank only as possible, and only in a job of one
communicator: where groups nest, the rank with the shortest calls may have waited for the culprit in another group.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation
from ncclforensics.analyses.slow.step_window import FEWEST_MEMBERS
from ncclforensics.analyses.slow.what_if import FEWEST_STEPS, OFTEN_LAST
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.data.collectives import WAITS_FOR_ALL, collective_named
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import text_of

WAITING = 0.2  # share of their time in calls that all others wait
LEAST = 0.25  # of the wait of the rank that waits least among the others


def of_inspector(ended_operation: pl.DataFrame) -> list[SlowExplanation]:
    """Return the rank that waits least of a job of one communicator; nothing where none stands out."""
    timed = ended_operation.filter(text_of("form") == "collective").select(
        "source",
        "rank",
        "nranks",
        "sequence",
        "microseconds",
        host=text_of("node"),
        key=text_of("commhash"),
        operation=text_of("operation").map_elements(collective_named, return_dtype=pl.String),
    )
    timed = timed.filter(pl.col("operation").is_in(WAITS_FOR_ALL) & (pl.col("nranks") > 1)).drop_nulls("microseconds")
    if timed["key"].n_unique() != 1 or timed["nranks"].n_unique() != 1:
        return []
    calls = timed.unique(["rank", "sequence"]).filter(pl.len().over("sequence") == pl.col("nranks"))
    if int(timed["nranks"][0]) < FEWEST_MEMBERS or calls["sequence"].n_unique() < FEWEST_STEPS:
        return []
    shortest = pl.col("microseconds").min().over("sequence")
    waits = calls.with_columns(wait=pl.col("microseconds") - shortest, is_last=pl.col("microseconds") == shortest)
    of_rank = waits.group_by("rank").agg(
        pl.col("wait", "microseconds").sum(), pl.col("is_last").mean(), pl.col("source", "host").first()
    )
    least, *others = of_rank.sort("wait", "rank").rows(named=True)
    is_awaited = all(row["wait"] >= WAITING * row["microseconds"] for row in others)
    if not is_awaited or least["wait"] > LEAST * others[0]["wait"] or least["is_last"] < OFTEN_LAST:
        return []
    count = calls["sequence"].n_unique()
    return [
        SlowExplanation(
            SlowKind.RANK,
            f"{ranks_text([least['rank']])} on {least['host']} has the shortest of {count} calls in "
            f"{least['is_last']:.0%} of them: the other {len(others)} wait for it",
            (Doubt.ONLY_CALLS_TIMED,),
            details=(f"all others wait at least {others[0]['wait'] / 1e6:.3g} s in these calls, the most to gain",),
            ranks=(least["rank"],),
            hosts=(least["host"],),
            collect=(
                Request(
                    "traces of torch.profiler of all ranks, which show what each does between its calls",
                    Observation.TRACES,
                ),
            ),
            evidence=((least["source"], 1),),
        )
    ]
