"""What is told beside an answer: rivals, with what they would have to assume, and failures that it does not explain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from ncclforensics.analyses.job.ends.exit_reports import EXCEPTION, GPU_ERROR, GPU_MEMORY, HOST_MEMORY, NODE
from ncclforensics.analyses.job.ends.failure_events import HARD, FailureEvent
from ncclforensics.analyses.job.ends.process_exits import ProcessExit, end_text
from ncclforensics.analyses.verdict.answer import Considered, EvidenceLine, Unexplained
from ncclforensics.analyses.verdict.claims import Claim
from ncclforensics.analyses.verdict.doubts import Cost
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import How, Kind
from ncclforensics.data.names import ranks_text

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
