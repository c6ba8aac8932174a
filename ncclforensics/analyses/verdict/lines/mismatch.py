"""Find the first call on which the ranks of a communicator differ, the ranks that differ, and how.

Compare the nth collective of every member by name, count, datatype, op and root (formats: section 5.4). A skipped
or an extra call shifts all later ones. It may also leave the sequence of its communicator equal but shorter; then it
shows only in the order against calls on other communicators.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.hang.wait_graph import Edge
from ncclforensics.analyses.job.calls.call_alignment import Gap
from ncclforensics.analyses.verdict.axioms import OFTEN_AHEAD, RUN_AHEAD, SELDOM_AHEAD
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.job_rows import Called
from ncclforensics.analyses.verdict.lines import failures, line_differences, waiting
from ncclforensics.analyses.verdict.lines.stall import WEAK
from ncclforensics.analyses.verdict.vocabulary import OF_ABSENCE, How, Kind
from ncclforensics.data.variables import STACKS_OF_HOST, stacks_of

LOST_LINES = {Doubt.LINE_LOST, Doubt.ONLY_LINE_LOST}
FIELDS = ("name", *line_differences.ARGUMENTS)


def find_divergent_calls(job: Job) -> Explanation | None:
    """Find the first call on which the members of a communicator differ."""
    candidates = _differences(job)
    proven = [diagnosis for diagnosis in candidates if not line_differences.may_be_lost(job, diagnosis)]
    if not candidates or job.is_finished or (not proven and _find_lost_lines(job, candidates)):
        return None  # a rank that left out a call would not have come to the end of the job
    candidates = proven or candidates

    def place(diagnosis: Explanation) -> tuple[bool, int]:
        lines = [cited.line for cited in diagnosis.evidence_lines if cited.what == "minority"]
        return not diagnosis.culprits, min(lines, default=0)

    earliest = min(candidates, key=place)  # of several communicators on which calls differ: there is the cause
    done = line_differences.by_collector(job, earliest)
    is_altered = bool(done) and earliest.how is not How.SKIPPED
    if (is_altered or not LOST_LINES.isdisjoint(earliest.doubts)) and line_differences.has_other_fault(job, earliest):
        return None  # what a collector did leaves only that fault to explain
    if done and (answer := line_differences.decide_between(job, earliest, done)):
        return answer
    earliest.victims = [rank_id for rank_id in job.rank_ids if rank_id not in earliest.culprits]
    key = str(earliest.key)
    callers = {row.rank_id for row in job.collectives_at(key, job.divergence.get(key, -1))}
    has_no_majority = callers == set(earliest.culprits)
    if has_no_majority:
        earliest.doubt(Doubt.RIGHT_AND_WRONG)
    if job.count_unseen_members(key) or (has_no_majority and len(callers) < len(job.members[key])):
        earliest.doubt(Doubt.MEMBER_UNSEEN)
        if has_no_majority:
            earliest.claim = f"{job.names(earliest.culprits)} {earliest.claim}"
            earliest.remarks.append("no log of another member shows which is right")
            earliest.culprits, earliest.collect = [], ["collect the log of one more member of this communicator"]
    if any(row.is_inferred for row in job.members[key]):  # without a majority, they may be several
        earliest.doubt(Doubt.MEMBERS_GUESSED if has_no_majority else Doubt.MEMBERS_INFERRED)
    # Lines that other logs lost make no call that stands nowhere else.
    is_damaged = not proven and any(gap.rank_id not in earliest.culprits for gap in job.gaps if gap.nth)
    if is_damaged or any(job.may_lack_lines(rank_id) for rank_id in earliest.culprits):
        earliest.doubt(Doubt.LINES_MISSING)
    if line_differences.repeats_previous(job, earliest):
        earliest.remarks.append(
            "it is the same as the call before it, so a log collector may have delivered a line twice"
        )
        # A line that came twice stops no job.
        has_stopped = not WEAK.issuperset(job.stall_evidence)
        earliest.doubt(Doubt.LINE_DOUBLED_AND_STOPPED if has_stopped else Doubt.LINE_DOUBLED)
    if earliest.culprits and line_differences.made_the_same(job, earliest):
        earliest.doubt(
            Doubt.LINES_REORDERED, "yet it made as many calls of each kind as the others, so lines may be out of order"
        )
    return earliest


def find_lost_calls(job: Job) -> Explanation | None:
    """Answer where calls differ at several places, as where a log collector loses lines.

    Asked behind what shows a fault without the order of calls, such as a process that ended.
    """
    candidates = _differences(job)
    is_open = bool(candidates) and not job.is_finished
    rank_ids = _find_lost_lines(job, candidates) if is_open else set()
    return _answer_lost_lines(job, rank_ids, candidates) if rank_ids else None


def _differences(job: Job) -> list[Explanation]:
    """Judge each communicator whose members differ on a call; where none do, those whose members skipped one."""
    if job.differences is None:
        job.differences = _judge_differences(job)
    return job.differences


def _judge_differences(job: Job) -> list[Explanation]:
    if job.divergence:
        return [_judge_divergence(job, key, nth) for key, nth in job.divergence.items() if not _went_on(job, key, nth)]
    collectives: dict[str, list[Edge]] = {}
    for edge in job.awaited_calls:
        if edge.kind == "collective":
            collectives.setdefault(edge.key, []).append(edge)
    judged = [_judge_skipped_call(job, key, edges) for key, edges in sorted(collectives.items())]
    return [diagnosis for diagnosis in judged if diagnosis is not None]


def _went_on(job: Job, key: str, nth: int) -> bool:
    """Whether all members made more than RUN_AHEAD collectives behind this one.

    More than a host can enqueue behind a call that does not end: lines were lost there, in more places than can be
    aligned, or NCCL took calls that differ for one, which it does where they move data alike. None stops the job.
    """
    return all(made > nth + RUN_AHEAD for made in job.made_by_members(key))


def differing_call_of_ended_run(job: Job) -> Explanation | None:
    """Return a call that ranks made differently in a run that ended in order, if lost lines hardly explain it.

    NCCL compares no calls: on an H100 an AllReduce of another datatype, of more elements, and a Broadcast beside
    AllReduce all ended (2.28.9), with wrong results. All members made as many calls, so that no line was lost alone.
    """
    for key, nth in job.divergence.items():
        judged = _judge_divergence(job, key, nth)
        if len({*job.made_by_members(key)}) == 1 and judged.how is not How.EXTRA and not judged.doubts:
            judged.claim = f"{job.names(judged.culprits)} {judged.claim}"
            return judged
    return None


def _judge_divergence(job: Job, key: str, nth: int) -> Explanation:
    groups: dict[int, list[Called]] = defaultdict(list)
    for row in job.collectives_at(key, nth):
        groups[row.signature].append(row)
    majority = _majority_signature(job, key, nth, groups)
    differing = [row for signature, rows in groups.items() if signature != majority for row in rows]
    if majority is not None and len(groups) > 2:
        before = {row.rank_id: row.signature for row in job.collectives_at(key, nth - 1)}
        # Of calls that differ in two ways, one like that before it may be a line that came twice.
        differing = [row for row in differing if before.get(row.rank_id) != row.signature] or differing
    culprits = sorted({row.rank_id for row in differing})
    majority_call = (groups[majority] if majority is not None else next(iter(groups.values())))[0]
    minority_call = differing[0] if majority is not None else list(groups.values())[1][0]
    how = line_differences.classify_difference(job, majority_call, minority_call)
    call = majority_call if how is not How.EXTRA or majority is not None else minority_call
    diagnosis = Explanation(Kind.MISMATCH, "", culprits=culprits, key=key, call=call, nth=nth, how=how)
    diagnosis.fields = [name for name in FIELDS if getattr(majority_call, name) != getattr(minority_call, name)]
    # A line that one of the majority lost leaves as many on the other side, unless the counter shows it.
    margin = 0 if line_differences.counts_every_call(job) else 1
    if majority is not None and len(groups[majority]) <= len(differing) + margin:
        diagnosis.doubt(Doubt.NO_MAJORITY)
    if majority is not None and len(groups[majority]) <= len(differing):
        names = job.names(row.rank_id for row in groups[majority])
        diagnosis.remarks.append(f"in the same place the communicators of other ranks made the call of {names}")
    if majority is not None and line_differences.differing_behind(job, key, nth, culprits):
        diagnosis.doubt(Doubt.OTHERS_DIFFER, "the calls of others differ behind it, too, as where lines are lost")
    if not line_differences.counts_every_call(job) and (
        lacking := line_differences.lacking_stretch(job, majority_call, minority_call)
    ):
        lost = Doubt.ONLY_LINE_LOST if lacking < OFTEN_AHEAD else Doubt.LINE_LOST
        diagnosis.doubt(lost, "its calls are those that the others made later, as where lines are lost" * (lacking > 1))
    describe = line_differences.describe_difference
    if majority is not None:
        diagnosis.claim = describe(how, minority_call, majority_call)
    elif how in (How.SKIPPED, How.EXTRA):
        text = line_differences.call_text(call)
        diagnosis.claim = f"differ by one {text}: one skipped it, or the other made one more"
    else:
        diagnosis.claim = f"differ: some {describe(how, minority_call, majority_call, 'others')}"
    diagnosis.add_evidence(minority=differing[:4])
    agreeing = groups[majority][:2] if majority is not None else [majority_call]
    return diagnosis.add_evidence(majority=agreeing)


def find_skipped_or_lost_call(job: Job) -> Explanation | None:
    """Find a call that one log lacks while all agree before and after it: skipped by the rank, or its line was lost.

    Asked last: where another fault explains why the job stopped, a lost line is the simpler explanation.
    """
    gaps = [gap for gap in job.gaps if gap.is_lost is None and gap.later <= OFTEN_AHEAD]
    return _skipped_or_lost(job, gaps)


def _skipped_or_lost(job: Job, gaps: list[Gap]) -> Explanation | None:
    if not gaps or job.is_finished:
        return None
    first = min(gaps, key=lambda gap: gap.nth)
    calls = job.collectives_at(first.key, first.nth)
    if not calls:
        return None
    skipped = line_differences.call_text(calls[0])
    claim = f"skipped {skipped}, or its line was lost from the log: the counter of this version does not tell"
    diagnosis = job.explanation_of(Kind.MISMATCH, claim, (gap.rank_id for gap in gaps), Doubt.LINE_LOST)
    diagnosis.key, diagnosis.call, diagnosis.how = first.key, calls[0], How.SKIPPED
    diagnosis.collect = [
        f"compare its stack with one of another rank, which a rank that skipped a call is ahead of: `{STACKS_OF_HOST}`"
    ]
    after = job.collectives_at(first.key, first.nth + first.missing)
    return diagnosis.add_evidence(minority=[row for row in after if row.rank_id == first.rank_id], majority=calls[:2])


def _majority_signature(job: Job, key: str, nth: int, groups: dict[int, list[Called]]) -> int | None:
    """Return the signature of most members, or in a tie that of the sister communicators; None if still undecided."""
    sizes = sorted(((len(rows), signature) for signature, rows in groups.items()), reverse=True)
    if sizes[0][0] > sizes[1][0]:
        return sizes[0][1]
    sample = next(iter(groups.values()))[0]
    index, nranks = job.communicator_index[sample.rank_id, key], sample.nranks
    sister_keys = [
        sister
        for sister, rows in job.members.items()
        if sister != key and rows[0].nranks == nranks and job.communicator_index[rows[0].rank_id, sister] == index
    ]
    expected = set(job.signatures(sister_keys).filter(pl.col("nth") == nth)["signature"])
    agreed_signatures = expected & set(groups)
    return agreed_signatures.pop() if len(expected) == 1 and agreed_signatures else None


def _judge_skipped_call(job: Job, key: str, edges: list[Edge]) -> Explanation | None:
    """Judge a call that some members lack although they made later ones: skipped by them, or extra on the others.

    `edges`: the awaited collectives of the communicator.
    """
    nth = min(edge.nth for edge in edges)
    calls = job.collectives_at(key, nth)
    callers = {row.rank_id for row in calls}
    passed_by = sorted({rank_id for edge in edges if edge.nth == nth for rank_id in edge.waits_for})
    made_by_callers = [line_differences.call_tokens(job.calls_of(rank_id), job) for rank_id in sorted(callers)[:3]]
    for rank_id in passed_by:
        made = line_differences.call_tokens(job.calls_of(rank_id), job)
        if not any(line_differences.went_past(key, nth, made_by_caller, made) for made_by_caller in made_by_callers):
            return None  # this rank has only not reached the call
    if len(passed_by) == len(callers):
        return None  # a tie: either side may be right
    is_skipped, skipping = len(passed_by) < len(callers), set(passed_by)
    if is_skipped and any(edge.waiter in skipping and not skipping.issuperset(edge.waits_for) for edge in job.waits):
        return None  # its line may be lost, and a rank that it waits for explains the hang without that
    text = line_differences.call_text(calls[0])
    last_calls = [row for rank_id in passed_by[:4] if (row := job.last_call(rank_id)) is not None]
    if is_skipped:
        claim, doubt = f"made later calls but not this one: {text} is missing from its sequence", Doubt.LINE_LOST
        culprits, minority, majority = passed_by, last_calls, calls
    else:
        claim, doubt = f"made one more {text} than the others, which continued without it", Doubt.ONLY_LINE_LOST
        culprits, minority, majority = sorted(callers), calls, last_calls
    how = How.SKIPPED if is_skipped else How.EXTRA
    diagnosis = Explanation(Kind.MISMATCH, claim, [doubt], culprits=culprits, key=key, call=calls[0], nth=nth, how=how)
    return diagnosis.add_evidence(minority=minority[:4], majority=majority[:2])


def _find_lost_lines(job: Job, differences: list[Explanation]) -> set[int]:
    """Return the ranks whose logs lack lines, where the differences may be lost lines, too; else an empty set.

    Each of them lacks a call that others made, or has one more. One rank that does shows a fault of the program; others
    that do as well, at other places, show lost lines. A counter that counts every call tells it of each rank.
    """
    culprits = {rank_id for diagnosis in differences for rank_id in diagnosis.culprits}
    # Of a culprit, only the counter tells: it may have left out calls on several communicators.
    gaps = [gap for gap in job.gaps if gap.nth and gap.missing > 0]
    lacking = {gap.rank_id for gap in gaps if gap.is_lost or gap.rank_id not in culprits}
    lacking |= set(job.counter_jumps)
    if line_differences.counts_every_call(job):
        return lacking if lacking & culprits else set()
    places = {diagnosis.nth for diagnosis in differences}
    shared = set.intersection(*(set(diagnosis.culprits) for diagnosis in differences))
    return culprits | lacking if lacking or (len(places) > 1 and not shared) else set()


def _answer_lost_lines(job: Job, rank_ids: set[int], differences: list[Explanation]) -> Explanation:
    """Answer that lines of calls were lost, so that no rank can be said to have left the program."""
    reason = (
        f"calls differ in the logs of {job.names(rank_ids)} as where a log collector loses lines: one rank that leaves "
        "out a call does not make them differ like this"
    )
    between = [
        Alternative(difference.verdict, difference.culprits, "the other logs lost lines") for difference in differences
    ]
    answer = undecided(reason, line_differences.COLLECT_AS_WRITTEN, between=between)
    for difference in differences[:2]:
        answer.add_evidence(context=difference.evidence_lines[:2])
    return answer


def find_by_lines(job: Job) -> Explanation | None:
    """Find the ranks that the others wait for; where these are one whole communicator, prefer a call skipped there.

    A skipped call stops all members of its communicator at once, some calls later. That a line was lost from one of
    their logs, and all of them stopped together for another reason, would be a coincidence. Where the counter shows
    that the line was lost, the call may have been another one than theirs, and nothing tells whose.
    """
    waited_for = waiting.find_waited_for_ranks(job)
    if waited_for is not None and waited_for.verdict is Kind.LAGGING:
        failed_call = failures.find_failed_call(job, waited_for.culprits)
        if failed_call is not None:
            return failed_call
    is_altered = any(
        found.how is not How.SKIPPED and line_differences.by_collector(job, found) for found in _differences(job)
    )
    if waited_for is not None and is_altered:
        waited_for.doubt(Doubt.LINES_AS_WRITTEN, "and another rank made other calls, or its lines came twice or moved")
    if waited_for is None or waited_for.verdict not in OF_ABSENCE or len(waited_for.culprits) < 2:
        return waited_for
    stopped = set(waited_for.culprits)
    near = [
        gap for gap in job.gaps if gap.is_lost is not False and gap.later <= SELDOM_AHEAD and gap.rank_id in stopped
    ]
    gaps = [gap for gap in near if _are_one_communicator(job, stopped, gap.key)]
    if losing := sorted({gap.rank_id for gap in gaps if gap.is_lost}):
        return _behind_lost_line(job, losing, waited_for)
    skipped = _skipped_or_lost(job, gaps)
    if skipped is None or len(skipped.culprits) * 2 > len(stopped):
        return waited_for
    skipped.remarks.append(f"{job.names(stopped)} stopped behind it, and the others wait for them")
    return skipped


def _behind_lost_line(job: Job, losing: list[int], waited_for: Explanation) -> Explanation:
    """Answer where all members of a communicator stopped behind a call of theirs whose line one log lost."""
    names, lacking = job.names(waited_for.culprits), job.names(losing)
    reason = (
        f"the others wait for {names}, all ranks of one communicator, which stopped together; the log of {lacking} "
        "lost the line of a call there, so that it is not known whether their calls differed"
    )
    others = job.names(set(waited_for.culprits).difference(losing))
    between = [Alternative(Kind.MISMATCH, losing, f"the call whose line is lost differed from that of {others}")]
    collect, unless = [stacks_of(names)], "none of their calls differed"
    return undecided(reason, collect, waited_for, unless=unless, between=between)


def _are_one_communicator(job: Job, rank_ids: set[int], key: str) -> bool:
    """Whether these are all members of a communicator, or of one of several that nothing tells apart."""
    members = job.members[key]
    seen = {row.rank_id for row in members}
    return rank_ids == seen or (rank_ids < seen and len(rank_ids) == members[0].nranks)
