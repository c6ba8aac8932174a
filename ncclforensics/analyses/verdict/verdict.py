"""Compute the verdict on every job: the fault, the culprits, the call concerned, and the lines that show it.

All sources suggest explanations, and the claims decide between them (`explain`). Other sources confirm or contradict
that one (`agreement`), and what the lines lack makes it less sure (`stall`, `omissions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import polars as pl

from ncclforensics.analyses.verdict.agreement import settle
from ncclforensics.analyses.verdict.answer import Answer, EvidenceLine, Operation, Unexplained
from ncclforensics.analyses.verdict.considered import considered, unexplained
from ncclforensics.analyses.verdict.explain import explain
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job, all_jobs
from ncclforensics.analyses.verdict.lines import omissions, stall
from ncclforensics.analyses.verdict.sources import counts, recorder, stacks
from ncclforensics.frames.columns import columns_of
from ncclforensics.frames.registry import analysis

STRUCTURES = ("evidence_lines", "considered", "unexplained")
VERDICT = {name: dtype for name, dtype in columns_of(Answer).items() if name not in STRUCTURES}


def _answers(frames: dict[str, pl.DataFrame]) -> Iterator[Answer]:
    """Yield the cheapest explanation of every job, held against all sources, with what else is to be told."""
    for job in all_jobs(frames):
        counts.compare_counts(job)
        job.stall_evidence = stall.find_stall_evidence(job)
        suggestions = explain(job)
        diagnosis = settle(job, suggestions[0])
        counts.mention_counts(job, diagnosis)
        stacks.mention_stacks(job, diagnosis)
        recorder.mention_old_dumps(job, diagnosis)
        recorder.name_dumps(job, diagnosis)
        diagnosis = omissions.doubt_omissions(job, stall.doubt_stall(job, diagnosis))
        diagnosis.suggested_by = min(diagnosis.suggested_by, suggestions[0].suggested_by)
        yield _answer(job, diagnosis, suggestions, frames["recorded_wait"])


def _answer(job: Job, diagnosis: Explanation, suggestions: list[Explanation], recorded_wait: pl.DataFrame) -> Answer:
    fatal = [event for event in job.failure_events if job.is_fatal(event)]
    of_diagnosis = {name: getattr(diagnosis, name) for name in Answer._fields if hasattr(diagnosis, name)}
    values: dict[str, Any] = of_diagnosis | {
        "job": job.number,
        "victims": _victims(job, diagnosis, recorded_wait),
        "absent": sorted({*job.absent, *diagnosis.missing}),
        "operation": Operation.of(asdict(diagnosis.call or Operation())),
        "call_ranks": _ranks_of_part(job, diagnosis.key),
        "stall_evidence": job.stall_evidence,
        "considered": considered(diagnosis, suggestions, job.rank_numbers(diagnosis.culprits)),
        "unexplained": unexplained(diagnosis, job.first_ends, fatal),
    }
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Answer(**values)


def _victims(job: Job, diagnosis: Explanation, recorded_wait: pl.DataFrame) -> list[int]:
    """Return the victims of a diagnosis: not ranks that others wait for in another communicator and that wait for none.

    A job may have a second fault, which the first one does not explain.
    """
    if not (diagnosis.culprits or diagnosis.missing):
        return diagnosis.victims
    waiters = {edge.waiter for edge in job.waits}
    recorded = recorded_wait.filter(job=job.number).filter(~pl.col("waiter").is_in(list(waiters)))
    awaited = job.awaited_ranks.union(*recorded["waits_for"].to_list())
    explained = {*waiters, *recorded["waiter"], *(row.rank_id for row in job.members.get(str(diagnosis.key), []))}
    return [rank_id for rank_id in diagnosis.victims if rank_id not in awaited - explained]


def _ranks_of_part(job: Job, key: str | None) -> tuple[int, ...] | None:
    """Return the rank numbers of a communicator that has some of the job's ranks; None unless all are known."""
    members = job.members.get(str(key), [])
    numbers = job.rank_numbers({row.rank_id for row in members})
    is_part = bool(members) and len(members) == len(numbers) == members[0].nranks < (job.nranks or 0)
    return tuple(sorted(numbers)) if is_part else None


@analysis(Answer, of=("rank",))
def job_diagnosis(
    rank: pl.DataFrame, member: pl.DataFrame, process: pl.DataFrame, call: pl.DataFrame, call_line: pl.DataFrame,
    last_call: pl.DataFrame, divergence: pl.DataFrame, call_gap: pl.DataFrame, message: pl.DataFrame,
    wait: pl.DataFrame, visibility: pl.DataFrame, failure_event: pl.DataFrame, completion_error: pl.DataFrame,
    process_exit: pl.DataFrame, milestone: pl.DataFrame, duplicate_source: pl.DataFrame, source: pl.DataFrame,
    version: pl.DataFrame, work: pl.DataFrame, early_timeout: pl.DataFrame, desync: pl.DataFrame,
    ras_snapshot: pl.DataFrame, ras_state: pl.DataFrame, ras_member: pl.DataFrame, counted_call: pl.DataFrame,
    job_end: pl.DataFrame, journal_exit: pl.DataFrame, torch_error: pl.DataFrame, torch_source: pl.DataFrame,
    monitored_barrier: pl.DataFrame, model_difference: pl.DataFrame, store_error: pl.DataFrame,
    fingerprint: pl.DataFrame, announced_position: pl.DataFrame, watchdog: pl.DataFrame, elastic_failure: pl.DataFrame,
    last_time: pl.DataFrame, group_note: pl.DataFrame, reported_success: pl.DataFrame, program_failure: pl.DataFrame,
    rank_stack: pl.DataFrame, unranked_stack: pl.DataFrame, recorder_file: pl.DataFrame, recorded_rank: pl.DataFrame,
    recorded_position: pl.DataFrame, recorded_call: pl.DataFrame, omission: pl.DataFrame, line_fault: pl.DataFrame,
    unplaced_member: pl.DataFrame, counter_jump: pl.DataFrame, unfinished_setup: pl.DataFrame, ring: pl.DataFrame,
    tree: pl.DataFrame, connection: pl.DataFrame, recorded_wait: pl.DataFrame, branch: pl.DataFrame,
) -> pl.DataFrame:  # fmt: skip
    """One row per job: its verdict with the evidence lines."""
    return pl.DataFrame([answer.row() for answer in _answers(locals())], schema=columns_of(Answer))


@analysis(VERDICT, of=("job_diagnosis",))
def verdict(job_diagnosis: pl.DataFrame) -> pl.DataFrame:
    """One row per job: verdict, certainty, culprits, victims, the call concerned, and the reason."""
    return job_diagnosis


@analysis({"job": pl.Int32(), **columns_of(EvidenceLine)}, of=("job_diagnosis",))
def verdict_evidence(job_diagnosis: pl.DataFrame) -> pl.DataFrame:
    """The lines that prove each verdict, the strongest first."""
    return job_diagnosis.select("job", "evidence_lines").explode("evidence_lines").drop_nulls().unnest("evidence_lines")


@analysis({"job": pl.Int32(), **columns_of(Unexplained)}, of=("job_diagnosis",))
def unexplained_failure(job_diagnosis: pl.DataFrame) -> pl.DataFrame:
    """The failures of each job that its verdict does not explain."""
    return job_diagnosis.select("job", "unexplained").explode("unexplained").drop_nulls().unnest("unexplained")
