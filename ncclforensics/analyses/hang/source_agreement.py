"""Hold a verdict on ranks that did not come against every other source that speaks of them.

Each source names the ranks that it finds missing from a call, and shows others that wait in one. That a call was made
is surer than that one is missing: a log may lack its last lines, a dump may be older. Where two sources exclude each
other, one of them is of another run or moment: then most sources decide, and where there are as many on either side, no
rank is named. NCCL's lines, stacks and RAS reports name processes, so that they are of one run: a rank whose call the
lines show has made it, wherever its stack stands later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclforensics.analyses.hang import (
    first_exit,
    mismatch,
    pytorch,
    ras_evidence,
    recorder,
    recorder_join,
    stacks,
    waiting,
)
from ncclforensics.analyses.hang.equal_counts import DUMPS, WATCHDOGS
from ncclforensics.analyses.hang.job import Job
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import OF_ABSENCE, Certainty, How, Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import COLLECT_ANEW

LINES = "NCCL's lines"
STACKS = "the stacks"
REPORTS = "the RAS reports"
EXITS = "the reports on ended processes"
COUNTERS = (LINES, DUMPS, WATCHDOGS)  # of every call of a rank; stacks and RAS reports are of a moment


@dataclass(frozen=True, slots=True)
class Testimony:
    """What one source says: the numbers of the ranks that it finds missing, and of those that made their calls."""

    source: str
    diagnosis: Explanation | None
    named: frozenset[int]
    waiting: frozenset[int]

    def opposes(self, named: frozenset[int], testimonies: list[Testimony]) -> bool:
        """Whether it names none of these, but others; or shows, by counters, that all of these wait themselves.

        What stacks or RAS find possible counts if another source says the same: one look at a job that runs finds ranks
        that are late, too.
        """
        if self.source == EXITS:
            return False
        if self.named:
            is_sure = (
                self.source in COUNTERS or self.is_sure or sum(other.named == self.named for other in testimonies) > 1
            )
            return is_sure and self.named.isdisjoint(named)
        return self.source in COUNTERS and named <= self.waiting

    @property
    def is_sure(self) -> bool:
        """Whether its answer is more than a possibility."""
        return self.diagnosis is not None and self.diagnosis.certainty is not Certainty.POSSIBLE


def find_by_lines(job: Job) -> Explanation | None:
    """Find the ranks that the others wait for; where these are one whole communicator, prefer a call skipped there.

    A skipped call stops all members of its communicator at once. That a line was lost from one of their logs, and all
    of them stopped together for another reason, would be a coincidence.
    """
    waited_for = waiting.find_waited_for_ranks(job)
    if waited_for is None or waited_for.verdict != Kind.LAGGING or len(waited_for.culprits) < 2:
        return waited_for
    skipped = mismatch.find_skipped_or_lost_call(job)
    if skipped is None or len(skipped.culprits) >= len(waited_for.culprits):
        return waited_for
    members, stopped = set(job.seen_members(skipped.key)), set(waited_for.culprits)
    is_one = members == stopped or (stopped < members and len(stopped) == job.members[str(skipped.key)][0]["nranks"])
    return skipped if is_one and stopped.issuperset(skipped.culprits) else waited_for


def weigh_sources(job: Job, diagnosis: Explanation) -> Explanation:
    """Return the diagnosis with what contradicts it, that of most sources, or an open one where they are even."""
    present = [job.waits, job.recordings, [*job.timeouts, *job.desyncs], job.stacks, job.snapshots]
    is_on_absence = diagnosis.verdict in OF_ABSENCE and not diagnosis.how
    if sum(map(bool, present)) < 2 or not (is_on_absence or _is_mismatch_without_lines(diagnosis)):
        return diagnosis
    testimonies = _testimonies(job)
    if is_on_absence:
        _drop_waiting(job, diagnosis, testimonies)
    else:
        testimonies = [testimony for testimony in testimonies if testimony.named]
    named = job.numbers_blamed(diagnosis)
    opposing = [testimony for testimony in testimonies if testimony.opposes(named, testimonies)]
    if not named or not opposing:
        if any(testimony.named and testimony.named.isdisjoint(named) for testimony in testimonies):
            diagnosis.doubt(Doubt.SOURCES_DISAGREE)
        return diagnosis
    supporting = [testimony for testimony in testimonies if testimony.named & named]
    rivals = max(([other for other in opposing if other.named == rival.named] for rival in opposing), key=len)
    has_rivals = bool(rivals[0].named)
    if has_rivals and len(rivals) > max(1, len(supporting)):
        return _of_rivals(job, rivals, supporting, diagnosis)
    of_moments = all(testimony.source not in COUNTERS for testimony in opposing)
    if len(supporting) > len(opposing):
        is_clear = of_moments or len(supporting) > len(opposing) + 1
        return _contested(diagnosis, opposing, Doubt.SOURCES_DISAGREE if is_clear else Doubt.SOURCES_CONTRADICT)
    if of_moments and (not is_on_absence or any(testimony.source == LINES for testimony in supporting)):
        return _contested(diagnosis, opposing, Doubt.SOURCES_CONTRADICT)
    is_shown = _show_waiting(opposing, named)
    are_rivals_shown = has_rivals and _show_waiting(supporting, frozenset().union(*(o.named for o in opposing)))
    if is_on_absence and are_rivals_shown and not is_shown:
        return _contested(diagnosis, opposing, Doubt.SOURCES_CONTRADICT)
    if is_on_absence and has_rivals and is_shown and not are_rivals_shown and len(rivals) == len(opposing):
        return _of_rivals(job, rivals, supporting, diagnosis)
    return _left_open(job, diagnosis, opposing)


def _is_mismatch_without_lines(diagnosis: Explanation) -> bool:
    """Whether ranks made another call by dumps or watchdogs, and neither NCCL's lines nor PyTorch compare the calls."""
    return diagnosis.verdict == Kind.MISMATCH and diagnosis.key is None and diagnosis.how is not How.COMPARED


def _testimonies(job: Job) -> list[Testimony]:
    """Ask every source; one that names no rank may still show that some wait."""
    recordings, lines, dumps = job.recordings, find_by_lines(job), recorder.find_recorded_roots(job)
    dumped = recordings.read - recordings.outdated if recordings else set()
    # A log that ends inside a line lacks what came next, so that no rank is shown to wait for this one.
    is_cut = {rank_id for rank_id in job.awaited_ranks if job.process(rank_id)["is_cut"]}
    edges = [edge for edge in job.waits if edge["kind"] != "init" and not is_cut.issuperset(edge["waits_for"])]
    if dumps is not None and recorder_join.is_older_than_log(job, dumps):
        dumps, dumped = None, set()
    elif lines is not None and recorder_join.is_newer_than_log(job, lines):
        lines, edges = None, []
    reports = ras_evidence.diagnose_reports(job)
    answers: list[tuple[str, Explanation | None, Iterable[int]]] = [
        (LINES, lines, job.rank_numbers({edge["waiter"] for edge in edges})),
        (DUMPS, dumps, [rank for rank in dumped if recordings and recordings.blocking(rank)]),
        (WATCHDOGS, pytorch.find_desync(job), pytorch.ranks_that_wait(job)),
        (STACKS, stacks.find_odd_stacks(job), job.rank_numbers(r["rank_id"] for r in job.stacks if r["is_waiting"])),
        (REPORTS, reports, _launched_all(job, reports)),
        (EXITS, first_exit.find_first_exit(job), ()),
    ]
    return [Testimony(source, answer, _named(job, answer), frozenset(ranks)) for source, answer, ranks in answers]


def _launched_all(job: Job, reports: Explanation | None) -> set[int]:
    """Return the ranks that have launched all calls, where RAS reports find others behind."""
    if reports is None or reports.verdict != Kind.LAGGING:
        return set()
    return set(job.rank_numbers(job.rank_ids)) - job.numbers_blamed(reports)


def _named(job: Job, diagnosis: Explanation | None) -> frozenset[int]:
    is_call_skipped = diagnosis is not None and diagnosis.how is How.SKIPPED
    is_on_absence = diagnosis is not None and diagnosis.verdict in (*OF_ABSENCE, Kind.RANK_DIED) and not diagnosis.how
    if diagnosis is None or not (is_call_skipped or is_on_absence):
        return frozenset()
    return job.numbers_blamed(diagnosis)


def _drop_waiting(job: Job, diagnosis: Explanation, testimonies: list[Testimony]) -> None:
    """Drop culprits that wait themselves, by counters of another source, where it does not show so of all."""
    for testimony in testimonies:
        named = job.numbers_blamed(diagnosis)
        not_missing = named & testimony.waiting - testimony.named
        if testimony.source in COUNTERS and not_missing and not_missing != named:
            dropped = {rank_id for rank_id in diagnosis.culprits if job.rank_number(rank_id) in not_missing}
            diagnosis.culprits = [rank_id for rank_id in diagnosis.culprits if rank_id not in dropped]
            diagnosis.missing = [number for number in diagnosis.missing if number not in not_missing]
            diagnosis.victims = sorted({*diagnosis.victims, *dropped})
            diagnosis.doubt(
                Doubt.SOURCES_DISAGREE, f"{ranks_text(sorted(not_missing))} waited, too, by {testimony.source}"
            )


def _show_waiting(testimonies: list[Testimony], numbers: frozenset[int]) -> bool:
    return numbers <= frozenset().union(*(testimony.waiting for testimony in testimonies))


def _describe(testimonies: list[Testimony]) -> str:
    """Say what sources find, as in `the stacks show the others waiting for rank 3`."""
    return ", ".join(
        f"{testimony.source} show the others waiting for {ranks_text(sorted(testimony.named))}"
        if testimony.named
        else f"{testimony.source} show it waiting in a call itself"
        for testimony in testimonies
    )


def _cite(diagnosis: Explanation, testimonies: list[Testimony]) -> None:
    for testimony in testimonies:
        if testimony.diagnosis is not None:
            diagnosis.add_evidence("context", testimony.diagnosis.evidence_lines[:2])


def _contested(diagnosis: Explanation, opposing: list[Testimony], doubt: Doubt) -> Explanation:
    diagnosis.remark(f"but {_describe(opposing)}")
    diagnosis.doubt(doubt)
    _cite(diagnosis, opposing)
    return diagnosis


def _of_rivals(job: Job, rivals: list[Testimony], supporting: list[Testimony], former: Explanation) -> Explanation:
    answers = [rival.diagnosis for rival in rivals if rival.diagnosis is not None]
    diagnosis = answers[0]
    diagnosis.remark(f"{_describe(rivals[1:])}, too" if len(rivals) > 1 else "")
    diagnosis.victims = sorted(set(job.rank_ids) - set(diagnosis.culprits))
    if supporting:
        return _contested(diagnosis, supporting, Doubt.SOURCES_CONTRADICT)
    diagnosis.doubt(Doubt.SOURCES_CONTRADICT, f"but {ranks_text(sorted(job.numbers_blamed(former)))} {former.reason}")
    diagnosis.add_evidence("context", former.evidence_lines[:2])
    return diagnosis


def _left_open(job: Job, diagnosis: Explanation, opposing: list[Testimony]) -> Explanation:
    """Answer that the sources contradict each other, as many on either side."""
    named = ranks_text(sorted(job.numbers_blamed(diagnosis)))
    reason = f"the sources contradict each other: {named} {diagnosis.reason}; but {_describe(opposing)}"
    answer = Explanation(
        Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=list(dict.fromkeys([*COLLECT_ANEW, *diagnosis.collect]))
    )
    answer.key, answer.call, answer.victims = diagnosis.key, diagnosis.call, sorted(job.rank_ids)
    answer.evidence_lines = [{**line, "what": "context"} for line in diagnosis.evidence_lines]
    _cite(answer, opposing)
    return answer
