"""Rules on timers of training programs, which compare ranks: what they show, and whom they only seem to name."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

# Timers of Megatron-LM that hold no waiting for all ranks; others end together on all of them.
OWN_TIMERS = ("forward-compute", "backward-compute", "batch-generator")
FEWEST_REPORTS = 3
MOSTLY = 0.75  # of the reports
LONGER = 1.10  # times the median of the ranks
APART = 1.25  # times the shortest of the ranks
SLOWER = 0.95  # of the rate of the fastest rank
LOW_SCORE = 0.75  # NVRx's own limits are 0.75 (library) and 0.7 (callback)
MOST_NAMED = 3  # ranks


@rule(Category.STRAGGLER, Severity.INFO, of=("rank_timer",))
def rank_timer_stands_out(rank_timer: pl.DataFrame) -> Iterator[Finding]:
    """A timer of Megatron-LM that holds no waiting for all ranks is longer on some rank.

    Means: that rank computes longer, or its input comes later, and the others wait for it in the next collective.
    Timers that contain a collective of all ranks are equal on all of them, and hide it.
    Not when: the rank is the first or last of a pipeline, which has other layers; its tensor-parallel group shares a
    slow rank, so that all of them are longer; it happens in fewer than three quarters of the reports.
    Do: with `--timing-log-option all` every rank is printed; then compare clocks and temperatures of that host.
    Sources: Megatron-LM, megatron/core/timers.py: `minmax` names no rank, `all` prints all of them.
    """
    own = rank_timer.filter(pl.col("timer").is_in(OWN_TIMERS))
    for (timer,), rows in own.group_by("timer", maintain_order=True):
        named, spreads = rows.filter(pl.col("rank").is_not_null()), rows.filter(pl.col("rank").is_null())
        yield from _longest_rank(str(timer), named)
        wide = spreads.filter(pl.col("highest_ms") >= APART * pl.col("lowest_ms"))
        if wide.height >= max(FEWEST_REPORTS, MOSTLY * spreads.height):
            ratio = wide.select((pl.col("highest_ms") / pl.col("lowest_ms")).median()).item()
            worst = wide.sort("highest_ms").row(-1, named=True)
            yield Finding(
                f"{timer} takes {ratio:.2g} times as long on the slowest rank as on the fastest",
                f"in {wide.height} of {spreads.height} reports; which rank that is, they do not print",
                "possible",
                role=Role.CONTEXT,
                evidence=[Line(worst["source"], worst["line"])],
            )


def _longest_rank(timer: str, rows: pl.DataFrame) -> Iterator[Finding]:
    """Yield the rank that is the longest in most reports, and longer than the median by LONGER."""
    reports = rows["report"].n_unique()
    if reports < FEWEST_REPORTS or rows["rank"].n_unique() < FEWEST_REPORTS:
        return
    by_rank = rows.group_by("rank").agg(pl.col("highest_ms").median()).sort("highest_ms", "rank")
    slowest, usual = by_rank.row(-1, named=True), by_rank.select(pl.col("highest_ms").median()).item()
    is_longest = pl.col("highest_ms") == pl.col("highest_ms").max().over("source", "report")
    times = rows.filter(is_longest & (pl.col("rank") == slowest["rank"]))
    if slowest["highest_ms"] >= LONGER * usual and times.height >= MOSTLY * reports:
        worst = times.sort("highest_ms").row(-1, named=True)
        yield Finding(
            f"{timer} takes {slowest['highest_ms']:,.1f} ms on rank {slowest['rank']}, {usual:,.1f} ms on others",
            f"it is the longest in {times.height} of {reports} reports",
            "possible",
            severity=Severity.WARNING,
            ranks=[slowest["rank"]],
            evidence=[Line(worst["source"], worst["line"])],
        )


@rule(Category.STRAGGLER, Severity.INFO, of=("straggler_report",))
def straggler_detector_names_a_rank(straggler_report: pl.DataFrame) -> Iterator[Finding]:
    """Megatron-LM's StragglerDetector names the same slowest rank again and again.

    Means: that rank reaches fewer TFLOP/s than the fastest in most reports, by 5 % or more.
    Not when: another rank is named each time, or the rates differ by less: the detector always names an extreme, also
    of ranks that are equally fast.
    Do: compare clocks, power and temperature of that rank's GPU with others; its power is printed in mW, labelled W.
    Sources: Megatron-LM, megatron/core/README_STRAGGLER.md, megatron/core/utils.py.
    """
    slow = straggler_report.filter(pl.col("lowest_tflops") <= SLOWER * pl.col("highest_tflops"))
    if straggler_report.height < FEWEST_REPORTS or slow.is_empty():
        return
    counted = slow.group_by("lowest_tflops_rank").len().sort("len", "lowest_tflops_rank").row(-1, named=True)
    if counted["len"] < MOSTLY * straggler_report.height:
        return
    rank = counted["lowest_tflops_rank"]
    own = slow.filter(pl.col("lowest_tflops_rank") == rank)
    worst = own.sort("lowest_tflops").row(0, named=True)
    yield Finding(
        f"rank {rank} is the slowest in {own.height} of {straggler_report.height} reports of the straggler detector",
        f"{worst['lowest_tflops']:.1f} TFLOP/s, where the fastest reaches {worst['highest_tflops']:.1f}",
        "possible",
        severity=Severity.WARNING,
        ranks=[rank],
        evidence=[Line(row["source"], row["line"]) for row in own.head(2).to_dicts()],
    )


@rule(Category.STRAGGLER, Severity.WARNING, of=("nvrx_report",))
def nvrx_names_a_slow_gpu(nvrx_report: pl.DataFrame) -> Iterator[Finding]:
    """NVIDIA's resiliency extension (NVRx) scores a rank below its limit: its kernels take longer.

    Means: the same kernels take at least a third longer on that GPU than on the fastest, or than before. Waiting is
    not in the score, so the rank is no victim; that others wait for it is not shown.
    Not when: ranks have unequal work, such as other experts, sequences or stages: then kernels of one name differ.
    Do: compare clocks, power and temperature of that GPU with others; take profiler traces of 20 steps of all ranks.
    Sources: nvidia-resiliency-ext, straggler_det_callback.py and straggler/reporting.py.
    """
    rows = nvrx_report.with_columns(text_of("form"), text_of("node"))
    low = rows.filter((pl.col("score") < LOW_SCORE) | pl.col("form").is_in(["slower", "dropped"]))
    by_rank = low.group_by("rank", maintain_order=True).agg(pl.col("node", "form").first(), pl.col("score").min())
    for row in by_rank.sort("score", nulls_last=True).head(MOST_NAMED).to_dicts():
        own = low.filter(rank=row["rank"])
        scored = f"it scores {row['score']:.2f} of 1" if row["score"] is not None else "no score is printed"
        dropped = "its kernels take longer than before" if row["form"] == "dropped" else "its kernels take longer"
        yield Finding(
            f"NVRx names rank {row['rank']} on {row['node']}: {dropped}",
            scored,
            "possible",
            ranks=[row["rank"]],
            hosts=[row["node"]],
            evidence=evidence_lines(own.head(2)),
        )
