"""Judge a job by its Flight Recorder dumps: other calls, ranks that did not come, orders that block each other.

The dumps of a job that runs look like those of one that stands still, so no verdict on who did not come is certain. A
missing dump accuses no rank by more than a possibility: a dump can hang, too, and a rank in teardown writes none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING

import polars as pl

from ncclforensics.analyses.job.text.torch_text import minority_of
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.sources.recorder_open import (
    SHOWN,
    cite,
    communicator_of,
    described,
    diagnose,
    find_common_call,
    find_open_messages,
    find_rank_without_dump,
    find_ranks_not_begun,
    find_ranks_unclear,
    place_text,
    request,
    set_call,
    stand_text,
    with_dumps,
)
from ncclforensics.analyses.verdict.vocabulary import Basis, How, Kind
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.torch_calls import EQUAL_SIZED
from ncclforensics.data.variables import STACKS_OF_HOST, stacks_of

if TYPE_CHECKING:
    from ncclforensics.analyses.hang.recorder_graph import Recordings
    from ncclforensics.analyses.hang.recorder_roots import Roots
    from ncclforensics.analyses.job.text.recorder_groups import Place, RecordedCall

MINUTE = 60_000_000_000  # nanoseconds
GENERAL_REQUEST = "collect the Flight Recorder dumps of each host"


@with_dumps
def find_recorded_mismatch(job: Job, recordings: Recordings) -> Explanation | None:
    """Find ranks that made another call than the rest of their process group as the same collective."""
    for group in recordings.positions:
        for sequence in _compared_numbers(recordings, group):
            called = recordings.collectives_at(group, sequence)
            for field, values in _compared_values(called):
                if len(set(values.values())) > 1:
                    return _diagnose_mismatch(job, recordings, (group, sequence), field, values, called)
    return None


def _compared_numbers(recordings: Recordings, group: str) -> list[int]:
    """The collectives of a group that may have failed: the oldest open one, and the last."""
    rows = recordings.positions[group]
    open_numbers = [
        call.number
        for rank in rows
        for call in recordings.open_calls.get(rank, [])
        if call.group == group and not call.is_p2p
    ]
    return sorted({min(open_numbers, default=0), max(recordings.enqueued(group, rank) for rank in rows)})


def _compared_values(called: dict[int, list[RecordedCall]]) -> Iterable[tuple[str, dict[int, object]]]:
    """The properties that must be equal on all ranks, the most telling first: property -> rank -> value."""
    yield "name", {rank: tuple(sorted({str(row.name) for row in rows})) for rank, rows in called.items()}
    if all(row.name in EQUAL_SIZED for rows in called.values() for row in rows):
        yield "count", {rank: sum(row.elements or 0 for row in rows) for rank, rows in called.items()}
        yield "datatype", {rank: tuple(sorted({str(row.dtypes) for row in rows})) for rank, rows in called.items()}


def _diagnose_mismatch(
    job: Job,
    recordings: Recordings,
    collective: Place,
    field: str,
    values: dict[int, object],
    called: dict[int, list[RecordedCall]],
) -> Explanation:
    group, sequence = collective
    outliers = minority_of(values)
    has_majority = len(outliers) < len(values)
    if not has_majority:
        outliers = _unlike_sister_groups(recordings, group, sequence, field, values) or outliers
    others = [rank for rank in called if rank not in outliers]
    place = f"collective {sequence} of {recordings.group_text(group)}"
    alike: dict[object, list[int]] = {}
    for rank in [*outliers, *others]:
        alike.setdefault(values[rank], []).append(rank)
    first, *rest = alike.values()
    own = f" ({ranks_text(first)})" if len(first) < len(outliers) else ""
    parts = [f"called {described(called[first[0]][0], with_size=True)} as {place}{own}"]
    parts += [f"{ranks_text(ranks)} {described(called[ranks[0]][0], with_size=True)}" for ranks in rest[:SHOWN]]
    if not has_majority and others:
        parts.append(f"the ranks of the other groups make the same call as {ranks_text(others)}")
    is_complete = recordings.is_listed(group) and set(recordings.members[group]) <= set(called)
    diagnosis = diagnose(job, Kind.MISMATCH, "; ".join(parts), outliers)
    diagnosis.doubts = [] if is_complete and has_majority else [Doubt.PARTLY_COMPARED]
    if not (others or is_complete):  # those of which there is no dump may show which is right
        diagnosis.claim = f"of {ranks_text(outliers)}, one {diagnosis.claim}"
        diagnosis.culprits, diagnosis.missing, diagnosis.suspects = [], [], outliers
        diagnosis.collect = [request(recordings.noun, "one more rank of this process group")]
    diagnosis.how, diagnosis.fields = (How.ANOTHER if field == "name" else How.ARGUMENTS), [field]
    set_call(diagnosis, called[(others or outliers)[0]][0])
    cite(job, diagnosis, minority=[called[rank][0] for rank in outliers], majority=[called[rank][0] for rank in others])
    return diagnosis


def _unlike_sister_groups(
    recordings: Recordings, group: str, sequence: int, field: str, values: dict[int, object]
) -> list[int]:
    """The ranks of a group without a majority that differ from what all ranks of the sister groups called there."""
    called = recordings.in_sister_groups(group, sequence)
    usual = {value for name, found in _compared_values(called) if name == field for value in found.values()}
    outliers = sorted(rank for rank, value in values.items() if value not in usual)
    return outliers if len(usual) == 1 and len(called) > 1 and len(outliers) < len(values) else []


@with_dumps
def find_recorded_roots(job: Job, recordings: Recordings) -> Explanation | None:
    """Find the ranks that all others wait for in the end, or that wait for each other."""
    roots = job.recorded_roots
    if roots.unfinished or (roots.lagging and not _may_wait_unrecorded(recordings, roots)):
        return _diagnose_roots(job, recordings, roots)
    return _diagnose_cycle(job, recordings, roots) if roots.cycle else None


def _may_wait_unrecorded(recordings: Recordings, roots: Roots) -> bool:
    """Whether one lagging rank may wait for another in a message: gloo's are not recorded before torch 2.14."""
    return len(roots.lagging) > 1 and recordings.may_lack_messages


@with_dumps
def find_several_absent(job: Job, recordings: Recordings) -> Explanation | None:
    """Judge several ranks that did not come, of which one may wait for another unseen.

    All of them are possible culprits if most ranks came; else the ranks may be stages that wait for each other.
    """
    if not _may_wait_unrecorded(recordings, job.recorded_roots):
        return None
    lagging = job.recorded_roots.lagging
    diagnosis = _diagnose_roots(job, recordings, job.recorded_roots)
    unseen = "one may wait for another in a recv that gloo did not record"
    if 2 * len(lagging) < len(recordings.dumps):
        diagnosis.doubt(Doubt.UNSEEN_MESSAGE, unseen)
    else:
        diagnosis.verdict, diagnosis.culprits, diagnosis.missing = Kind.UNDECIDABLE, [], []
        diagnosis.claim = f"{ranks_text(lagging)} {diagnosis.claim}"
        diagnosis.remarks.append(unseen)
    diagnosis.collect = [stacks_of(ranks_text(lagging))]
    return diagnosis


def _diagnose_roots(job: Job, recordings: Recordings, roots: Roots) -> Explanation:
    waiting = _calls_waiting_for(recordings, roots.lagging)
    reasons = [_describe_unfinished(recordings, roots.unfinished)] if roots.unfinished else []
    if roots.lagging:
        reasons.append(_describe_lagging(recordings, roots.lagging, waiting))
    verdict = Kind.UNMATCHED if roots.is_message and not roots.unfinished else Kind.LAGGING
    diagnosis = diagnose(job, verdict, "; ".join(reasons), [*roots.lagging, *roots.unfinished])
    diagnosis.key = communicator_of(job, recordings, diagnosis)
    if not roots.lagging:
        diagnosis.how = How.UNFINISHED
        set_call(diagnosis, recordings.blocking(roots.unfinished[0]))
    elif waiting:
        set_call(diagnosis, waiting[0])
    for rank in [*roots.unfinished, *roots.lagging][: 2 * SHOWN]:
        call = recordings.blocking(rank) if rank in roots.unfinished else recordings.last_call(rank)
        job.cite(diagnosis, culprit=[call or recordings.head(rank)])
    cite(job, diagnosis, waiting=waiting)
    if recordings.without_dump:
        diagnosis.collect = [request(recordings.noun, ranks_text(recordings.without_dump))]
    return diagnosis


def _calls_waiting_for(recordings: Recordings, ranks: list[int]) -> list[RecordedCall]:
    """The calls at which others stand and wait for one of these ranks, the first in the order of the program first."""
    waiting = [call for call in recordings.waiting_for(ranks) if call.rank not in ranks]
    places = sorted({(call.family, call.number) for call in waiting if not call.is_p2p})
    later: set[Place] = set()
    for pair in combinations(places, 2):
        orders = set(_called_first(recordings, *pair).values())
        later |= set(pair) - orders if len(orders) == 1 else set()
    return sorted(waiting, key=lambda call: (call.is_p2p, (call.family, call.number) in later))


def _describe_lagging(recordings: Recordings, ranks: list[int], waiting: list[RecordedCall]) -> str:
    if not waiting:
        return "made fewer collectives than other members"
    call = waiting[0]
    there = [row.rank for row in waiting if row.collective == call.collective]
    if call.is_p2p:
        text = f"did not make the call that matches {described(call)} of rank {call.rank}"
    else:
        text = f"did not call {call.name}, {place_text(recordings, call)}, at which {stand_text(there)}"
        text += f" (called from {call.called_from})" if call.called_from else ""
    last: dict[str, list[int]] = defaultdict(list)
    for rank in ranks[:SHOWN]:
        if row := recordings.last_call(rank):
            is_open = "open" if row.is_open else "over"
            last[f"last called {described(row)}, {place_text(recordings, row)}, and it is {is_open}"].append(rank)
    return "; ".join([text, *(f"{ranks_text(numbers)} {what}" for what, numbers in last.items())])


def _describe_unfinished(recordings: Recordings, ranks: list[int]) -> str:
    parts = []
    for rank in ranks[:SHOWN]:
        if call := recordings.blocking(rank):
            completed = ranks_text(recordings.standing(*call.collective).completed)
            place = f"{described(call)}, {place_text(recordings, call)}"
            parts.append(f"rank {rank} in {place}, which {completed} completed")
    return (
        "did not complete a call that other members completed with their part of it, so a GPU, or the thread that"
        f" watches it, stopped there: {'; '.join(parts)}"
    )


def _diagnose_cycle(job: Job, recordings: Recordings, roots: Roots) -> Explanation:
    """Judge ranks that wait for each other in the calls of several groups, or in messages."""
    standing = [call for rank in roots.cycle if (call := recordings.blocking(rank, with_messages=True))]
    where = _standing_texts(recordings, standing)
    if roots.is_message_cycle:
        reason = "each waits for a message of the next, and none is at the matching call: " + "; ".join(where[:SHOWN])
        # In one line of the program all are at fault; in several, one rank may have left out an earlier message.
        is_one_line = len({call.called_from for call in standing} - {None}) == 1
        diagnosis = diagnose(job, Kind.UNMATCHED, reason, roots.cycle if is_one_line else [])
        if not is_one_line:
            diagnosis.remarks.append("which of them left out a message, their dumps do not show")
            diagnosis.collect = [stacks_of(ranks_text(roots.cycle))]
    else:
        outliers = _ranks_in_another_order(recordings, roots.cycle)
        reason = "called the collectives of several process groups in another order: " + "; ".join(where[: 2 * SHOWN])
        diagnosis = diagnose(job, Kind.DEADLOCK, reason, outliers)
    diagnosis.doubts, diagnosis.key = [Doubt.DUMPS_OF_ANOTHER_MOMENT], communicator_of(job, recordings, diagnosis)
    diagnosis.basis = Basis.DUMPS
    of_culprits = [call for call in standing if call.rank in job.numbers_blamed(diagnosis)]
    set_call(diagnosis, next((call for call in standing if call not in of_culprits), standing[0] if standing else None))
    return cite(job, diagnosis, culprit=of_culprits, waiting=[call for call in standing if call not in of_culprits])


def _ranks_in_another_order(recordings: Recordings, cycle: list[int]) -> list[int]:
    """Return the ranks of a cycle that called two collectives in another order than most; without a majority, all.

    Ranks of one program use groups of one family in one order, whatever the names of the groups.
    """
    outliers: set[int] = set()
    differing: set[int] = set()
    pairs: set[frozenset[Place]] = set()
    for waiter in cycle:
        awaited = recordings.blocking(waiter)
        for rank in set(recordings.targets(waiter)) & set(cycle):
            own = recordings.blocking(rank)
            if awaited and own and not awaited.is_p2p and not own.is_p2p:
                pairs.add(frozenset((call.family, call.number) for call in (awaited, own)))
    for pair in pairs:
        if len(pair) == 2:
            orders = _called_first(recordings, *sorted(pair))
            minority = minority_of(orders)
            (outliers if len(minority) < len(orders) else differing).update(minority)
    return sorted((outliers or differing) & set(cycle))


def _called_first(recordings: Recordings, first: Place, second: Place) -> dict[int, Place]:
    """Rank -> which of two collectives, by family and number, it called first; ranks that made neither are left out.

    Where one is recorded alone, the rank stands before the other.
    """
    is_there = pl.any_horizontal(
        (pl.col("family") == family) & (pl.col("sequence") == number) for family, number in (first, second)
    )
    lines: dict[int, dict[Place, int]] = defaultdict(dict)
    found = recordings.calls.filter(is_there & ~pl.col("is_p2p")).select("rank", "family", "sequence", "line")
    for rank, family, number, line in found.iter_rows():
        lines[rank].setdefault((family, number), line)
    return {rank: min(seen, key=lambda place: seen[place]) for rank, seen in lines.items()}


def _standing_texts(recordings: Recordings, calls: list[RecordedCall]) -> list[str]:
    """Say in which call each rank stands; what is the same for all of them, once."""
    texts = [described(call) for call in calls]
    if len(set(texts)) > 1 or len(texts) < 2:
        ranks: dict[str, list[int]] = defaultdict(list)
        for call, text in zip(calls, texts, strict=True):
            ranks[f"{text}, {place_text(recordings, call)}"].append(call.rank)
        return [f"{stand_text(numbers)} in {where}" for where, numbers in ranks.items()]
    first, *others = [f"rank {call.rank} in {place_text(recordings, call)}" for call in calls]
    return [f"all stand in {texts[0]}, {first}", *others]


# What is asked where the dumps name no rank; in this order.
OPEN_QUESTIONS = (
    find_rank_without_dump,
    find_several_absent,
    find_open_messages,
    find_ranks_unclear,
    find_ranks_not_begun,
    find_common_call,
)


@with_dumps
def find_nothing_open(job: Job, recordings: Recordings) -> Explanation | None:
    """Conclude that no rank waits in a call: every recorded call is over, and all ranks made the same number."""
    positions = [(group, rank) for group, rows in recordings.positions.items() for rank in rows]
    is_open = any(recordings.open_calls.values()) or any(
        recordings.completed(*place) < recordings.enqueued(*place) for place in positions
    )
    are_equal = all(
        len({recordings.enqueued(group, rank) for rank in rows}) == 1 for group, rows in recordings.positions.items()
    )
    if is_open or not are_equal or not positions:
        return None
    reason = (
        f"in the {recordings.noun}s of {count_of(len(recordings.dumps), 'rank')} every call is over, and none made"
        " fewer than others"
    )
    diagnosis = Explanation(Kind.NO_HANG, reason, [Doubt.DUMPS_OF_ANOTHER_MOMENT])
    if recordings.without_dump:
        absent = ranks_text(recordings.without_dump)
        diagnosis.verdict = Kind.UNDECIDABLE
        diagnosis.remarks.append(f"of {absent} no {recordings.noun} shows whether they wait for these")
        diagnosis.collect = [request(recordings.noun, absent)]
    elif recordings.may_lack_messages:
        diagnosis.verdict = Kind.UNDECIDABLE
        diagnosis.remarks.append("gloo did not record its messages, in which a rank may wait")
        diagnosis.collect = [f"while it stands still, take all stacks on each host: `{STACKS_OF_HOST}`"]
    return job.cite(diagnosis, context=[recordings.head(rank) for rank in sorted(recordings.dumps)[:SHOWN]])


def mention_old_dumps(job: Job, diagnosis: Explanation) -> None:
    """Say which dumps do not count: those of an earlier attempt, or of an earlier moment than the logs."""
    for remark in job.left_out:
        diagnosis.remarks.append(remark)
    if not job.text.old_dumps:
        return
    from ncclforensics.analyses.hang.recorder_graph import noun_of  # most jobs have no dumps
    from ncclforensics.analyses.job.text.recorder_attempts import LONG_AFTER

    ranks = ranks_text(row["rank"] for row in job.text.old_dumps)
    least = min(row["older_ns"] for row in job.text.old_dumps)
    are_before_run = all(row["is_before_run"] for row in job.text.old_dumps)
    than = "the first communicator in the logs" if are_before_run else "the others"
    age = f"at least {count_of(least // MINUTE, 'minute')} older than {than}"
    reason = f"the dumps of {ranks} do not count: they are "
    if least == 0:
        reason += "of another job, whose process groups have other members"
    elif least > LONG_AFTER:
        reason += f"of an earlier attempt, {age}"
    else:
        reason += f"{age}, so that they are of an earlier attempt or by a clock that is off"
    diagnosis.remarks.append(reason)
    noun = noun_of(job.text.old_dumps)
    asked = [item for item in diagnosis.collect if item != request(noun, ranks)]
    diagnosis.collect = [*asked, request(noun, f"{ranks} of this attempt")]


def name_dumps(job: Job, diagnosis: Explanation) -> None:
    """Say where the dumps lie that a verdict asks for, as the logs print it; do not ask for dumps that are here."""
    is_general = [item.startswith(GENERAL_REQUEST) for item in diagnosis.collect]
    requests = [item for item, general in zip(diagnosis.collect, is_general, strict=True) if not general]
    if any(is_general) and job.recordings is None:
        prefixes = sorted({row["dump_path"].rstrip("0123456789") + "*" for row in job.text.of("recorder_file")})
        where = f"collect the Flight Recorder dumps that the ranks wrote on their hosts: `ls {' '.join(prefixes)}`"
        requests += [where] if prefixes else [item for item in diagnosis.collect if item.startswith(GENERAL_REQUEST)]
    diagnosis.collect = requests
