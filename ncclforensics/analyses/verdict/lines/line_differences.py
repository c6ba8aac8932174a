"""Whether a difference of calls may be one of their lines alone: lost, delivered twice, or in another order.

A collector does that to the lines of any rank, beside whatever stopped the job. Where something else explains that, or
other ranks differ as well, the ranks of such a difference are not the sure ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain, takewhile

import polars as pl

from ncclforensics.analyses.job.calls.call_alignment import ENOUGH
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.job_rows import Called
from ncclforensics.analyses.verdict.lines import waiting
from ncclforensics.analyses.verdict.vocabulary import How, Kind
from ncclforensics.data.names import argument_text, count_of
from ncclforensics.data.versions import count_every_call, releases
from ncclforensics.frames.columns import text_of

ARGUMENTS = ("count", "datatype", "op", "root")
COMPARED_CALLS = 500  # compared after the divergence

Token = tuple[int, int]  # the communicator's index on this rank, signature of the call
Made = dict[tuple[str, int], Token]  # communicator, number on it -> token, in the order of the calls


def went_past(key: str, nth: int, maker: Made, lacking: Made) -> bool:
    """Whether `lacking` made calls that `maker` made only after its nth collective on this communicator."""
    if (key, nth) not in maker:
        return False
    places, expected = [*maker], [*maker.values()]
    position = places.index((key, nth))
    after = expected[position + 1 :]
    following = [*lacking.values()][
        max((index + 1 for index, place in enumerate(lacking) if place[0] == key), default=0) :
    ]
    last_common = max((index for index in range(position) if places[index][0] == key), default=-1)
    in_between = expected[last_common + 1 : position]
    if in_between[: len(following)] == following:
        return False  # it has not come to the calls right before this one
    remaining = following[len(in_between) :] if following[: len(in_between)] == in_between else following
    return bool(remaining) and bool(after) and remaining[0] == after[0] and expected[position] not in remaining[:1]


def call_tokens(calls: pl.DataFrame, job: Job) -> Made:
    """Return the last collectives of one rank as tokens that are equal for equal calls."""
    last = calls.filter(pl.col("nth").is_not_null()).tail(COMPARED_CALLS)
    rows = last.select("rank_id", text_of("key"), "nth", job.signatures_of(last)).iter_rows()
    return {(key, nth): (job.communicator_index[rank_id, key], signature) for rank_id, key, nth, signature in rows}


def classify_difference(job: Job, majority_call: Called, minority_call: Called) -> How:
    """Classify a difference by the explanation that aligns the longest part of both sequences after it.

    Calls on all communicators are compared: a skipped call shows there at once, and on its own communicator only at the
    next call.
    """
    expected, actual = _differing_tokens(job, majority_call, minority_call)
    alignments = {
        How.SKIPPED: _common_prefix(expected[1:], actual),
        How.EXTRA: _common_prefix(expected, actual[1:]),
        How.ARGUMENTS: _common_prefix(expected[1:], actual[1:]),
        How.SWAPPED: _common_prefix(expected[2:], actual[2:]) + 1
        if len(actual) > 1 and expected[:2] == actual[:2][::-1]
        else -1,
    }
    furthest = max(alignments.values())
    how = next(name for name in (How.ARGUMENTS, *alignments) if alignments[name] == furthest)
    return how if how is not How.ARGUMENTS or majority_call.name == minority_call.name else How.ANOTHER


def lacking_stretch(job: Job, majority_call: Called, minority_call: Called) -> int:
    """Return behind how many calls of the others those stand that a rank called since it agreed with them; 0: nowhere.

    So it is where the lines of these calls, or the calls, are missing. All of its calls, or more than are missing.
    """
    expected, actual = _differing_tokens(job, majority_call, minority_call)
    for start in range(1, len(expected)):
        agreeing = _common_prefix(expected[start:], actual)
        if agreeing == len(actual) or agreeing >= start + ENOUGH:
            return start
    return 0


def _differing_tokens(job: Job, left: Called, right: Called) -> tuple[list[Token], list[Token]]:
    """Return what two ranks called since their first difference behind the last agreement on this communicator."""
    calls, other_calls = (_tokens_since_agreement(job, row) for row in (left, right))
    agreeing = _common_prefix(calls, other_calls)
    return calls[agreeing:], other_calls[agreeing:]


def _tokens_since_agreement(job: Job, row: Called) -> list[Token]:
    """Return the calls of a rank after the last one on this communicator that agrees with the others."""
    actual = job.calls_of(row.rank_id)
    agreed_pos = actual.filter((pl.col("key") == row.key) & (pl.col("nth") + 1 == row.nth))["pos"]
    since = actual.filter(pl.col("pos") > agreed_pos[0]) if agreed_pos.len() else actual
    return [*call_tokens(since.head(COMPARED_CALLS), job).values()]


def _common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def describe_difference(how: How, actual: Called, expected: Called, others: str = "the others") -> str:
    """Say what the rank of `actual` did, as the end of a sentence about it."""
    match how:
        case How.SKIPPED:
            return f"skipped one call: {call_text(expected)}"
        case How.EXTRA:
            return f"made one extra call: {call_text(actual)}"
        case How.SWAPPED:
            return f"made two calls in the opposite order: {call_text(actual)} before {call_text(expected)}"
        case How.ANOTHER:
            return f"called {actual.name} where {others} called {expected.name}"
    differing = [
        f"{name} {argument_text(asdict(actual), name)} instead of {argument_text(asdict(expected), name)}"
        for name in ARGUMENTS
        if getattr(actual, name) != getattr(expected, name)
    ]
    return f"made the same call with {' and '.join(differing) or 'another argument'}"


def call_text(row: Called) -> str:
    """Return the name of a call and its size."""
    return row.name if row.count is None else f"{row.name} of {count_of(row.count, 'element')}"


FEW_LATER = 2  # calls; of one or two, those of a step that goes on may be the same by chance
COLLECT_AS_WRITTEN = [
    "collect the logs as the ranks wrote them (NCCL_DEBUG_FILE), not from the collector that lost lines"
]


def by_collector(job: Job, diagnosis: Explanation) -> str:
    """Say what a log collector may have done that makes this difference; empty if it can have done nothing."""
    if diagnosis.how is How.SKIPPED and may_be_lost(job, diagnosis):
        return "its line was lost"
    if repeats_previous(job, diagnosis):
        return "its line was delivered twice"
    return "its lines changed places" if diagnosis.culprits and made_the_same(job, diagnosis) else ""


def may_be_lost(job: Job, diagnosis: Explanation) -> bool:
    """Whether lines that were lost can make this difference."""
    key = str(diagnosis.key)
    nth = job.divergence.get(key)
    return nth is None or _is_made_elsewhere(job, key, nth, set(diagnosis.culprits))


def _is_made_elsewhere(job: Job, key: str, nth: int, differing: set[int]) -> bool:
    """Whether every call that differs at a place stands at another place in the log of another rank."""
    signatures = job.signatures([key])
    made: dict[int, set[int]] = defaultdict(set)  # signature -> ranks that made such a call anywhere
    for rank_id, signature in signatures.select("rank_id", "signature").unique().iter_rows():
        made[signature].add(rank_id)
    at_place = dict(signatures.filter(nth=nth).select("rank_id", "signature").iter_rows())
    return all(made[at_place[rank_id]] - {rank_id} for rank_id in differing & at_place.keys())


def made_the_same(job: Job, diagnosis: Explanation) -> bool:
    """Whether the culprits made the calls of another member in another order, with several behind the first difference.

    So it is where the lines of logs are sorted by time stamps that several calls share. Of two logs, the first calls
    are compared, as many as the shorter has.
    """
    key = str(diagnosis.key)
    nth = job.divergence.get(key, 0)
    since = job.signatures([key]).filter((pl.col("nth") >= nth) & (pl.col("nth") < nth + COMPARED_CALLS)).sort("nth")
    made = {rank_id: tuple(calls) for rank_id, calls in since.group_by("rank_id").agg("signature").iter_rows()}
    usual = {calls for rank_id, calls in made.items() if rank_id not in diagnosis.culprits}
    return all(
        any(_is_another_order(made.get(rank_id, ()), calls) for calls in usual) for rank_id in diagnosis.culprits
    )


def _is_another_order(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    length = min(len(left), len(right))
    return length > FEW_LATER and Counter(left[:length]) == Counter(right[:length])


def repeats_previous(job: Job, diagnosis: Explanation) -> bool:
    """Whether a culprit made an extra call that is the same as its previous collective on that communicator."""
    nth = job.divergence.get(str(diagnosis.key), diagnosis.nth or 0)
    before, extra = ({row.rank_id: row for row in job.collectives_at(str(diagnosis.key), at)} for at in (nth - 1, nth))
    return diagnosis.how is How.EXTRA and any(
        rank_id in before and rank_id in extra and before[rank_id].signature == extra[rank_id].signature
        for rank_id in diagnosis.culprits
    )


def has_other_fault(job: Job, extra: Explanation) -> bool:
    """Whether other ranks, and not most of them, ended, or are or may be those that the rest wait for.

    All other members of the communicator seem to be behind where one has a call more.
    """
    rest = {row.rank_id for row in job.members[str(extra.key)]} - {*extra.culprits}
    found = (find(job) for find in (waiting.find_lost_process, waiting.find_waited_for_ranks))
    named = ([answer.culprits, *(other.culprits for other in answer.between)] for answer in found if answer is not None)
    few = (ranks for ranks in chain.from_iterable(named) if 0 < len(ranks) * 2 < len(job.rank_ids))
    return any(set(ranks).isdisjoint(extra.culprits) and not rest.issubset(ranks) for ranks in few)


def decide_between(job: Job, diagnosis: Explanation, done: str) -> Explanation | None:
    """Answer where others differ behind a difference that a collector may have made: they explain the job alone."""
    nth = job.divergence.get(key := str(diagnosis.key))
    if nth is None or not (others := differing_behind(job, key, nth, diagnosis.culprits)):
        return None
    names, differing = job.names(diagnosis.culprits), job.names(others)
    reason = f"either {names} {diagnosis.claim}; or {done}, and the calls of {differing} differ behind it"
    between = [
        Alternative(Kind.MISMATCH, diagnosis.culprits, f"the log of {names} is as the process wrote it"),
        Alternative(Kind.MISMATCH, others, f"in the log of {names}, {done}"),
    ]
    return undecided(reason, COLLECT_AS_WRITTEN, between=between).add_evidence(context=diagnosis.evidence_lines)


def differing_behind(job: Job, key: str, nth: int, culprits: list[int]) -> list[int]:
    """Return the members that agree on a call and differ behind it: one fault on other ranks does not do that."""
    later = job.signatures([key]).filter((pl.col("nth") > nth) & ~pl.col("rank_id").is_in(culprits))
    differing = later.filter(pl.col("signature").n_unique().over("nth") > 1)
    at_first = differing.filter(pl.col("nth") == pl.col("nth").min())
    usual = at_first["signature"].mode().min()
    return sorted(at_first.filter(pl.col("signature").ne_missing(usual))["rank_id"])


def counts_every_call(job: Job) -> bool:
    """Whether NCCL's counter counts every call, so that it tells a call that was left out from a line that was lost."""
    return count_every_call(releases(job.run.releases))
