"""Compute the verdict on every job: the fault, the culprits, the call concerned, and the lines that show it.

Every source suggests faults by the claims of failure that it makes. The answer is the fault that leaves the fewest
claims unexplained: that which suggests itself by the claim that nothing else explains (`Claim`). Other sources confirm
or contradict that one (`agreement`), and what the lines lack makes it less sure (`stall`, `omissions`). Beside it are
told rivals, with what they would have to assume, and failures that it does not explain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import (
    EXCEPTION,
    GPU_ERROR,
    GPU_MEMORY,
    HOST_MEMORY,
    NODE,
    ProcessExit,
    end_text,
)
from ncclforensics.analyses.job.ends.failure_events import HARD, FailureEvent
from ncclforensics.analyses.verdict import agreement
from ncclforensics.analyses.verdict.answer import Answer, Considered, EvidenceLine, Operation, Unexplained
from ncclforensics.analyses.verdict.doubts import Cost
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job, all_jobs
from ncclforensics.analyses.verdict.lines import (
    failures,
    init,
    mismatch,
    no_hang,
    omissions,
    ranks_without_log,
    refused_init,
    stall,
    waiting,
)
from ncclforensics.analyses.verdict.sources import (
    counts,
    ras_evidence,
    recorder,
    stacks,
    torch_reports,
    torch_store,
    torch_text,
)
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.vocabulary import Claim, How, Kind, Source
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import columns_of
from ncclforensics.frames.registry import analysis

Suggest = Callable[[Job], Explanation | None]


def explain(job: Job) -> list[Explanation]:
    """Return all explanations that the sources suggest, the cheapest first; there is always one.

    A source that may be of another run than NCCL's lines suggests none by itself.
    """
    found = []
    for claim, source, suggest in SUGGESTIONS:
        if source not in job.doubts and (explanation := suggest(job)) is not None:
            explanation.suggested_by, explanation.source = claim, source
            found.append(explanation)
    return sorted(found, key=lambda explanation: explanation.suggested_by)


def _find_in_doubtful_sources(job: Job) -> Explanation | None:
    """Find what dumps and watchdogs show that may be of another run, unless the network failed by NCCL's lines."""
    if failures.find_transport_failure(job):
        return None
    by_dumps, by_watchdogs = (
        counts.as_possibility(job, find(job), source) if source in job.doubts else None
        for source, find in ((Source.DUMPS, agreement.find_recorded_roots), (Source.WATCHDOGS, pytorch.find_desync))
    )
    return by_dumps or by_watchdogs


def _find_recorded_open(job: Job) -> Explanation | None:
    found = (find(job) for find in (torch_text.find_unrecorded_difference, *recorder.OPEN_QUESTIONS))
    return next((explanation for explanation in found if explanation is not None), None)


def _find_nothing(job: Job) -> Explanation:
    if not job.is_text_only:
        return no_hang.conclude_no_hang(job)
    return stacks.describe_one(job) or torch_text.describe_end(job)


# In no particular order: the claim decides. The source does not contradict the explanation by itself.
SUGGESTIONS: tuple[tuple[Claim, Source | None, Suggest], ...] = (
    (Claim.REFUSED, Source.LINES, refused_init.find_refused_init),
    (Claim.FAULT_IN_INIT, Source.LINES, init.find_failed_init),
    (Claim.INIT_UNFINISHED, Source.LINES, init.find_unfinished_init),
    (Claim.CALLS_DIFFER, Source.LINES, mismatch.find_divergent_calls),
    (Claim.LINES_DIFFER, Source.LINES, mismatch.find_lost_calls),
    (Claim.CALL_LACKING, Source.LINES, mismatch.find_skipped_or_lost_call),
    (Claim.CALL_MISSING, Source.LINES, mismatch.find_by_lines),
    (Claim.LOST, Source.LINES, waiting.find_lost_process),
    (Claim.TRANSPORT_FAILED, Source.LINES, failures.find_transport_failure),
    (Claim.ENDED, Source.EXITS, agreement.find_ended),
    (Claim.RECORDED_DIFFERENCE, Source.DUMPS, recorder.find_recorded_mismatch),
    (Claim.RECORDED_WAIT, Source.DUMPS, agreement.find_recorded_roots),
    (Claim.RECORDED_OPEN, Source.DUMPS, _find_recorded_open),
    (Claim.ALL_OVER, None, recorder.find_nothing_open),
    (Claim.COUNTED_WAIT, Source.WATCHDOGS, pytorch.find_desync),
    (Claim.TIMED_OUT, None, pytorch.find_watchdog_timeout),
    (Claim.OF_ANOTHER_RUN, None, _find_in_doubtful_sources),
    (Claim.CALLS_COMPARED, None, torch_reports.find_compared_calls),
    (Claim.ABSENT_AT_BARRIER, None, torch_text.find_absent_at_barrier),
    (Claim.ABSENT_FROM_STORE, None, torch_store.find_missing_clients),
    (Claim.CALLS_FAILED, None, torch_text.find_failed_calls),
    (Claim.STORE_FAILED, None, torch_store.find_rendezvous),
    (Claim.REPORTS_DIFFER, Source.REPORTS, ras_evidence.judge_ras_reports_alone),
    (Claim.SUCCESS, None, no_hang.find_reported_success),
    (Claim.NO_CALLS, None, no_hang.find_missing_call_lines),
    (Claim.RETURNED, None, no_hang.find_returned_error),
    (Claim.LOG_ABSENT, None, ranks_without_log.find_missing_logs),
    (Claim.QUIET, None, _find_nothing),
)

MOST_LINES = 2
OF_CULPRITS = ("culprit", "minority", "failure", "waiting")  # labels of lines that rivals do not explain
WITHOUT_FAULT = Claim.SUCCESS  # from here on claims show no failure
NOT_RIVALS = (Kind.UNDECIDABLE, Kind.NO_HANG)
# Ends that do not follow from a rank that stands still, a call that differs or a connection that is lost.
OF_ITSELF = (HOST_MEMORY, NODE, GPU_MEMORY, GPU_ERROR, EXCEPTION)
MOST = 16  # of each kind; the findings name the others
# NCCL raises the reason of a refused init, and PyTorch that of a comparison, as exceptions on all ranks.
RAISED_ON_ALL = (Kind.INIT_FAILED, Kind.INIT_INCOMPLETE, Kind.RANK_MISSING)

# The first fault does not explain what shows the second; `{ranks}` are those that the second is about.
CANNOT = {
    (Kind.STUCK_TOGETHER, Kind.LAGGING): "would stop ranks in a call that all of them made, which {ranks} did not",
    (Kind.STUCK_TOGETHER, Kind.UNMATCHED): "would stop a message that both sides posted, which {ranks} did not",
    (Kind.STUCK_TOGETHER, Kind.MISMATCH): "does not change which calls {ranks} made",
    (Kind.STUCK_TOGETHER, Kind.DEADLOCK): "does not change the order in which {ranks} made calls",
    (Kind.LAGGING, Kind.STUCK_TOGETHER): "would lack the call that all ranks made",
}


def considered(answer: Explanation, suggestions: Iterable[Explanation], numbers: list[int]) -> tuple[Considered, ...]:
    """Return the answer and its rivals, the cheapest first.

    `suggestions`: all explanations that the sources suggested. `numbers`: rank numbers of the answer's culprits.
    """
    own = Considered(
        answer.verdict, tuple(answer.culprits), tuple(answer.missing), cost="", against=answer.claim,
        lines=tuple(answer.evidence_lines[:MOST_LINES]), is_answer=True,
    )  # fmt: skip
    rivals = [*_by_doubts(answer), *_by_suggestions(answer, suggestions), *_by_axioms(answer, numbers)]
    of_fault: dict[tuple[Kind, tuple[int, ...], tuple[str, ...]], Considered] = {}
    for rival in rivals:
        of_fault.setdefault((rival.fault, rival.culprits, rival.assumes), rival)
    return (own, *of_fault.values())


def _by_doubts(answer: Explanation) -> Iterator[Considered]:
    """Yield the worlds in which the evidence for the answer is false, the most frequent first."""
    if answer.verdict is Kind.UNDECIDABLE:
        for other in answer.between:
            cost = Cost.ORDINARY.name.lower()
            yield Considered(other.verdict, tuple(other.culprits), cost=cost, assumes=(other.assumes,))
        return
    for doubt in sorted(answer.doubts, key=lambda doubt: doubt.cost):
        rarity = Cost(min(doubt.cost + answer.confirmations, Cost.UNUSUAL))
        yield Considered(doubt.rival, cost=rarity.name.lower(), assumes=(doubt.assumes,))


def _by_suggestions(answer: Explanation, suggestions: Iterable[Explanation]) -> Iterator[Considered]:
    """Yield what other claims suggest, on other ranks: it does not explain the claim that suggests the answer."""
    lines, own = _of_culprits(answer, MOST_LINES), set(answer.culprits)
    for other in suggestions:
        is_rival = other.verdict not in NOT_RIVALS and other.suggested_by < WITHOUT_FAULT
        named = set(other.culprits)
        is_same = other.verdict == answer.verdict and (not named or own <= named)
        if not is_rival or is_same or (named and named <= own):
            continue
        if other.suggested_by > answer.suggested_by:
            against = f"leaves unexplained that {answer.suggested_by.text}"
            yield Considered(other.verdict, tuple(other.culprits), tuple(other.missing), against=against, lines=lines)


def _by_axioms(answer: Explanation, numbers: list[int]) -> Iterator[Considered]:
    """Yield the kinds of faults that cannot show what was seen."""
    ranks = ranks_text(numbers) or "a rank"
    lines = _of_culprits(answer, 1)
    possible = {doubt.rival for doubt in answer.doubts}
    for fault in Kind:
        if fault in possible:
            continue
        if (text := CANNOT.get((fault, answer.verdict))) and answer.suggested_by < WITHOUT_FAULT and lines:
            yield Considered(fault, against=text.format(ranks=ranks), lines=lines)


def _of_culprits(answer: Explanation, most: int) -> tuple[EvidenceLine, ...]:
    """Return the first lines which show what rivals do not explain."""
    return tuple(line for line in answer.evidence_lines if line.what in OF_CULPRITS)[:most]


def unexplained(
    answer: Explanation, ends: Mapping[int, ProcessExit], fatal: Iterable[FailureEvent]
) -> tuple[Unexplained, ...]:
    """Return the failures of ranks that are no culprits and that nothing of the answer brings about.

    `ends`: of processes that ended by themselves, by rank; `fatal`: rows of `failure_event` behind the last call.
    """
    if answer.verdict in NOT_RIVALS:
        return ()
    found = [*_exits(answer, ends), *_faults(answer, fatal)]
    of_ranks = {failure.rank_id: failure for failure in reversed(found)}
    return tuple(sorted(of_ranks.values(), key=lambda failure: (failure.source, failure.line)))


def _exits(answer: Explanation, ends: Mapping[int, ProcessExit]) -> Iterator[Unexplained]:
    is_raised_on_all = answer.verdict in RAISED_ON_ALL or answer.how is How.COMPARED
    own = (HOST_MEMORY, NODE) if is_raised_on_all else OF_ITSELF
    for rank_id, row in islice(ends.items(), MOST):
        if row.how in own and rank_id not in answer.culprits and row.rank not in answer.missing:
            yield Unexplained(rank_id, end_text(row), row.source, row.line)


def _faults(answer: Explanation, fatal: Iterable[FailureEvent]) -> Iterator[Unexplained]:
    """Yield faults of GPUs and memory; where the transport or an init failed, they are its explanation."""
    if answer.verdict in (Kind.STUCK_TOGETHER, *RAISED_ON_ALL):
        return
    text = "reports a fault of its own (a CUDA call, memory or a device failed)"
    hard = [(event.rank_id, event) for event in fatal if event.kind == HARD and event.rank_id is not None]
    for rank_id, event in hard[:MOST]:
        if rank_id not in answer.culprits:
            yield Unexplained(rank_id, text, event.source, event.line)


STRUCTURES = ("evidence_lines", "considered", "unexplained")
VERDICT = {name: dtype for name, dtype in columns_of(Answer).items() if name not in STRUCTURES}


def _answers(frames: dict[str, pl.DataFrame]) -> Iterator[Answer]:
    """Yield the cheapest explanation of every job, held against all sources, with what else is to be told."""
    for job in all_jobs(frames):
        counts.compare_counts(job)
        job.stall_evidence = stall.find_stall_evidence(job)
        suggestions = explain(job)
        diagnosis = agreement.settle(job, suggestions[0])
        counts.mention_counts(job, diagnosis)
        stacks.mention_stacks(job, diagnosis)
        recorder.mention_old_dumps(job, diagnosis)
        recorder.name_dumps(job, diagnosis)
        diagnosis = omissions.doubt_omissions(job, stall.doubt_stall(job, diagnosis))
        torch_text.cite_last_words(job, diagnosis)
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
    p2p_access: pl.DataFrame, stated_stand: pl.DataFrame, last_word: pl.DataFrame, text_job: pl.DataFrame,
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
