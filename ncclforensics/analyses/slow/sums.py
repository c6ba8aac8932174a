"""What sums of calls say of a slow job: which rank was least in its calls, because the others wait for it in theirs.

The rank that was longest in calls waits longest; it is never the culprit for that. Sums have no order and no groups, so
that they name a rank as possible at most, and only where all ranks made the same calls.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.data.names import ranks_text

WAITING = 0.2  # share of their time in calls that all others wait
ALIKE = 0.5  # of what the others wait in the median: the one that waits least of them waits as long
MUCH = 0.15  # of the profile, that all others wait: real jobs with uneven work reach 0.10
MESSAGES = 0.05  # of the time in calls, in which ranks wait for one other: behind more, sums of collectives say little
TRACES = Request("traces of torch.profiler of all ranks, which show each call and each step", Observation.TRACES)


def of_sums(rank_sum: pl.DataFrame) -> list[SlowExplanation]:
    """Return the rank that was least in calls; that none stands out, where tables of several ranks are there."""
    if rank_sum.is_empty():
        return []
    reason = _reason_against(rank_sum)
    if not reason and (named := _awaited(rank_sum)):
        return [named]
    extremes = rank_sum["collective_us"].sort() / 1e6
    return [
        SlowExplanation(
            SlowKind.UNDECIDABLE,
            reason
            or f"{rank_sum.height} ranks were in calls for {extremes[0]:.3g} to {extremes[-1]:.3g} s in all: "
            "these sums name no rank",
            (Doubt.OPEN,),
            collect=(TRACES,),
        )
    ]


def _reason_against(sums: pl.DataFrame) -> str:
    """Why these sums cannot be compared; empty where they can."""
    ranks = sums["rank"].to_list()
    missing = set(range(max(ranks))) - set(ranks)
    if missing:
        return f"there is no table of {ranks_text(sorted(missing))}, for which the others may wait"
    if sums["calls"].n_unique() > 1:
        return "ranks made different calls, so that how long they were in them does not show who waits for whom"
    messages = sums.select(
        pl.col("other_calls_us").sum() / pl.sum_horizontal(pl.col("other_calls_us", "collective_us").sum())
    )
    if messages.item() > MESSAGES:
        return "ranks send messages, in which each waits for one other: sums do not show for which"
    return ""


def _awaited(sums: pl.DataFrame) -> SlowExplanation | None:
    """Return the rank for which all others wait, if they do so for long, and about equally."""
    least, *others = sums.sort("collective_us", "rank").rows(named=True)
    waits = [row["collective_us"] - least["collective_us"] for row in others]
    walls = [row["wall_us"] or row["collective_us"] + (row["own_us"] or 0.0) for row in others]
    is_awaited = all(wait >= WAITING * row["collective_us"] for wait, row in zip(waits, others, strict=True))
    is_much = all(wait >= MUCH * wall for wait, wall in zip(waits, walls, strict=True))
    if not is_awaited or not is_much or waits[0] < ALIKE * waits[len(waits) // 2]:
        return None
    where = f" on {least['host']}" if least["host"] else ""
    owns = sorted(row["own_us"] for row in others if row["own_us"] is not None)
    details = [
        f"all others are at least {waits[0] / 1e6:.3g} s longer in as many calls, which is the most to gain",
        "sums do not tell one long wait from many short ones",
    ]
    if least["own_us"] is not None and owns:
        usual = owns[len(owns) // 2]
        own = f"outside of calls it works {least['own_us'] / 1e6:.3g} s"
        details.append(f"{own}, the others {usual / 1e6:.3g} s (median)")
    return SlowExplanation(
        SlowKind.RANK,
        f"{ranks_text([least['rank']])}{where} is least in calls, {least['collective_us'] / 1e6:.3g} s in all: "
        f"the other {len(others)} wait for it in theirs",
        (Doubt.ONLY_CALLS_TIMED,),
        details=tuple(details),
        ranks=(least["rank"],),
        hosts=(least["host"],) if least["host"] else (),
        collect=(TRACES,),
        evidence=((least["source"], least["line"]), (others[-1]["source"], others[-1]["line"])),
    )
