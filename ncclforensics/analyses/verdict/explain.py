"""Find the cheapest explanation of what a job shows, and what else was considered.

Every source suggests faults by the claims of failure that it makes. The answer is the fault that leaves the fewest
claims unexplained: that which suggests itself by the claim that nothing else explains (`claims`).
"""

from __future__ import annotations

from collections.abc import Callable

from ncclforensics.analyses.verdict import agreement
from ncclforensics.analyses.verdict.claims import Claim
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines import (
    init,
    mismatch,
    no_hang,
    ranks_without_log,
    refused_init,
    transport_failure,
    waiting,
)
from ncclforensics.analyses.verdict.sources import (
    counts,
    ras_evidence,
    recorder,
    stacks,
    torch_comparisons,
    torch_store,
    torch_text,
)
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.vocabulary import Source

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
    if transport_failure.find_transport_failure(job):
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
    (Claim.TRANSPORT_FAILED, Source.LINES, transport_failure.find_transport_failure),
    (Claim.ENDED, Source.EXITS, agreement.find_ended),
    (Claim.RECORDED_DIFFERENCE, Source.DUMPS, recorder.find_recorded_mismatch),
    (Claim.RECORDED_WAIT, Source.DUMPS, agreement.find_recorded_roots),
    (Claim.RECORDED_OPEN, Source.DUMPS, _find_recorded_open),
    (Claim.ALL_OVER, None, recorder.find_nothing_open),
    (Claim.COUNTED_WAIT, Source.WATCHDOGS, pytorch.find_desync),
    (Claim.TIMED_OUT, None, pytorch.find_watchdog_timeout),
    (Claim.OF_ANOTHER_RUN, None, _find_in_doubtful_sources),
    (Claim.CALLS_COMPARED, None, torch_comparisons.find_compared_calls),
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
