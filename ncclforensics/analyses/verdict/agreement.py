"""Hold the explanation of a job against the testimonies of all its sources.

Each source names the ranks that it finds missing from a call, shows others that wait in one, and counts calls
(`Testimony`). Four rules decide, whichever source it is:

- independence: what is open is decided by a source of another kind, stacks or RAS reports.
- made: a rank made the call that its log lacks if NCCL counted that call in memory. A log may lack its last lines, and
  a dump may be older.
- agreement: a look at the job that finds the same ranks confirms them, if it shows that the job stood still.
- contradiction: where sources exclude each other, one of them is of another run or moment. Then most sources decide,
  and where there are as many on either side, no rank is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines import failures, mismatch
from ncclforensics.analyses.verdict.sources import counts, ras_evidence, recorder, stacks, torch_reports
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.vocabulary import OF_ABSENCE, Certainty, How, Kind, Source
from ncclforensics.data.names import MESSAGES, ranks_text
from ncclforensics.data.stack_classes import COLLECTIVE, GPU
from ncclforensics.data.variables import COLLECT_ANEW, STACKS_OF_HOST
from ncclforensics.frames.columns import Row, lines_behind

COUNTERS = (Source.LINES, Source.DUMPS, Source.WATCHDOGS)  # of every call of a rank


class Testimony(NamedTuple):
    """What one source says; ranks by their numbers."""

    source: Source
    explanation: Explanation | None = None
    named: frozenset[int] = frozenset()  # missing from a call
    waiting: frozenset[int] = frozenset()  # in a call
    may_wait: frozenset[int] = frozenset()  # for their GPU, perhaps in a call
    made: Sequence[counts.Count] = ()  # calls of ranks that their logs lack
    is_of_stalled_job: bool = False

    @property
    def is_sure(self) -> bool:
        """Whether it counts alone: one look at a running job finds ranks that are late, too."""
        is_likely = self.explanation is not None and self.explanation.certainty is not Certainty.POSSIBLE
        return self.source in COUNTERS or is_likely

    def is_of(self, explanation: Explanation) -> bool:
        """Whether an explanation is its own."""
        return self.explanation is explanation or explanation.source is self.source

    def opposes(self, named: frozenset[int]) -> bool:
        """Whether it names none of these, but others; or shows, by counters, that some of these wait themselves."""
        if self.source is Source.EXITS:
            return False
        if self.named:
            return self.named.isdisjoint(named) and self.is_sure
        return self.source in COUNTERS and not named.isdisjoint(self.waiting)

    @property
    def text(self) -> str:
        """What it finds, as in `the stacks show the others waiting for rank 3`."""
        named = f"the others waiting for {ranks_text(sorted(self.named))}"
        return f"{self.source.shows} {named if self.named else 'it waiting in a call itself'}"


def _by_lines(job: Job) -> Testimony:
    lines = mismatch.find_by_lines(job)
    return _testimony(job, Source.LINES, lines, job.rank_numbers({edge.waiter for edge in job.waits}))


def _by_dumps(job: Job) -> Testimony:
    recordings, made = job.recordings, counts.find_made(job, Source.DUMPS)
    roots = find_recorded_roots(job)
    if recordings is None:
        return Testimony(Source.DUMPS, made=made)
    waiting = [rank for rank in recordings.read - recordings.outdated if recordings.blocking(rank)]
    return _testimony(job, Source.DUMPS, roots, waiting)._replace(made=made)


def find_recorded_roots(job: Job) -> Explanation | None:
    """Find the ranks that the others wait for in the dumps, unless the log of one shows calls that its dump lacks."""
    roots = recorder.find_recorded_roots(job)
    later = {row.rank_id for row in counts.counts_of(job, Source.DUMPS) if (row.logged or 0) > row.counted}
    return None if roots is None or later.intersection(roots.culprits) else roots


def _by_stacks(job: Job) -> Testimony:
    found = stacks.find_odd_stacks(job) or stacks.find_silent_outside(job)
    of_kind = {kind: [row.rank_id for row in job.stacks if row.kind == kind] for kind in (COLLECTIVE, GPU)}
    waiting = of_kind[COLLECTIVE] if not stacks.are_in_collectives(job) else list(job.rank_ids)
    return _testimony(job, Source.STACKS, found, job.rank_numbers(waiting))._replace(
        may_wait=frozenset(job.rank_numbers(of_kind[GPU])),
        is_of_stalled_job=stacks.is_standing_still(job) or stacks.has_stall_lines(job),
    )


def _by_reports(job: Job) -> Testimony:
    found = ras_evidence.diagnose_reports(job)
    is_of_stalled_job = found is not None and Doubt.ONE_MOMENT not in found.doubts
    is_on_calls = found is not None and found.verdict == Kind.LAGGING and is_of_stalled_job
    launched_all = is_on_calls or (found is None and ras_evidence.show_no_mismatch(job))
    testimony = _testimony(job, Source.REPORTS, found, job.rank_numbers(job.rank_ids) if launched_all else ())
    made, waiting = counts.find_made(job, Source.REPORTS), testimony.waiting - testimony.named
    return testimony._replace(waiting=waiting, made=made, is_of_stalled_job=is_of_stalled_job)


def find_ended(job: Job) -> Explanation | None:
    """Find the process that ended first; where only text speaks, processes are known by their rank alone."""
    if job.is_text_only:
        return torch_reports.find_failed_ranks(job)
    found = failures.find_first_exit(job)
    return None if found is None or torch_reports.were_started_again(job, found.culprits) else found


TESTIMONIES: tuple[Callable[[Job], Testimony], ...] = (
    _by_lines,
    _by_dumps,
    lambda job: _testimony(job, Source.WATCHDOGS, pytorch.find_desync(job), pytorch.ranks_that_wait(job)),
    _by_stacks,
    _by_reports,
    lambda job: _testimony(job, Source.EXITS, find_ended(job)),
    lambda job: Testimony(Source.INSPECTOR, made=counts.find_made(job, Source.INSPECTOR)),
    lambda job: Testimony(Source.PROFILER, made=counts.find_made(job, Source.PROFILER)),
)


def _testimony(job: Job, source: Source, found: Explanation | None, waiting: Iterable[int] = ()) -> Testimony:
    is_on_absence = found is not None and found.verdict in (*OF_ABSENCE, Kind.RANK_DIED) and not found.how
    named = job.numbers_blamed(found) if found is not None and is_on_absence else frozenset()
    return Testimony(source, found, named, frozenset(waiting))


# Sources of one moment, with the world in which a rank waits although its log lacks the call.
LOOKS = {
    Source.STACKS: (
        Doubt.STACKS_DISAGREE,
        "the stacks contradict the calls in the logs, of which the last lines may be missing",
    ),
    Source.REPORTS: (
        Doubt.NO_MISMATCH_IN_RAS,
        "the RAS report shows no mismatch: all ranks had launched as many calls, before or behind the end of a log",
    ),
}
# A rank that skips a call or calls in another order launches more calls on some communicator than those that wait.
OF_ORDER = (How.SKIPPED, How.EXTRA, How.SWAPPED)
SUREST = (Certainty.CERTAIN, Certainty.LIKELY, Certainty.POSSIBLE)


def settle(job: Job, explanation: Explanation) -> Explanation:
    """Return the explanation that most sources of a job agree on, with what confirms and what contradicts it."""
    testimonies = [testify(job) for testify in TESTIMONIES]
    explanation = _unless_made(job, explanation, testimonies)
    explanation = _decided(job, explanation, testimonies)
    for testimony in testimonies:
        explanation = _agreed(job, explanation, testimony)
    named = job.numbers_blamed(explanation)
    # Neither NCCL's lines nor PyTorch compare the calls of a mismatch without a communicator.
    is_mismatch_without_lines = explanation.verdict == Kind.MISMATCH and explanation.key is None
    is_on_absence = explanation.verdict in OF_ABSENCE and not explanation.how
    if named and (is_on_absence or is_mismatch_without_lines):
        return _by_most(job, explanation, testimonies)
    return _beside_reports(job, explanation, testimonies)


def _unless_made(job: Job, explanation: Explanation, testimonies: list[Testimony]) -> Explanation:
    """Leave open who is behind where culprits made the call that their logs lack, by counts in memory."""
    for testimony in testimonies if explanation.verdict == Kind.LAGGING and not explanation.how else ():
        blamed = {rank_id for rank_id in explanation.culprits if job.rank_number(rank_id) not in testimony.named}
        if made := [row for row in testimony.made if row.rank_id in blamed]:
            lacking = f"by the logs {job.names(explanation.culprits)} did not make the call that others are in"
            text = counts.made_text(job, testimony.source, made)
            cited = counts.rows_in_memory(job, testimony.source, made)
            return _open(job, explanation, f"{lacking}, but {text}", cited)
    return explanation


def _decided(job: Job, explanation: Explanation, testimonies: list[Testimony]) -> Explanation:
    """Return what stacks or reports find in place of an open answer, with what the other lines show."""
    answers = [
        testimony.explanation
        for testimony in testimonies
        if testimony.source in LOOKS and not testimony.is_of(explanation)
        if testimony.explanation and _is_open_to(job, explanation, testimony.explanation)
    ]
    if not answers:
        return explanation
    found = min(answers, key=lambda answer: (not job.numbers_blamed(answer), SUREST.index(answer.certainty)))
    if explanation.evidence_lines:
        found.remarks.append(f"by the other lines {explanation.claim}")
    found.evidence_lines += explanation.evidence_lines
    found.key = found.key or explanation.key
    if not job.numbers_blamed(found):
        found.collect = list(dict.fromkeys([*found.collect, *explanation.collect]))
        found.call = explanation.call
    return found


def _is_open_to(job: Job, explanation: Explanation, found: Explanation) -> bool:
    """Whether an answer leaves open what another source finds: it is none, or names no rank and no log shows calls."""
    if explanation.verdict == Kind.UNDECIDABLE:
        return True
    if found.verdict == Kind.UNDECIDABLE or job.numbers_blamed(explanation) or job.is_finished:
        return False
    is_shown = explanation.certainty is Certainty.CERTAIN or not job.calls.is_empty()
    is_weak = explanation.verdict in (Kind.NO_HANG, Kind.STUCK_TOGETHER) and not is_shown
    return is_weak or found.verdict == Kind.RANK_DIED


def _agreed(job: Job, explanation: Explanation, testimony: Testimony) -> Explanation:
    """Return the surer of two explanations that name the same ranks; that they ended explains why they did not come."""
    found, named = testimony.explanation, job.numbers_blamed(explanation)
    if found is None or testimony.is_of(explanation) or not found.culprits or not job.numbers_blamed(found) <= named:
        return explanation
    has_ended = found.verdict == Kind.RANK_DIED and found.certainty is not Certainty.POSSIBLE
    if has_ended and explanation.verdict in OF_ABSENCE:
        found.remarks.append(explanation.reason)
        found.call, found.key = explanation.call, explanation.key
        found.evidence_lines += explanation.evidence_lines
        return found
    is_surer = found.certainty is Certainty.CERTAIN is not explanation.certainty and testimony.source in COUNTERS
    if is_surer and explanation.verdict != Kind.RANK_DIED:
        return found  # it names the call and its line
    if job.numbers_blamed(found) == named and testimony.is_of_stalled_job:
        explanation.confirmations += 1
    return explanation.add_evidence(context=found.evidence_lines[:2])


def _beside_reports(job: Job, explanation: Explanation, testimonies: list[Testimony]) -> Explanation:
    """Doubt a verdict that rests on compared calls or ended processes if RAS reports surely name other ranks."""
    if explanation.verdict == Kind.DEADLOCK or explanation.how in OF_ORDER:
        return explanation  # then those that wait launched fewer calls
    named = job.numbers_blamed(explanation)
    for testimony in testimonies:
        found = testimony.explanation
        other = job.numbers_blamed(found) if found and testimony.source is Source.REPORTS else frozenset()
        if found and named and other and other.isdisjoint(named):
            explanation.doubt(Doubt.SOURCES_DISAGREE, f"but RAS names {ranks_text(other)}, which {found.reason}")
            explanation.add_evidence(context=found.evidence_lines[:2])
    return explanation


def _by_most(job: Job, explanation: Explanation, testimonies: list[Testimony]) -> Explanation:
    """Return the explanation with what contradicts it, that of most sources, or an open one where they are even."""
    named = job.numbers_blamed(explanation)
    if failed := _failed_before(job, explanation, testimonies):
        return failed
    _doubt_by_looks(job, explanation, testimonies)
    independent = [testimony for testimony in testimonies if not testimony.is_of(explanation)]
    opposing = [testimony for testimony in independent if testimony.opposes(named)]
    if not opposing:
        others = [testimony for testimony in independent if testimony.named and testimony.named.isdisjoint(named)]
        return _contested(explanation, others, Doubt.SOURCES_DISAGREE) if others else explanation
    supporting = [testimony for testimony in testimonies if testimony.named & named]
    rivals = max(([other for other in opposing if other.named == rival.named] for rival in opposing), key=len)
    rival_ranks = rivals[0].named
    of_moments = all(testimony.source not in COUNTERS for testimony in opposing)
    has_lines = of_moments and any(testimony.source is Source.LINES for testimony in supporting)
    # More sources are right; of as many, lines against looks.
    own_strength, rival_strength = (max(1, len(supporting)), has_lines), (len(rivals), False)
    if own_strength > rival_strength:
        return _contested(explanation, opposing, Doubt.SOURCES_CONTRADICT)
    if rival_strength > own_strength and rival_ranks:
        return _of_rivals(job, rivals, explanation)
    texts = ", ".join(testimony.text for testimony in opposing)
    reason = f"the sources contradict each other: {ranks_text(named)} {explanation.reason}; but {texts}"
    answer = _open(job, explanation, reason, [])
    answer.suspects = sorted(named.union(*(testimony.named for testimony in opposing)))
    answer.collect = list(dict.fromkeys([*COLLECT_ANEW, *explanation.collect]))
    return _cited(answer, opposing)


def _failed_before(job: Job, explanation: Explanation, testimonies: list[Testimony]) -> Explanation | None:
    """Return the end of a rank that surely failed by itself, above the time-outs of others in the same output.

    Ranks that had made fewer calls by then may wait for it elsewhere, or its launcher ended them.
    """
    if explanation.source is not Source.WATCHDOGS:
        return None
    lines = {number: row["lines"] for number, row in job.run.sources.items()}
    left: dict[int, int] = {}  # lines behind the first time-out of each file
    for row in job.timeouts:
        left[row.source] = max(left.get(row.source, 0), lines_behind(row.line, lines[row.source]))
    ended_above = {
        row.rank
        for row in job.all_exits
        if row.source in left and lines_behind(row.line, lines[row.source]) > left[row.source]
    }
    for testimony in testimonies:
        found, named = testimony.explanation, testimony.named
        if found is None or testimony.source is not Source.EXITS or found.certainty is not Certainty.CERTAIN:
            continue
        if named and named <= ended_above and named.isdisjoint(job.numbers_blamed(explanation)):
            found.call, found.key = explanation.call, explanation.key
            lagging = f"{ranks_text(job.numbers_blamed(explanation))} {explanation.reason}"
            found.doubt(Doubt.SOURCES_DISAGREE, f"but {lagging}: these may wait for it elsewhere")
            return found.add_evidence(context=explanation.evidence_lines[:2])
    return None


def _doubt_by_looks(job: Job, explanation: Explanation, testimonies: list[Testimony]) -> None:
    """Doubt an answer whose culprits wait, by stacks, or launched all calls, by RAS, which counts no Send and Recv."""
    named = job.numbers_blamed(explanation)
    is_message = explanation.call is not None and explanation.call.name in MESSAGES
    for testimony in testimonies:
        is_uncounted = is_message and testimony.source is Source.REPORTS
        waiting = frozenset() if is_uncounted or testimony.is_of(explanation) else testimony.waiting
        if testimony.source in LOOKS and named & waiting:
            doubt, text = LOOKS[testimony.source]
            explanation.doubt(doubt, "" if testimony.named else text)
        elif named & testimony.may_wait:
            explanation.doubt(Doubt.GPU_WAITS, "it waits for its GPU, perhaps for a call whose line its log lacks")


def _cited(explanation: Explanation, testimonies: list[Testimony]) -> Explanation:
    for testimony in testimonies:
        if testimony.explanation is not None:
            explanation.add_evidence(context=testimony.explanation.evidence_lines[:2])
    return explanation


def _contested(explanation: Explanation, opposing: list[Testimony], doubt: Doubt) -> Explanation:
    explanation.doubt(doubt, f"but {', '.join(testimony.text for testimony in opposing)}")
    return _cited(explanation, opposing)


def _of_rivals(job: Job, rivals: list[Testimony], former: Explanation) -> Explanation:
    answer = next(rival.explanation for rival in rivals if rival.explanation is not None)
    answer.remarks.append(f"{', '.join(rival.text for rival in rivals[1:])}, too")
    answer.doubt(Doubt.SOURCES_CONTRADICT, f"but {ranks_text(job.numbers_blamed(former))} {former.reason}")
    return answer.add_evidence(context=former.evidence_lines[:2])


def _open(job: Job, explanation: Explanation, reason: str, cited: list[Row]) -> Explanation:
    """Answer that no rank is named, with what the explanation rested on."""
    named = ranks_text(job.numbers_blamed(explanation))
    collect = [f"collect the whole log of {named}", f"take the stacks on each host: `{STACKS_OF_HOST}`"]
    answer = undecided(reason, collect, context=cited[:2], key=explanation.key, call=explanation.call)
    answer.victims = sorted(job.rank_ids)
    return answer.add_evidence(context=explanation.evidence_lines)
