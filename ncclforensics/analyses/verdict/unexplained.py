"""Failures of a job that the answer does not explain: they are told, whatever the answer is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from ncclforensics.analyses.job.ends.exit_reports import EXCEPTION, GPU_ERROR, GPU_MEMORY, HOST_MEMORY, NODE
from ncclforensics.analyses.job.ends.failure_events import HARD
from ncclforensics.analyses.job.ends.process_exits import ProcessExit, end_text
from ncclforensics.analyses.verdict.answer import Unexplained
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.rows import FailureEvent
from ncclforensics.analyses.verdict.vocabulary import How, Kind

# Ends that do not follow from a rank that stands still, a call that differs or a connection that is lost.
OF_ITSELF = (HOST_MEMORY, NODE, GPU_MEMORY, GPU_ERROR, EXCEPTION)
MOST = 16  # of each kind; the findings name the others
# NCCL raises the reason of a refused init, and PyTorch that of a comparison, as exceptions on all ranks.
RAISED_ON_ALL = (Kind.INIT_FAILED, Kind.INIT_INCOMPLETE, Kind.RANK_MISSING)
OPEN = (Kind.UNDECIDABLE, Kind.NO_HANG)


def unexplained(
    answer: Explanation, ends: Mapping[int, ProcessExit], fatal: Iterable[FailureEvent]
) -> tuple[Unexplained, ...]:
    """Return the failures of ranks that are no culprits and that nothing of the answer brings about.

    `ends`: of processes that ended by themselves, by rank; `fatal`: rows of `failure_event` behind the last call.
    """
    if answer.verdict in OPEN:
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
