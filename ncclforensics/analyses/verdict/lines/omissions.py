"""Judge what is left of a verdict where lines were left out of logs or sorted, or logs begin in the middle of the run.

A call may have been among these lines: so the place of a later call in its sequence is known from below only, and that
a call is missing from such a log proves nothing, unless NCCL's counter or a long agreement with the others shows the
place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.job.calls.line_faults import DISTINCT, DOUBLED, LOST, MOVED, SELECTED, SORTED
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import BY_ENDS, FROM_ENDS, OF_ABSENCE, Claim, How, Kind

BY_PLACE = (Kind.MISMATCH, Kind.DEADLOCK, Kind.UNMATCHED)  # compare single calls
MOST_SELECTED = 0.5  # share of the ranks
FEW_FAULTY = 0.2  # share of the ranks; where lines of more were lost or moved, no difference between calls is one
LAST_CALLS = (3, 12)  # a rank whose calls differ may go on and enqueue a few more that agree
FEWEST_ALIKE = 2
MOST_ALIKE = 0.7  # of the ranks that are not accused
# Verdicts that rest on calls that a log lacks, or on the place of a call among the others.
FROM_CALLS = (Kind.MISMATCH, *FROM_ENDS)


class LineFaults(NamedTuple):
    """What happened to the lines of logs on their way, and which verdicts it can feign: then no rank is accused."""

    kinds: tuple[str, ...]
    most: float  # share of the ranks that may have such a log
    feigned: tuple[Kind | How | Claim, ...]
    reason: str
    collect: str


FEIGNING = (
    LineFaults(
        (SORTED,),
        0,
        (*FROM_CALLS, Kind.NO_HANG, Claim.LOST),
        "the lines of these logs were sorted: their order does not show which calls were made before which, or last",
        "collect the logs as they were written, not sorted",
    ),
    LineFaults(
        (SELECTED,),
        MOST_SELECTED,
        BY_ENDS,
        "NCCL's counter shows that the lines of many calls were left out of these logs: the last call of a rank may be "
        "one of these",
        "collect the logs with the lines of all calls, not selected",
    ),
    LineFaults(
        (DISTINCT,),
        FEW_FAULTY,
        (*BY_ENDS, How.SKIPPED, How.EXTRA),
        "no line of a call stands in these logs twice: equal lines were removed, so a missing call proves nothing",
        "collect the logs as they were written, without `sort -u`, `uniq` or the like",
    ),
    LineFaults(
        (LOST, MOVED, DOUBLED),
        FEW_FAULTY,
        BY_PLACE,
        "the logs of many ranks lack lines, have some twice or in another order: calls are not at their places",
        "collect the logs as the ranks wrote them (NCCL_DEBUG_FILE), not from the collector that changed them",
    ),
)


def doubt_omissions(job: Job, diagnosis: Explanation) -> Explanation:
    """Doubt a verdict that rests on calls which logs lack, where lines are missing from these."""
    for faults in FEIGNING:
        judged = (diagnosis.verdict, diagnosis.how, diagnosis.suggested_by)
        if not set(faults.feigned).isdisjoint(judged) and _share_with_fault(job, faults.kinds) > faults.most:
            as_written = "its lines are as the ranks wrote them"
            return undecided(faults.reason, [faults.collect], diagnosis, unless=as_written)
    if diagnosis.verdict in OF_ABSENCE and _may_only_begin_later(job, diagnosis.culprits):
        names = job.names(diagnosis.culprits)
        reason = f"logs begin in the middle of the run, and that of {names} ends with the same calls as others: it may "
        reason += "only begin later"
        collect = [f"collect the whole log of {names}"]
        return undecided(reason, collect, diagnosis, unless="all logs begin at the same call")
    if diagnosis.verdict in BY_ENDS and _shows_one_kind_of_call(job, diagnosis):
        diagnosis.doubt(
            Doubt.LINES_SELECTED, "these lines show one kind of call only: these ranks may wait in one of another kind"
        )
    if diagnosis.verdict in BY_ENDS and (names := _idle_communicator_of(job, diagnosis)):
        shown = f"no line that was read shows a call on a communicator of {names}, where these ranks may wait"
        diagnosis.doubt(Doubt.LINES_SELECTED, f"{shown}: the lines seem to have been selected")
    partial = [rank_id for rank_id in job.rank_ids if job.has_omission(rank_id)]
    unplaced = {
        rank_id
        for rank_id, key, begins_together in job.unplaced
        if diagnosis.key in (key, None) and not begins_together
    }
    concerned = {*diagnosis.culprits, *job.seen_members(diagnosis.key)}
    involved = sorted(concerned.intersection(partial) | unplaced)
    if diagnosis.verdict == Kind.NO_HANG and not job.is_finished:
        involved = sorted({*partial, *(row[0] for row in job.unplaced)} & set(job.rank_ids))
    elif diagnosis.verdict not in FROM_CALLS:
        return diagnosis
    return _doubt_missing_lines(job, diagnosis, involved, unplaced) if involved else diagnosis


def _share_with_fault(job: Job, kinds: Iterable[str]) -> float:
    """Return the share of the ranks of which a line shows that lines of their logs were lost or moved, say."""
    faulty = {owner for owner, faults in job.line_faults.items() if not faults.isdisjoint(kinds)}
    ranks = [row for row in job.rank_ids.values() if row.owner in faulty]
    return len(ranks) / max(1, len(job.rank_ids))


def _doubt_missing_lines(job: Job, diagnosis: Explanation, involved: list[int], unplaced: set[int]) -> Explanation:
    """Doubt a verdict on ranks whose logs lack lines, and accuse no rank whose place is unknown.

    `involved`: ranks that the verdict concerns and whose logs lack lines; `unplaced`: those that may have made calls
    there.
    """
    ranks = job.names(involved)
    jumps = [job.counter_jumps[rank_id] for rank_id in involved if rank_id in job.counter_jumps]
    known_by = "NCCL's counter shows that " if len(jumps) == len(involved) else ""
    missing = f"{known_by}lines of the logs of {ranks} are missing, and these may hold further calls"
    collect = [*diagnosis.collect, f"collect the whole log of {ranks}, from its beginning"]
    known = [rank_id for rank_id in diagnosis.culprits if rank_id not in unplaced]
    others = set(job.seen_members(diagnosis.key)) - set(known)
    if not known and _others_end_alike(job, diagnosis):
        known = diagnosis.culprits  # whatever was left out, these are the ones that differ
    elif diagnosis.culprits and (not known or len(others - unplaced) * 2 < len(others)):
        reason, unless = f"{missing}: what the logs lack proves nothing", "no call stands among the missing lines"
        return undecided(reason, collect, diagnosis, unless=unless, context=jumps[:2])
    diagnosis.culprits, diagnosis.collect = known, collect
    diagnosis.add_evidence(context=jumps[:2])
    diagnosis.doubt(Doubt.LINES_LEFT_OUT, missing)
    return diagnosis


def _shows_one_kind_of_call(job: Job, diagnosis: Explanation) -> bool:
    """Whether `grep` may have selected these lines: no Init line, several communicators, calls of a single name."""
    if not diagnosis.culprits or any(row.line is not None for row in job.memberships):
        return False
    communicators = Counter(row.rank_id for row in job.memberships)
    are_several = all(communicators[rank_id] > 1 for rank_id in diagnosis.culprits)
    return are_several and _names_called(job).n_unique() == 1


def _idle_communicator_of(job: Job, diagnosis: Explanation) -> str:
    """Name the members of a communicator of culprits on which no rank shows a call, where lines seem to be selected.

    `grep` may have selected the lines of one communicator, without that on the version, or left out those of AllReduce,
    which few programs do without.
    """
    called = {key for made in job.run.collectives_made.values() for key in made}
    culprits = set(diagnosis.culprits)
    idle = [
        set(job.seen_members(key))
        for key, rows in job.members.items()
        if key not in called and rows[0].nranks > 1 and any(row.is_complete for row in rows)
    ]
    concerned = max(idle, key=lambda ranks: len(ranks & culprits), default=set())
    if concerned.isdisjoint(culprits) or (job.run.releases and _names_called(job).is_in(["AllReduce"]).any()):
        return ""
    return job.names(concerned)


def _names_called(job: Job) -> pl.Series:
    """Return the name of every distinct line of a call; of all calls it would take 16 bytes each."""
    return job.names_of(job.calls.select("call_line").unique())


def _others_end_alike(job: Job, diagnosis: Explanation) -> bool:
    """Whether the logs of most others end with the same calls, and that of no culprit, which has its end.

    The others are the rest of the communicator or of the job; of a pipeline, each stage makes other calls.
    """
    members = job.seen_members(diagnosis.key)
    return any(
        _end_alike(job, diagnosis.culprits, rank_ids, number)
        for rank_ids in (job.rank_ids, members)
        for number in LAST_CALLS
    )


def _may_only_begin_later(job: Job, culprits: list[int]) -> bool:
    """Whether logs of ranks begin later than those of others, and end as they do: a loop agrees at every round."""
    if not culprits or not job.begin_later.issuperset(culprits):
        return False  # as in most jobs, of which the calls need not be compared
    signatures = job.signatures_of_last_calls(LAST_CALLS[-1])
    endings = Counter(calls for rank_id, calls in signatures.items() if rank_id not in culprits)
    alike = [endings[signatures[rank_id]] for rank_id in culprits if rank_id in signatures]
    return min(alike, default=0) >= FEWEST_ALIKE


def _end_alike(job: Job, culprits: list[int], rank_ids: Iterable[int], number: int) -> bool:
    """Whether the last so many calls are the same in the logs of most of these ranks, and in that of no culprit."""
    signatures = job.signatures_of_last_calls(number)
    endings = Counter(signatures.get(rank_id) for rank_id in rank_ids if rank_id not in culprits)
    (usual, ranks), *_ = endings.most_common(1) or [(None, 0)]
    return (
        usual is not None
        and bool(culprits)
        and ranks >= max(FEWEST_ALIKE, MOST_ALIKE * endings.total())
        and all(
            (known := _calls_after_omission(job, rank_id, number)) > 0
            and signatures.get(rank_id, ())[-known:] != usual[-known:]
            for rank_id in culprits
        )
    )


def _calls_after_omission(job: Job, rank_id: int, most: int) -> int:
    """Count a rank's calls behind all lines that were left out of its log, up to `most`."""
    last = job.run.last_omission.get(job.process(rank_id)["last_source"], -1)
    last = max(last, job.counter_jumps[rank_id]["pos"] - 1 if rank_id in job.counter_jumps else -1)
    return int((job.calls_of(rank_id)["pos"].tail(most) > last).sum())
