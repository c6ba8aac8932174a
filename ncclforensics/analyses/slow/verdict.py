"""The answer on a slow job, from the explanations of all sources."""

from __future__ import annotations

from functools import partial

import polars as pl

from ncclforensics.analyses.slow.answer import SlowAnswer, SlowKind
from ncclforensics.analyses.slow.causes import cause_of, with_state_of_host
from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation, answer_of
from ncclforensics.analyses.slow.late_hosts import of_host_calls
from ncclforensics.analyses.slow.step_lines import explanations_of_step_lines
from ncclforensics.analyses.slow.step_window import FEWEST_MEMBERS
from ncclforensics.analyses.slow.sums import of_sums
from ncclforensics.analyses.slow.traces import of_traces
from ncclforensics.analyses.slow.transfers import Transfers
from ncclforensics.analyses.slow.what_if import FEWEST_STEPS, OFTEN_LAST
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.data.collectives import WAITS_FOR_ALL, collective_named
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import columns_of, text_of
from ncclforensics.frames.registry import analysis

WAITING = 0.2  # share of their time in calls that all others wait
LEAST = 0.25  # of the wait of the rank that waits least among the others


def of_inspector(ended_operation: pl.DataFrame) -> list[SlowExplanation]:
    """Return the rank that waits least by NCCL's Inspector, as the others wait for it; nothing where none stands out.

    It times calls, and nothing between them, so that it names a rank only as possible, and only in a job of one
    communicator: where groups nest, the rank with the shortest calls may have waited for the culprit in another group.
    """
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


COLLECT = (
    """traces of the same 30 steps of all ranks: \
torch.profiler.profile(record_shapes=True, schedule=torch.profiler.schedule(wait=5, warmup=2, active=30)), \
and export_chrome_trace on each rank""",
    """or the records of NCCL's Inspector: NCCL_INSPECTOR_ENABLE=1 NCCL_INSPECTOR_DUMP_VERBOSE=1 \
NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000""",
    "or the step lines of the training log, from its start on",
)


@analysis(SlowAnswer)
def slow_answer(
    verdict: pl.DataFrame,
    ranked_process: pl.DataFrame,
    call_group: pl.DataFrame,
    own_time: pl.DataFrame,
    call_rate: pl.DataFrame,
    transfer_change: pl.DataFrame,
    rank_time: pl.DataFrame,
    profiled_kernel: pl.DataFrame,
    ended_operation: pl.DataFrame,
    rank_sum: pl.DataFrame,
    host_call: pl.DataFrame,
    recorder_dump: pl.DataFrame,
    counter_increase: pl.DataFrame,
    gpu_use: pl.DataFrame,
    use_process: pl.DataFrame,
    metric_value: pl.DataFrame,
    benchmark: pl.DataFrame,
    job_step: pl.DataFrame,
    step_change: pl.DataFrame,
    step_stall: pl.DataFrame,
) -> pl.DataFrame:
    """One row: what makes the job slow, which ranks, since when, and what it costs."""
    why = partial(cause_of, times=rank_time, kernels=profiled_kernel, processes=ranked_process)
    hosts = dict(ranked_process.select("rank", "host").drop_nulls().iter_rows())
    transfers = Transfers(call_rate, transfer_change, call_group, own_time, hosts)
    explanations: list[SlowExplanation] = _standing_still(verdict) or [
        *of_traces(ranked_process, call_group, own_time, transfers, why),
        *of_inspector(ended_operation),
        *of_sums(rank_sum),
        # Traces decide what times of hosts can only suggest.
        *(of_host_calls(host_call) if ranked_process.is_empty() else []),
        *explanations_of_step_lines(job_step, step_change, step_stall, own_time),
    ]
    inputs = {
        Observation.TRACES: ranked_process,
        Observation.RECORDER: recorder_dump,
        Observation.INSPECTOR: ended_operation,
        Observation.STEP_LINES: job_step,
        Observation.COUNTERS: counter_increase,
        Observation.BENCHMARK: benchmark,
    }
    present = {kind for kind, rows in inputs.items() if not rows.is_empty()}
    explanations = [with_state_of_host(found, gpu_use, use_process, metric_value) for found in explanations]
    answer = answer_of(explanations, map(Request, COLLECT), present)
    return pl.DataFrame([answer.row()], schema=columns_of(SlowAnswer))


def _standing_still(verdict: pl.DataFrame) -> list[SlowExplanation]:
    """Return that a job stands still: then it is not slow, and `hang` answers."""
    stuck = verdict.filter(
        (pl.col("stall_evidence").list.len() > 0) & ~pl.col("verdict").is_in(["no-hang", "undecidable"])
    )
    return [
        SlowExplanation(
            SlowKind.UNDECIDABLE,
            f"the job stands still, which is no question of speed: {row['claim']}",
            (Doubt.OPEN,),
            collect=(Request("the verdict on the hang: `ncclforensics hang` with the same paths"),),
        )
        for row in stuck.head(1).to_dicts()
    ]
