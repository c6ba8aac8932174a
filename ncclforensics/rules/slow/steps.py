"""Rules on step lines: since when steps are slower, which of them stall, and time that no step accounts for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.slow.change_points import MIN_RECORDS
from ncclforensics.analyses.slow.step_lines import STALL_SHARE, hours_lost, ordinal, rate, time_text
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule

MUCH = 1.10  # times as long: a warning; less is a note
HIDDEN_SHARE = 0.05  # of the time between step lines
MANY_GAPS = 3
VERY_LONG = 10.0  # times as long as the other steps
EXPLAINED = {
    "batch": "the batch size changed there",
    "sequence": "the length of sequences changed there",
    "restart": "the job began anew there: its hosts or its configuration may be others",
}


@rule(Category.STRAGGLER, Severity.WARNING, of=("step_change",))
def steps_slower_since(step_change: pl.DataFrame) -> Iterator[Finding]:
    """Since a step the job is slower than before, and stays so.

    Means: from that step on all steps take longer, by the same factor. One slow rank, host or link is enough, as all
    others wait for it; the lines of one rank do not show which one it is.
    Not when: the batch, the sequences or the configuration changed at that step (then it is a note, and says so); steps
    vary as much anyway; the first steps were slow and later ones are not (warm-up); only a few steps are slow.
    Do: look at what happened at that time: kernel logs, counters and clocks of the hosts, other jobs, a changed
    configuration. While it is slow, record 30 steps with torch.profiler on all ranks, and run `ncclforensics slow`.
    Sources: 497 step series of published MLPerf runs, in none of which an eighth of the steps takes 5 % longer;
    GREYHOUND (ATC 2025): a change point counts if the means differ by more than 10 %.
    """
    for row in step_change.to_dicts():
        reason = EXPLAINED.get(row["explained_by"] or "")
        hours = hours_lost(row)
        details = [
            f"{rate(row['pace_before'], row['unit'])} before, {rate(row['pace'], row['unit'])} since",
            f"{hours:,.1f} GPU-hours lost so far" if hours is not None else "",
            reason or "",
            f"judged by {row['records_before']:,} lines before and {row['records']:,} since",
        ]
        title = f"since step {row['since_step']:,} steps take {row['ratio']:.3g} times as long"
        if row["has_ended"]:
            title = f"steps {row['since_step']:,} to {row['until_step']:,} took {row['ratio']:.3g} times as long"
        if at := time_text(row["time"]):
            title += f" ({at})"
        is_sure = row["is_sharp"] and min(row["records"], row["records_before"]) >= MIN_RECORDS
        yield Finding(
            title,
            "; ".join(filter(None, details)),
            "likely" if is_sure else "possible",
            severity=Severity.INFO if reason or row["ratio"] < MUCH or row["has_ended"] else Severity.WARNING,
            evidence=[
                Line(row["source"], row["line_before"], "before"),
                Line(row["source"], row["line"], "the first slow one"),
                Line(row["last_source"], row["last_line"], "the last slow one"),
            ],
        )


@rule(Category.STRAGGLER, Severity.INFO, of=("step_stall",))
def steps_stall(step_stall: pl.DataFrame) -> Iterator[Finding]:
    """Some steps take much longer than the others: at equal distances, or again and again for ten times as long.

    Means: at equal distances, something happens every so many steps: a checkpoint, an evaluation, garbage collection, a
    data loader that begins anew, logging. Irregular ones of ten times the length are how lost packets look, which RDMA
    sends again after a time-out.
    Not when: they cost less than 2 % of the time; there are fewer than three; a third of all steps is long.
    Do: compare the distance with the intervals of the configuration (save, evaluation, logging, workers of the data
    loader). For irregular ones compare discards and out-of-sequence counters of the NICs before and after a minute.
    Sources: RoCE without flow control: steps of 10 to 100 times the median; Megatron-LM and torchtitan collect garbage
    on all ranks at the same step for this reason.
    """
    for row in step_stall.filter(pl.col("share") >= STALL_SHARE).to_dicts():
        if row["period"] is None and row["ratio"] < VERY_LONG:
            continue
        every = f"every {ordinal(row['period'])} step takes" if row["period"] else f"{row['stalls']} steps took"
        share = f"{row['share']:.0%} of the time".replace("%", " %")
        event = f"each behind a line about a {row['explained_by']}" if row["explained_by"] else ""
        yield Finding(
            f"{every} {row['ratio']:.2g} times as long as the others: {share}",
            event or f"{row['stalls']} long steps from step {row['first_step']:,} to {row['last_step']:,}",
            "likely" if row["period"] else "possible",
            evidence=_ends(row),
        )


@rule(Category.STRAGGLER, Severity.INFO, of=("time_outside_steps",))
def time_between_steps(time_outside_steps: pl.DataFrame) -> Iterator[Finding]:
    """More time passes between step lines than the steps took.

    Means: checkpoints, evaluation or input take this time; frameworks such as Megatron-LM stop the clock of a step for
    them, so that neither the length of steps nor tokens per second show it.
    Not when: it happens once or twice, as at the start or at a restart; it is less than 5 % of the time; the lines have
    no time, or their steps no length.
    Do: write checkpoints asynchronously or more rarely, evaluate more rarely, look at the file system.
    Sources: Megatron-LM, megatron/training/training.py: `interval-time` is stopped around evaluation and saving.
    """
    often = time_outside_steps.filter((pl.col("gaps") >= MANY_GAPS) & (pl.col("share") >= HIDDEN_SHARE))
    for row in often.to_dicts():
        share = f"{row['share']:.0%} of the time".replace("%", " %")
        event = f"; at most of these places stands a line about a {row['explained_by']}" if row["explained_by"] else ""
        yield Finding(
            f"{share} passes between steps, at {row['gaps']} places",
            f"{row['seconds']:,.0f} s in all, {row['longest']:,.1f} s at the longest{event}",
            "likely",
            evidence=[Line(row["source"], row["line_before"], "before"), Line(row["source"], row["line"], "after it")],
        )


def _ends(row: dict[str, Any]) -> list[Line]:
    return [
        Line(row["source"], row["line"], "the first long one"),
        Line(row["last_source"], row["last_line"], "the last long one"),
    ]
