"""What each source of a job says of its ranks: which are missing from a call, which wait in one, which made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines import first_exit, mismatch
from ncclforensics.analyses.verdict.sources import counts, ras_evidence, recorder, stacks, torch_ends
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.vocabulary import OF_ABSENCE, Certainty, Kind, Source
from ncclforensics.data.names import ranks_text
from ncclforensics.data.stack_classes import COLLECTIVE, GPU

COUNTERS = (Source.LINES, Source.DUMPS, Source.WATCHDOGS)  # of every call of a rank


class Testimony(NamedTuple):
    """What one source says; ranks by their numbers."""

    source: Source
    explanation: Explanation | None = None
    named: frozenset[int] = frozenset()  # missing from a call
    waiting: frozenset[int] = frozenset()  # in a call
    may_wait: frozenset[int] = frozenset()  # for their GPU, perhaps in a call
    made: tuple[counts.Count, ...] = ()  # calls of ranks that their logs lack
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
    recordings, made = job.recordings, tuple(counts.find_made(job, Source.DUMPS))
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


def _by_watchdogs(job: Job) -> Testimony:
    return _testimony(job, Source.WATCHDOGS, pytorch.find_desync(job), pytorch.ranks_that_wait(job))


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
    made = tuple(counts.find_made(job, Source.REPORTS))
    return testimony._replace(
        waiting=testimony.waiting - testimony.named, made=made, is_of_stalled_job=is_of_stalled_job
    )


def _by_exits(job: Job) -> Testimony:
    return _testimony(job, Source.EXITS, find_ended(job))


def find_ended(job: Job) -> Explanation | None:
    """Find the process that ended first; where only text speaks, processes are known by their rank alone."""
    return torch_ends.find_failed_ranks(job) if job.is_text_only else first_exit.find_first_exit(job)


def _by_counts(source: Source, job: Job) -> Testimony:
    return Testimony(source, made=tuple(counts.find_made(job, source)))


TESTIMONIES: tuple[Callable[[Job], Testimony], ...] = (
    _by_lines,
    _by_dumps,
    _by_watchdogs,
    _by_stacks,
    _by_reports,
    _by_exits,
    partial(_by_counts, Source.INSPECTOR),
    partial(_by_counts, Source.PROFILER),
)


def _testimony(job: Job, source: Source, found: Explanation | None, waiting: Iterable[int] = ()) -> Testimony:
    is_on_absence = found is not None and found.verdict in (*OF_ABSENCE, Kind.RANK_DIED) and not found.how
    named = job.numbers_blamed(found) if found is not None and is_on_absence else frozenset()
    return Testimony(source, found, named, frozenset(waiting))
