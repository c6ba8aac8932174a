"""Judge ranks that wait for each other: which of them left the order of the program."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.hang.wait_graph import Edge
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.job_rows import Called
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.variables import COLLECT_INIT, stacks_of
from ncclforensics.frames.columns import Row, text_of

MOST_EXAMINED = 64  # ranks of a cycle
FAR_MORE = 4  # times as many ranks stand in the calls of one side as in those of the other
MOST_CALLS = 4096  # the last calls of a rank, in which its own order is looked for
ENOUGH_PERIODS = 1  # earlier periods that have to agree
LEFT_OUT = (
    "skipped a call that it had made in every round before: it is already in a later call, and the others wait in the "
    "skipped one"
)
OTHER_ORDER = (
    "is in a later call, while the others wait for it in an earlier one, which it made first in every round before: it "
    "used the communicators in another order, or skipped the earlier call"
)
LIKE = ("key", "name", "root", "count", "datatype")  # fields of calls that a program repeats
COUNTERPART = {"Send": "Recv", "Recv": "Send"}


def judge_cycle(job: Job, waits_for_of: dict[int, list[tuple[int, ...]]]) -> Explanation:
    """Judge ranks that wait for each other, on different communicators or as senders and receivers."""
    cycle = _terminal_cycle(waits_for_of)
    first_edges = _first_edges(job.waits, cycle)
    if any(job.holds_several(edge.key) for edge in first_edges.values()):
        return _between_unknown_communicators(job, first_edges)
    index_of = {rank_id: job.communicator_index.get((rank_id, edge.key)) for rank_id, edge in first_edges.items()}
    irregular = _ranks_that_left_their_own_order(job, first_edges)
    if irregular and (late := _late_by_themselves(job, first_edges, irregular)):
        return skipped_or_lost(job, irregular, late)
    if irregular:
        is_message = len(set(index_of.values())) == 1
        verdict = Kind.UNMATCHED if is_message else Kind.DEADLOCK
        diagnosis = Explanation(verdict, "", [Doubt.ONLY_LINE_LOST], culprits=irregular)
        diagnosis.claim = LEFT_OUT if is_message else OTHER_ORDER
    elif len(set(index_of.values())) > 1:
        ranks_by_index: dict[int | None, list[int]] = defaultdict(list)
        for rank_id, index in index_of.items():
            ranks_by_index[index].append(rank_id)
        sides = [(len(ranks), _count_waiters(job, first_edges, ranks), ranks) for ranks in ranks_by_index.values()]
        (fewest, few_waiters, minority_ranks), *_, (most, many_waiters, _) = sorted(sides)
        is_minority = fewest < most or few_waiters * FAR_MORE <= many_waiters
        if is_minority and (late := _late_by_themselves(job, first_edges, minority_ranks)):
            return skipped_or_lost(job, minority_ranks, late)
        culprits = minority_ranks if is_minority else sorted(cycle)
        diagnosis = Explanation(Kind.DEADLOCK, "", [Doubt.NO_MAJORITY_OF_ORDER], culprits=sorted(culprits))
        diagnosis.claim = (
            "used the communicators in a different order than the others, or the others did: each side waits for the "
            "other, and no other rank shows the order of the program"
        )
    else:
        omitting = _ranks_awaited_first(job, list(first_edges.values()))
        diagnosis = Explanation(Kind.UNMATCHED, "", culprits=omitting)
        diagnosis.claim = "waited for each other in Send and Recv: no rank posted the matching call first"
        if len(omitting) < len(cycle):
            diagnosis.claim = (
                "made a later collective without the Send or Recv that the others wait for, or these made one too many"
            )
            diagnosis.doubt(Doubt.LINE_LOST)
    minority = [first_edges[rank_id] for rank_id in sorted(diagnosis.culprits, key=job.order_of)]
    majority = [first_edges[rank_id] for rank_id in cycle if rank_id not in diagnosis.culprits] or minority[1:]
    majority.sort(key=lambda edge: edge.waits_for[0] not in diagnosis.culprits)
    diagnosis.key = (majority or minority)[0].key
    diagnosis.call = _call_at(job, (majority or minority)[0].pos)
    return diagnosis.add_evidence(minority=minority[:4], majority=majority[:2])


def _call_at(job: Job, pos: int) -> Called | None:
    """Return the call in the line of this position."""
    return next(iter(job.describe(job.calls.filter(pl.col("pos") == pos))), None)


def _first_edges(waits: list[Edge], cycle: set[int]) -> dict[int, Edge]:
    """Of each rank of a cycle, the edge to the first rank of it that this one waits for, and to no other."""
    first_edges: dict[int, Edge] = {}
    for edge in sorted(waits, key=lambda edge: edge.pos):
        if edge.waiter in cycle and edge.waiter not in first_edges:
            target = next((rank_id for rank_id in edge.waits_for if rank_id in cycle), None)
            if target is not None:
                first_edges[edge.waiter] = edge._replace(waits_for=(target,))
    return first_edges


def ranks_in_cycles(job: Job) -> set[int]:
    """Return the ranks that wait in collectives for each other, or for such ranks.

    Ranks that make the same calls in the same order never do: of two, the one ahead waits for the one behind.
    """
    awaited: dict[int, tuple[int, ...]] = {}  # edges of one call share the tuple of their ranks
    numbers_of: dict[int, set[int]] = defaultdict(set)  # of each rank, which of these it waits for
    for edge in job.waits:
        if edge.kind == "collective":
            awaited[id(edge.waits_for)] = edge.waits_for
            numbers_of[edge.waiter].add(id(edge.waits_for))
    remaining, before = set(numbers_of), 0
    while len(remaining) != before:
        before = len(remaining)
        open_numbers = {number for number, ranks in awaited.items() if not remaining.isdisjoint(ranks)}
        remaining = {rank_id for rank_id in remaining if not open_numbers.isdisjoint(numbers_of[rank_id])}
    return remaining


class LeftOut(NamedTuple):
    """A message that others wait for, and behind which the rank that lacks it went on."""

    kind: str  # of the edge of the rank that waits
    place: int | None  # of the rank that lacks it, in the communicator
    turn: int


def messages_left_out(job: Job) -> dict[int, list[LeftOut]]:
    """Return the ranks that went on behind messages that others wait in, and the messages that each of them lacks.

    Calls run in the order in which they are made: one that waits in a message has not come to the collective behind it,
    so a rank that made this one left the message out, or its log lost the line.
    """
    lacking: dict[int, list[LeftOut]] = defaultdict(list)
    made = job.run.collectives_made
    for edge in job.awaited_calls:
        if edge.kind not in ("send", "recv"):
            continue
        before = _collectives_before(job, edge)
        places = {row.rank_id: row.rank for row in job.members[edge.key]}
        for target in edge.waits_for:
            shared = {key: calls for key, calls in made[target].items() if (edge.waiter, key) in job.communicator_index}
            if any(calls > before.get(key, 0) for key, calls in shared.items()):
                posted = job.messages(edge.key, edge.waiter, target, edge.kind.capitalize())
                turns = range(edge.nth, posted[-1]["turn"] + 1)
                lacking[target] += [LeftOut(edge.kind, places.get(target), turn) for turn in turns]
    return lacking


def _collectives_before(job: Job, edge: Edge) -> dict[str, int]:
    """Count the collectives that a rank made before the message in which it waits, by communicator."""
    before = job.calls_of(edge.waiter).filter((pl.col("pos") < edge.pos) & pl.col("nth").is_not_null())
    return dict(before.group_by(text_of("key")).agg(pl.col("nth").max() + 1).iter_rows())


def _between_unknown_communicators(job: Job, first_edges: dict[int, Edge]) -> Explanation:
    """Answer where ranks wait for each other, but it is not known on which communicators."""
    reason = (
        f"{job.names(first_edges)} may wait for each other on several communicators, but the lines that name the "
        "members of these are missing: which rank waits for which is not known"
    )
    between = [Alternative(Kind.DEADLOCK, [rank_id], "it left the order of the program") for rank_id in first_edges]
    return undecided(reason, COLLECT_INIT, between=between, context=[*first_edges.values()][:4])


def skipped_or_lost(job: Job, skipping: list[int], waiting: list[int], of: Explanation | None = None) -> Explanation:
    """Answer where ranks left out a call that other ranks wait in, or their logs lost its line and these are behind."""
    names, others = job.names(skipping), job.names(waiting)
    reason = (
        f"either {names} left out a call that was made by {others}, or the log of {names} lost its line, and the "
        f"others wait for {others}"
    )
    between = [
        Alternative(Kind.MISMATCH, skipping, f"the log of {names} lost no line"),
        Alternative(Kind.LAGGING, waiting, f"the log of {names} lost the line of that call"),
    ]
    last_lines = [job.last_line(rank_id) for rank_id in [*skipping[:2], *waiting[:2]]]
    return undecided(reason, [stacks_of(f"{names} and {others}")], of, between=between, context=last_lines)


def _late_by_themselves(job: Job, first_edges: dict[int, Edge], irregular: list[int]) -> list[int]:
    """Return the ranks that the irregular ones wait for, if the calls in which these wait hold none of them back.

    Nothing shows that a call does if no other rank waits in it, or if another that made it went on to the call in which
    they are awaited.
    """
    late, made = set(), job.run.collectives_made
    has_others = len(first_edges) < len(job.rank_ids)  # which wait for a rank of the cycle, whichever this is
    for own in (first_edges[rank_id] for rank_id in irregular):
        targets = {target for edge in job.waits if edge.pos == own.pos for target in edge.waits_for}
        for edge in (first_edges[target] for target in targets & first_edges.keys()):
            is_collective = edge.kind == "collective"
            is_alone = (
                has_others and is_collective and len({row.waiter for row in job.waits if row.call == edge.call}) == 1
            )
            others = job.members[edge.key] if is_collective and own.kind == "collective" else []
            went_on = any(
                all(made[row.rank_id].get(call.key, 0) > call.nth for call in (edge, own))
                for row in others
                if row.rank_id not in (edge.waiter, own.waiter)
            )
            if edge.waits_for[0] not in irregular or not (is_alone or went_on):
                return []
            late.add(edge.waiter)
    return sorted(late)


def _count_waiters(job: Job, first_edges: dict[int, Edge], ranks: list[int]) -> int:
    """Count all ranks that stand in the calls in which some ranks of a cycle stand."""
    calls = {first_edges[rank].call for rank in ranks if first_edges[rank].kind != "init"}
    others = {edge.waiter for edge in job.waits if edge.call in calls}
    return len(others.union(ranks))


def _ranks_awaited_first(job: Job, edges: list[Edge]) -> list[int]:
    """The ranks that a cycle waits for at its earliest place: what stands behind follows from it.

    Places are comparable on one communicator: by the collectives made before, a message before the next collective.
    """
    if len({edge.key for edge in edges}) > 1:
        return sorted({edge.waiter for edge in edges})

    def place(edge: Edge) -> tuple[int, bool]:
        if edge.kind == "collective":
            return edge.nth, True
        return _collectives_before(job, edge).get(edge.key, 0), False

    first = min(place(edge) for edge in edges)
    return sorted({edge.waits_for[0] for edge in edges if place(edge) == first})


def _terminal_cycle(waits_for_of: dict[int, list[tuple[int, ...]]]) -> set[int]:
    """Return the ranks of the graph that reach each other and wait for no rank outside the set."""
    reachable: dict[int, set[int]] = {}
    for rank_id in waits_for_of:
        visited: set[int] = set()
        followed: set[int] = set()  # sets of ranks that were added: many ranks wait for the same set
        pending = [rank_id]
        while pending:
            for ranks in waits_for_of.get(pending.pop(), []):
                if id(ranks) not in followed:
                    followed.add(id(ranks))
                    pending += [neighbour for neighbour in ranks if neighbour not in visited]
                    visited.update(ranks)
        reachable[rank_id] = visited
    smallest_set = min(reachable.values(), key=len)
    return {rank_id for rank_id in smallest_set if reachable[rank_id] == smallest_set} or smallest_set


def _ranks_that_left_their_own_order(job: Job, first_edges: dict[int, Edge]) -> list[int]:
    """Return the ranks of a cycle that made the missing call each time before they made the call they stand in.

    If all ranks of the cycle did, the history of none explains it, and none is returned.
    """
    found = set()
    for edge in list(first_edges.values())[:MOST_EXAMINED]:
        target = edge.waits_for[0]
        if target in first_edges and left_own_order(job, edge, first_edges[target]):
            found.add(target)
    return sorted(found) if len(found) < len(first_edges) else []


def left_own_order(job: Job, edge: Edge, standing: Edge) -> bool:
    """Whether a rank made the call of `edge` between any two of its calls like `standing`, but not before the last."""
    target = edge.waits_for[0]
    own = job.calls_of(target).filter(pl.col("key").is_in([edge.key, standing.key])).tail(MOST_CALLS)
    if own["in_tail"].any():  # what stands between the windows is not shown
        own = own.filter("in_tail")
    calls = job.describe(own)
    last = next((call for call in calls if call.pos == standing.pos), None)
    awaited = _call_at(job, edge.pos)
    if last is None or awaited is None:
        return False
    name = COUNTERPART.get(awaited.name, awaited.name)
    place_of = {row.rank_id: row.rank for row in job.members[edge.key]}
    peer = place_of.get(edge.waiter) if name != awaited.name else awaited.root

    def is_like_last(call: Called) -> bool:
        return all(getattr(call, field) == getattr(last, field) for field in LIKE)

    def is_awaited(call: Called) -> bool:
        return (call.key, call.name, call.root) == (edge.key, name, peer)

    occurrences = [number for number, call in enumerate(calls) if is_like_last(call) and call.pos <= last.pos]
    periods = [any(map(is_awaited, calls[begin:end])) for begin, end in pairwise(occurrences)]
    return len(periods) > ENOUGH_PERIODS and all(periods[:-1]) and not periods[-1]


def judge_messages_in_order(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Judge a culprit whose last message is matched only by one that its partner posted behind an unmatched one.

    In one group (ncclGroupStart) both messages of the partner run at once, and the culprit did not wait. One after the
    other, the partner's second message has not begun, and the two wait for each other. The log shows no groups.
    """
    for edge in job.awaited_calls:
        culprit = next((rank_id for rank_id in edge.waits_for if rank_id in diagnosis.culprits), None)
        if edge.kind not in ("send", "recv") or culprit is None:
            continue
        message = _matched_behind(job, edge, culprit)
        if message is None:
            continue
        waits = edge._replace(waits_for=(culprit,))
        crossing = edge._replace(waiter=culprit, waits_for=(edge.waiter,), pos=message["pos"])
        has_left_out = left_own_order(job, waits, crossing)
        partner_has = left_own_order(job, crossing, waits)
        if has_left_out != partner_has:
            left_out_by, waiting = (culprit, waits) if has_left_out else (edge.waiter, crossing)
            found = Explanation(Kind.UNMATCHED, LEFT_OUT, [Doubt.ONLY_LINE_LOST], culprits=[left_out_by])
        else:
            found = Explanation(Kind.UNMATCHED, "", [Doubt.POSTED_TOGETHER], culprits=sorted({culprit, edge.waiter}))
            found.claim = "wait for each other in Send and Recv, unless each of them posts both in one group"
            waiting = waits
        found.key = edge.key
        found.call = call = _call_at(job, waiting.pos)
        return found.add_evidence(waiting=[call], culprit=map(job.last_call, found.culprits))
    return None


def _matched_behind(job: Job, edge: Edge, culprit: int) -> Row | None:
    """Return a message of the culprit that only a call matches which the waiter made behind the one it waits in."""
    answer = COUNTERPART[edge.kind.capitalize()]  # by the waiter, to a message of the culprit
    posted = job.messages(edge.key, culprit, edge.waiter, COUNTERPART[answer])
    answers = job.messages(edge.key, edge.waiter, culprit, answer)
    if not posted or not answers or posted[-1]["turn"] > answers[-1]["turn"]:
        return None
    answered = next((row["turn"] for row in answers if row["pos"] >= edge.pos), None)
    return next((row for row in posted if row["turn"] == answered), None)
