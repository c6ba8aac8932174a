"""What ranks without a log mean for a verdict: the ranks that have one may wait for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain

import polars as pl

from ncclforensics.analyses.job.calls.call_alignment import Gap
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.wait_cycle import skipped_or_lost
from ncclforensics.analyses.verdict.vocabulary import OF_ABSENCE, Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import COLLECT_CALLS, COLLECT_EVERY_LINE, COLLECT_INIT
from ncclforensics.frames.columns import Owner
from ncclforensics.frames.source_order import FIRST_STEPS

FEW_MISSING = 0.25  # of the ranks; where more have no log, the logs were not given


def judge_unseen_members(job: Job, key: str, unseen: list[int]) -> Explanation:
    """Judge an init in which all ranks that were heard wait, while some members (rank numbers) have no log.

    One of these did not come, or all; a single one, and all ranks of a host, are more likely missing than lost.
    """
    size, ranks = job.members[key][0].nranks, ranks_text(unseen)
    init = f"the init of the communicator of {size} ranks"
    waits, collect = f"the ranks in these logs wait in {init}", [f"collect the logs of {ranks}, from their beginning"]
    if any(job.count_lines(rank_id, "dropped") for rank_id in job.rank_ids):
        reason = f"{waits}; equal lines were printed once for all ranks, so those of {ranks} may be left out"
        return undecided(reason, COLLECT_EVERY_LINE)
    if with_files := sorted(set(unseen) & set(job.rank_numbers(job.rank_ids))):
        reason = f"{waits}; of {ranks_text(with_files)} other files are here, and no log"
    elif len(unseen) > 1 and not _are_whole_hosts(job, key, unseen):
        reason = f"{waits}, for at least one of {ranks}: there is no log of these"
    elif _begins_in_the_middle(job):
        reason = (
            f"{waits}; no line of {ranks} was read, but logs begin in the middle of the run, so lines may be missing"
        )
    else:
        empty = {row["hint"] for row in job.run.sources.values() if not row["lines"]} & {*unseen}
        no_log = f"the log of {ranks_text(sorted(empty))} is empty" if empty else f"there is no log of {ranks}"
        diagnosis = Explanation(
            Kind.RANK_MISSING, f"never joined {init}; {no_log}", [Doubt.INIT_GOES_ON], missing=unseen
        )
        if empty or len(unseen) > FEW_MISSING * size:
            diagnosis.doubt(Doubt.LOG_NOT_GIVEN)
        return diagnosis
    return undecided(reason, collect, suspects=unseen)


def _begins_in_the_middle(job: Job) -> bool:
    """Whether a log that several processes share lacks the first lines of some, and shows those of others."""
    began = {(row["host"], row["pid"]) for row in job.milestones if row["form"] in FIRST_STEPS}
    owners: dict[int, set[Owner]] = defaultdict(set)
    for owner, process in job.processes.items():
        for source in process["sources"]:
            owners[source].add(owner)
    return any(0 < len(own & began) < len(own) for own in owners.values())


def _are_whole_hosts(job: Job, key: str, unseen: list[int]) -> bool:
    """Whether these are the ranks of one host or several, if all have as many consecutive ranks as those heard."""
    sizes = Counter(Counter(job.rank_ids[row.rank_id].host for row in job.members[key]).values())
    (local, _), *others = sizes.most_common()
    runs = [unseen[start : start + local] for start in range(0, len(unseen), local)]
    are_aligned = all(run == list(range(run[0], run[0] + local)) and run[0] % local == 0 for run in runs)
    return not others and local > 1 and are_aligned


def find_missing_logs(job: Job) -> Explanation | None:
    """Find ranks without a log where the other ranks agree and none finished: these may wait for them."""
    if any(row.end == "Destroy" for row in job.memberships):
        return None
    if job.absent:
        absent, collect = f"a rank without a log: {ranks_text(job.absent)}", ranks_text(job.absent)
    elif None in {row.rank for row in job.rank_ids.values()} and (job.nranks or 0) > len(job.rank_ids):
        lacking = (job.nranks or 0) - len(job.rank_ids)
        absent = f"one of the {lacking} ranks without a log" if lacking > 1 else "the rank without a log"
        collect = f"all {job.nranks} ranks"
    else:
        return None
    shown = len(job.rank_ids)
    reason = (
        f"the {shown} ranks in these logs made the same calls, and no failure was read; if they stand still, they"
        if shown > 1
        else "these logs show the calls of one rank, and no failure was read; if it stands still, it"
    )
    reason = f"{reason} may wait for {absent}"
    last_calls = map(job.last_call, list(job.rank_ids)[:2])
    return undecided(reason, [f"collect the log of {collect}"], suspects=job.absent, context=last_calls)


def exclude_waiting_for_absent(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Drop culprits that may themselves wait for a rank whose calls no log shows; `undecidable` if none is left.

    A rank waits in its last call; if that is on a communicator with a member without a log, or with a log that shows no
    calls, it may wait for that one. Returns None where culprits are left.
    """
    if diagnosis.verdict not in OF_ABSENCE:
        return None
    may_wait = ranks_that_may_wait_for_hidden(job, diagnosis.culprits)
    if len(may_wait) < len(diagnosis.culprits):
        diagnosis.culprits = [rank_id for rank_id in diagnosis.culprits if rank_id not in may_wait]
        diagnosis.victims = sorted({*diagnosis.victims, *may_wait})
        return None
    without_calls = [rank_id for rank_id in job.rank_ids if not job.visibility[rank_id]["is_visible"]]
    silent, absent = ranks_text(job.rank_numbers(without_calls)), ranks_text(job.absent)
    hidden_members = {
        f"without a log ({absent})": [f"collect the log of {absent}"] * bool(absent),
        f"whose logs show no calls ({silent})": COLLECT_CALLS * bool(silent),
        "that no line here names": COLLECT_INIT * (not absent and not silent),
    }
    members = " and ".join(text for text, collect in hidden_members.items() if collect)
    reason = (
        f"the others wait for {job.names(diagnosis.culprits)}, which made fewer calls; but these may wait themselves: "
        f"their last call is on a communicator with members {members}"
    )
    collect, unless = chain.from_iterable(hidden_members.values()), f"they do not wait for members {members}"
    answer = undecided(reason, collect, diagnosis, suspects=job.absent, unless=unless)
    answer.victims, answer.key, answer.call = sorted(job.rank_ids), diagnosis.key, diagnosis.call
    return answer


def judge_waiting_before_init(job: Job, diagnosis: Explanation) -> Explanation:
    """Judge ranks that did not come to an init to which a rank without a log did not come either, as far as is known.

    What a program does before it begins an init, such as to meet the others in a store, waits for that rank, too.
    """
    absent, names = ranks_text(job.absent), job.names(diagnosis.culprits)
    reason = (
        f"neither {names} nor {absent} began the init that the others wait in, as far as these logs show: there is no "
        f"log of {absent}, and {names} may wait for it"
    )
    collect, unless = [f"collect the log of {absent}"], f"{absent} waits in this init, too"
    return undecided(reason, collect, diagnosis, suspects=job.absent, unless=unless)


def ranks_that_may_wait_for_hidden(job: Job, rank_ids: Iterable[int]) -> list[int]:
    """Return the ranks whose last call is on a communicator with a member whose calls no log shows."""
    last_calls = {rank_id: job.last_call(rank_id) for rank_id in rank_ids}
    is_shown = {rank_id for rank_id, row in job.visibility.items() if row["is_visible"]}  # its log would show its calls
    hidden = {
        key
        for key in {last.key for last in last_calls.values() if last}
        if job.count_unseen_members(key) > 0 or not is_shown.issuperset(job.seen_members(key))
    }
    return [rank_id for rank_id, last in last_calls.items() if last and last.key in hidden]


def doubt_left_out_calls(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Doubt a diagnosis of ranks behind by the calls that logs lack; return an undecided answer if it is open."""
    keys = {row.key for row in job.memberships if row.rank_id in diagnosis.culprits}
    gaps = [gap for gap in job.gaps if gap.is_lost is None and gap.missing > 0 and gap.key in keys]
    others = sorted({gap.rank_id for gap in gaps} - set(diagnosis.culprits))
    if others and _stand_in_a_communicator_of(job, diagnosis.culprits, gaps, others):
        return skipped_or_lost(job, others, diagnosis.culprits, diagnosis)
    if others:
        diagnosis.doubt(
            Doubt.LINE_LOST,
            f"but {job.names(others)} shows a call less on a communicator of theirs: if the "
            "rank left it out, and its log did not lose the line, their calls differ",
        )
    if diagnosis.verdict == Kind.LAGGING and (passed := _ranks_past_their_call(job, diagnosis.culprits)):
        diagnosis.culprits = [rank_id for rank_id in diagnosis.culprits if rank_id not in passed] or diagnosis.culprits
        shown = f"the log of {job.names(passed)} shows a call that the others made only after this one"
        diagnosis.doubt(Doubt.MADE_BEHIND, f"but {shown}, so it lacks lines before")
    return None


def _ranks_past_their_call(job: Job, culprits: list[int]) -> list[int]:
    """Return the ranks whose last call most others made only after the collective that these ranks lack.

    The others may have made it on communicators of their own: these are of the same index among those of their rank.
    """
    collectives = [edge for edge in reversed(job.awaited_calls) if edge.kind == "collective"]
    lacking = {rank_id: edge for edge in collectives for rank_id in edge.waits_for}
    calls = {rank_id: job.last_call(rank_id) for rank_id in culprits if rank_id in lacking}
    last = {rank_id: (call.key, call.nth) for rank_id, call in calls.items() if call and call.nth is not None}
    nths = {nth for rank_id, (_, last_nth) in last.items() for nth in (lacking[rank_id].nth, last_nth)}
    made: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (index, nth) -> rank id -> position
    near = job.calls.filter(pl.col("nth").is_in(sorted(nths)) & ~pl.col("rank_id").is_in(culprits))
    for rank_id, key, nth, position in near.select("rank_id", "key", "nth", "pos").iter_rows():
        made[job.communicator_index[rank_id, key], nth][rank_id] = position
    passed = []
    for rank_id, last_call in last.items():
        before, after = (
            made[job.communicator_index.get((rank_id, key), -1), nth]
            for key, nth in ((lacking[rank_id].key, lacking[rank_id].nth), last_call)
        )
        orders = [before[other] < after[other] for other in before.keys() & after.keys()]
        if sum(orders) * 2 > len(orders):
            passed.append(rank_id)
    return passed


def _stand_in_a_communicator_of(job: Job, culprits: list[int], gaps: list[Gap], left_out: list[int]) -> bool:
    """Whether each culprit's last call is on a communicator of which another log lacks a call."""
    keys = {gap.key for gap in gaps if gap.rank_id in left_out}
    return all((call := job.last_call(rank_id)) is not None and call.key in keys for rank_id in culprits)
