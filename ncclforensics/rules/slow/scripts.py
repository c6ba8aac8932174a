"""Rules on the output of scripts that guides hand out: what their figures mean, and whom they accuse wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

FEWEST_RANKS = 3
HARDLY = 0.5  # of the median wait: a rank that waits less came last
LEAST_WAIT_MS = 1.0  # median of the ranks; less is no waiting
BITS = 8


@rule(Category.STRAGGLER, Severity.INFO, of=("script_wait",))
def script_accuses_the_waiting_rank(script_wait: pl.DataFrame) -> Iterator[Finding]:
    """A script calls the rank slow that spends most time in a collective; that rank came first and waited longest.

    Means: all ranks leave an AllReduce or a barrier together, so the one that spends least time in it came last, and
    the others waited for it. The rank that the script names is a victim.
    Not when: the script times the work between collectives, and not the collective.
    Do: look at the rank with the shortest time. Where the script prints only the longest, print all ranks.
    Sources: definition of a barrier; measured on 8 GPUs: calls begin up to 7.6 ms apart and end within 7 µs.
    """
    longest = script_wait.filter(pl.col("form").cast(pl.String) == "longest")
    if longest.height:
        ranks = sorted(set(longest["rank"].drop_nulls().to_list()))
        yield Finding(
            f"the script accuses {ranks_text(ranks)}, which waited longest: the slow rank is another one",
            "a rank spends the more time in a collective the earlier it comes",
            "likely",
            role=Role.CONTEXT,
            evidence=evidence_lines(longest.head(2)),
        )
    waits = script_wait.filter(pl.col("barrier_ms").is_not_null() & pl.col("rank").is_not_null())
    by_rank = waits.group_by("rank").agg(pl.col("barrier_ms").median(), pl.len()).sort("barrier_ms", "rank")
    usual = by_rank["barrier_ms"].median()
    if by_rank.height < FEWEST_RANKS or not isinstance(usual, float) or usual < LEAST_WAIT_MS:
        return
    last = by_rank.filter(pl.col("barrier_ms") < HARDLY * usual)["rank"].to_list()
    if len(last) != 1:
        return
    own = waits.filter(pl.col("rank") == last[0]).row(0, named=True)
    most = waits.sort("barrier_ms").row(-1, named=True)
    yield Finding(
        f"rank {last[0]} waits {own['barrier_ms']:.1f} ms in the barrier, the others {usual:.1f} ms: it comes last",
        f"rank {most['rank']}, which waits longest, comes first; `bus_bw` of such a script holds the waiting, too",
        "possible",
        severity=Severity.WARNING,
        ranks=last,
        evidence=[Line(own["source"], own["line"], "comes last"), Line(most["source"], most["line"], "waits longest")],
    )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("gpu_test",), role=Role.CONTEXT)
def gpu_test_names_broken_gpus(gpu_test: pl.DataFrame) -> Iterator[Finding]:
    """The test of all GPUs calls some broken; each of these may only have waited for another.

    Means: the test makes an AllReduce and a barrier. Where one GPU does not take part, those that wait for it fail,
    too, and print that they are broken. A rank that printed nothing at all is the first to look at.
    Not when: all ranks are OK.
    Do: look for ranks that printed neither, and for the first error in the logs of those that are called broken.
    Sources: ml-engineering, debug/torch-distributed-gpu-test.py.
    """
    form = pl.col("form").cast(pl.String)
    broken, sound = gpu_test.filter(form == "broken"), gpu_test.filter(form == "sound")
    if broken.is_empty():
        return
    names = sorted(broken["tested"].cast(pl.String).drop_nulls().unique())
    world = max(sound["ranks_of_run"].drop_nulls().to_list(), default=0)
    silent = max(world - sound["rank"].n_unique() - len(names), 0)
    missing = f"{silent} of {world} printed neither OK nor broken: look at these first" if silent else ""
    yield Finding(
        f"the test calls {some_of(names, 4)} broken, which may only have waited for others",
        missing or "a GPU that waits for another one prints the same",
        "possible",
        evidence=evidence_lines(broken.head(2)),
    )


@rule(Category.BENCHMARK_SLOW, Severity.INFO, of=("script_bandwidth",), role=Role.CONTEXT)
def script_prints_bits(script_bandwidth: pl.DataFrame) -> Iterator[Finding]:
    """A benchmark script prints its bandwidth in bits per second, which other tools print in bytes.

    Means: `Gbps` of the older all_reduce_bench.py and of all_reduce_latency_comp.py is 10⁹ bits per second: an eighth
    of that is comparable with the busbw of nccl-tests and with the rate of a link in GB/s.
    Not when: the figure has its bytes beside it, or the script prints a table in GBps.
    Do: divide by eight before you compare. For a judgement run nccl-tests, whose tables `ncclforensics check` judges.
    Sources: ml-engineering, network/benchmarks/all_reduce_bench.py of 2/2023 and all_reduce_latency_comp.py.
    """
    bits = pl.coalesce("busbw_gbits", "algbw_gbits")
    rows = script_bandwidth.filter(bits.is_not_null())
    if rows.is_empty():
        return
    best = rows.sort(bits).row(-1, named=True)
    figure = best["busbw_gbits"] if best["busbw_gbits"] is not None else best["algbw_gbits"]
    yield Finding(
        f"the script prints bits: {figure:,.1f} Gbps are {figure / BITS:,.1f} GB/s",
        "",
        "certain",
        evidence=[Line(best["source"], best["line"])],
    )
