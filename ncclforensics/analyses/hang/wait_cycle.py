"""Judge ranks that wait for each other: which of them left the order of the program."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import inf

import polars as pl

from ncclforensics.analyses.hang.job import Job, Row
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, undecided
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.variables import COLLECT_INIT, stacks_of

MOST_EXAMINED = 64  # ranks of a cycle
MOST_CALLS = 4096  # the last calls of a rank, in which its own order is looked for
FAR_MORE = 4  # times as many ranks stand in the calls of one side as in those of the other
ENOUGH_PERIODS = 1  # earlier periods that have to agree
LEFT_OUT = (
    "skipped a call that it had made in every round before: it is already in a later call, and the others wait in the "
    "skipped one"
)
COUNTERPART = {"Send": "Recv", "Recv": "Send"}


def judge_cycle(job: Job, waits_for_of: dict[int, list[tuple[int, ...]]]) -> Explanation:
    """Judge ranks that wait for each other, on different communicators or as senders and receivers."""
    cycle = _terminal_cycle(waits_for_of)
    first_edges = _first_edges(job.waits, cycle)
    if any(job.holds_several(edge["key"]) for edge in first_edges.values()):
        return _between_unknown_communicators(job, first_edges)
    index_of = {rank_id: job.communicator_index.get((rank_id, edge["key"])) for rank_id, edge in first_edges.items()}
    passed = _ranks_past_a_missing_call(job, first_edges)
    is_open = len(passed) in (0, len(cycle))  # the other ranks do not show who left the order
    irregular = _ranks_that_left_their_own_order(job, first_edges) if is_open else []
    if irregular:
        passed = []
    if passed and all(_has_one_waiter(job, first_edges, rank_id) for rank_id in passed):
        return skipped_or_lost(
            job, passed, [rank_id for rank_id, edge in first_edges.items() if edge["waits_for"] in passed]
        )
    if passed:
        diagnosis = _left_the_order(job, first_edges, passed)
    elif irregular:
        is_message = len(set(index_of.values())) == 1
        verdict = Kind.UNMATCHED if is_message else Kind.DEADLOCK
        diagnosis = Explanation(verdict, "", [Doubt.ONLY_LINE_LOST], culprits=irregular)
        diagnosis.claim = LEFT_OUT
    elif len(set(index_of.values())) > 1:
        ranks_by_index: dict[int | None, list[int]] = defaultdict(list)
        for rank_id, index in index_of.items():
            ranks_by_index[index].append(rank_id)
        sides = [(len(ranks), _count_waiters(job, first_edges, ranks), ranks) for ranks in ranks_by_index.values()]
        (fewest, few_waiters, minority_ranks), *_, (most, many_waiters, _) = sorted(sides)
        is_minority = fewest < most or few_waiters * FAR_MORE <= many_waiters
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
    majority.sort(key=lambda edge: edge["waits_for"] not in diagnosis.culprits)
    diagnosis.key = (majority or minority)[0]["key"]
    rows = job.describe(job.calls.filter(pl.col("pos") == (majority or minority)[0]["pos"]))
    diagnosis.call = rows[0] if rows else None
    diagnosis.add_evidence("minority", [{**edge, "rank_id": edge["waiter"]} for edge in minority[:4]])
    diagnosis.add_evidence("majority", [{**edge, "rank_id": edge["waiter"]} for edge in majority[:2]])
    return diagnosis


def _first_edges(waits: list[Row], cycle: set[int]) -> dict[int, Row]:
    """Of each rank of a cycle, the edge to the first rank of it that this one waits for."""
    first_edges: dict[int, Row] = {}
    for edge in sorted(waits, key=lambda edge: edge["pos"]):
        if edge["waiter"] in cycle and edge["waiter"] not in first_edges:
            target = next((rank_id for rank_id in edge["waits_for"] if rank_id in cycle), None)
            if target is not None:
                first_edges[edge["waiter"]] = {**edge, "waits_for": target}
    return first_edges


def ranks_in_cycles_without(job: Job, left_out: set[int]) -> set[int]:
    """Return the ranks that wait in collectives for each other, or for such ranks, without some ranks.

    Ranks that make the same calls in the same order never do: of two, the one ahead waits for the one behind.
    """
    awaited: dict[int, tuple[int, ...]] = {}  # edges of one call share the tuple of their ranks
    numbers_of: dict[int, set[int]] = defaultdict(set)  # of each rank, which of these it waits for
    for edge in job.waits:
        if edge["kind"] == "collective" and edge["waiter"] not in left_out:
            awaited[id(edge["waits_for"])] = edge["waits_for"]
            numbers_of[edge["waiter"]].add(id(edge["waits_for"]))
    remaining, before = set(numbers_of), 0
    while len(remaining) != before:
        before = len(remaining)
        open_numbers = {number for number, ranks in awaited.items() if not remaining.isdisjoint(ranks)}
        remaining = {rank_id for rank_id in remaining if not open_numbers.isdisjoint(numbers_of[rank_id])}
    return remaining


def culprits_without(job: Job, lost_calls: dict[int, Row]) -> list[int]:
    """Return the ranks to blame if the logs of some ranks lost one line each, of a call that others wait in.

    `lost_calls`: rank id -> an edge to it. The others then wait for these ranks; of a cycle, these left the order.
    """
    present: dict[int, tuple[int, ...]] = {}  # edges of one call share the tuple of their ranks
    for edge in job.awaited_calls:
        present[id(edge["waits_for"])] = tuple(
            rank_id
            for rank_id in edge["waits_for"]
            if (lost := lost_calls.get(rank_id)) is None or (lost["key"], lost["nth"]) != (edge["key"], edge["nth"])
        )
    waits = [{**edge, "waits_for": ranks} for edge in job.waits if (ranks := present[id(edge["waits_for"])])]
    waits_for_of: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for edge in waits:
        waits_for_of[edge["waiter"]].append(edge["waits_for"])
    awaited = {rank_id for ranks in present.values() for rank_id in ranks}
    if roots := awaited - waits_for_of.keys():
        return sorted(roots - lost_calls.keys())
    if not waits:
        return []
    first_edges = _first_edges(waits, _terminal_cycle(waits_for_of))
    return sorted(set(_ranks_past_a_missing_call(job, first_edges)) - lost_calls.keys())


def _between_unknown_communicators(job: Job, first_edges: dict[int, Row]) -> Explanation:
    """Answer where ranks wait for each other, but it is not known on which communicators."""
    reason = (
        f"{job.names(first_edges)} may wait for each other on several communicators, but the lines that name the "
        "members of these are missing: which rank waits for which is not known"
    )
    between = [Alternative(Kind.DEADLOCK, [rank_id], "it left the order of the program") for rank_id in first_edges]
    answer = undecided(reason, COLLECT_INIT, between=between)
    answer.add_evidence("context", [{**edge, "rank_id": rank_id} for rank_id, edge in list(first_edges.items())[:4]])
    return answer


def _left_the_order(job: Job, first_edges: dict[int, Row], passed: list[int]) -> Explanation:
    """Judge ranks that stand in a call which the program has behind one that others wait for.

    Whether it was left out or comes later, a message stays without its counterpart, unless the log lost that line.
    """
    doubts = [] if len(passed) < len(first_edges) else [Doubt.NO_MAJORITY_OF_ORDER]
    if all(edge["kind"] in ("send", "recv") for edge in first_edges.values() if edge["waits_for"] in passed):
        diagnosis = Explanation(Kind.UNMATCHED, "", doubts, culprits=passed)
        diagnosis.claim = "made a later call without the Send or Recv that another rank waits for"
        diagnosis.doubt(Doubt.ONLY_LINE_LOST)
        return diagnosis
    diagnosis = Explanation(Kind.DEADLOCK, "", doubts, culprits=passed)
    diagnosis.claim = (
        "is in a later call, while the others wait for it in an earlier one: it used the communicators in another "
        "order than the others, or skipped the earlier call"
    )
    return diagnosis


def _count_waiters(job: Job, first_edges: dict[int, Row], ranks: list[int]) -> int:
    """Count all ranks that stand in the calls in which some ranks of a cycle stand."""
    calls = {
        (edge["key"], edge["kind"], edge["nth"]) for rank in ranks if (edge := first_edges[rank])["nth"] is not None
    }
    others = {edge["waiter"] for edge in job.waits if (edge["key"], edge["kind"], edge["nth"]) in calls}
    return len(others.union(ranks))


def _has_one_waiter(job: Job, first_edges: dict[int, Row], rank_id: int) -> bool:
    """Whether one rank alone waits for the collective that another one lacks."""
    edges = [edge for edge in first_edges.values() if edge["waits_for"] == rank_id]
    calls = {(edge["key"], edge["nth"]) for edge in edges if edge["kind"] == "collective"}
    waiters = {
        edge["waiter"] for edge in job.waits if (edge["key"], edge["nth"]) in calls and rank_id in edge["waits_for"]
    }
    return len(waiters) == 1


def skipped_or_lost(job: Job, skipping: list[int], blamed: list[int], of: Explanation | None = None) -> Explanation:
    """Answer where ranks left out a call, or their logs lost its line: then the others wait for other ranks."""
    names, others = job.names(skipping), job.names(blamed)
    reason = (
        f"{names} left out a call that others wait in, or the log of {names} lost its line: then {others} stopped "
        "before the call that the others wait in, or is in another one"
    )
    between = [
        Alternative(Kind.MISMATCH, skipping, f"the log of {names} lost no line"),
        Alternative(Kind.LAGGING, blamed, f"the log of {names} lost the line of that call"),
    ]
    answer = undecided(reason, [stacks_of(f"{names} and {others}")], of, between=between)
    answer.add_evidence("context", [job.last_line(rank_id) for rank_id in [*blamed[:2], *skipping[:2]]])
    return answer


def _ranks_awaited_first(job: Job, edges: list[Row]) -> list[int]:
    """The ranks that a cycle waits for at its earliest place: what stands behind follows from it.

    Places are comparable on one communicator: by the collectives made before, a message before the next collective.
    """
    if len({edge["key"] for edge in edges}) > 1:
        return sorted({edge["waiter"] for edge in edges})

    def place(edge: Row) -> tuple[int, bool]:
        if edge["kind"] == "collective":
            return int(edge["nth"]), True
        own = job.calls_of(edge["waiter"])
        before = own.filter(
            (pl.col("key") == edge["key"]) & (pl.col("pos") < edge["pos"]) & pl.col("nth").is_not_null()
        )
        return before.select(pl.col("nth").max().fill_null(-1) + 1).item(), False

    first = min(place(edge) for edge in edges)
    return sorted({edge["waits_for"] for edge in edges if place(edge) == first})


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


def _ranks_past_a_missing_call(job: Job, first_edges: dict[int, Row]) -> list[int]:
    """Return the ranks of a cycle that stand in a call which other ranks made only after the one that they lack.

    A rank that others wait for is behind, or past the call: it skipped it, or makes it later. Other ranks that made one
    of the two calls, or both, show the order of the program; places are those on communicators of the same index.
    """
    places: dict[int, tuple[Place, Place]] = {}  # of each awaited rank: the call that it lacks, and where it stands
    for edge in first_edges.values():
        target = edge["waits_for"]
        if target in first_edges and target not in places and len(places) < MOST_EXAMINED:
            lacking = _next_place(job, target, edge)
            standing = _place_of(job, first_edges[target])
            if lacking is not None and standing is not None and lacking[0] != standing[0]:
                places[target] = lacking, standing
    wanted = {place for pair in places.values() for place in pair}
    made = _positions(job, wanted)
    indices_of: dict[int, set[int]] = defaultdict(set)
    for (rank_id, _), index in job.communicator_index.items():
        indices_of[rank_id].add(index)
    passed = []
    for target, (lacking, standing) in places.items():
        orders = [
            calls.get(lacking, inf) < calls.get(standing, inf)
            for rank_id, calls in made.items()
            if rank_id != target and _shows_order(calls, lacking, standing, indices_of[rank_id])
        ]
        if sum(orders) * 2 > len(orders):
            passed.append(target)
    return sorted(passed)


def find_ranks_past_their_call(job: Job, awaited: dict[int, Row]) -> list[int]:
    """Return the ranks whose last call most others made only after the collective that these ranks lack.

    `awaited`: rank id -> an edge to it, of a collective. Only ranks that made both calls show their order.
    """
    places: dict[int, tuple[Place, Place]] = {}
    for rank_id, edge in list(awaited.items())[:MOST_EXAMINED]:
        lacking, last = _next_place(job, rank_id, edge), job.last_call(rank_id)
        if lacking is not None and last is not None and None not in (last["nth"], last["ordinal"]):
            places[rank_id] = lacking, (job.communicator_index[rank_id, last["key"]], last["ordinal"], last["name"])
    made = _positions(job, {place for pair in places.values() for place in pair})
    passed = []
    for rank_id, (lacking, last_place) in places.items():
        others = [calls for other, calls in made.items() if other not in awaited]
        orders = [calls[lacking] < calls[last_place] for calls in others if calls.keys() >= {lacking, last_place}]
        if sum(orders) * 2 > len(orders):
            passed.append(rank_id)
    return passed


def _shows_order(calls: dict[Place, int], first: Place, second: Place, indices: set[int]) -> bool:
    """Whether a rank made both calls, or one of them and will make the other: every member makes a collective."""
    will_make = [place in calls or (place[0] in indices and place[2] not in COUNTERPART) for place in (first, second)]
    return all(will_make) and (first in calls or second in calls)


def _ranks_that_left_their_own_order(job: Job, first_edges: dict[int, Row]) -> list[int]:
    """Return the ranks of a cycle that made the missing call each time before they made the call they stand in.

    If all ranks of the cycle did, the history of none explains it, and none is returned.
    """
    found = set()
    for edge in list(first_edges.values())[:MOST_EXAMINED]:
        target = edge["waits_for"]
        if target in first_edges and left_own_order(job, edge, first_edges[target]):
            found.add(target)
    return sorted(found) if len(found) < len(first_edges) else []


def left_own_order(job: Job, edge: Row, standing: Row) -> bool:
    """Whether a rank made the call of `edge` between any two of its calls like `standing`, but not before the last."""
    target = edge["waits_for"]
    own = job.calls_of(target).filter(pl.col("key").is_in([edge["key"], standing["key"]])).tail(MOST_CALLS)
    if own["in_tail"].any():  # what stands between the windows is not shown
        own = own.filter("in_tail")
    calls = job.describe(own)
    last = next((call for call in calls if call["pos"] == standing["pos"]), None)
    awaited = next(iter(job.describe(job.calls.filter(pl.col("pos") == edge["pos"]))), None)
    if last is None or awaited is None:
        return False
    name = COUNTERPART.get(awaited["name"], awaited["name"])
    place_of = {row["rank_id"]: row["rank"] for row in job.members[edge["key"]]}
    peer = place_of.get(edge["waiter"]) if name != awaited["name"] else awaited["root"]

    def is_like_last(call: Row) -> bool:
        return all(call[field] == last[field] for field in ("key", "name", "root", "count", "datatype"))

    def is_awaited(call: Row) -> bool:
        return (call["key"], call["name"], call["root"]) == (edge["key"], name, peer)

    occurrences = [number for number, call in enumerate(calls) if is_like_last(call) and call["pos"] <= last["pos"]]
    is_from_start = calls[0]["ordinal"] == 0 and occurrences[:1] != [0]
    if is_from_start and any(map(is_awaited, calls[: occurrences[0]])):  # the log shows the first period, too
        occurrences.insert(0, 0)
    periods = [any(map(is_awaited, calls[begin:end])) for begin, end in pairwise(occurrences)]
    return len(periods) > ENOUGH_PERIODS and all(periods[:-1]) and not periods[-1]


Place = tuple[int, int, str]  # index of a communicator among those of its rank, ordinal and name of a call on it


def _next_place(job: Job, rank_id: int, edge: Row) -> Place | None:
    """Return the place of the call that others wait for a rank to make; None if its calls are not all known."""
    index = job.communicator_index.get((rank_id, edge["key"]))
    ordinals = job.calls_of(rank_id).filter(pl.col("key") == edge["key"])["ordinal"]
    awaited = job.names_of(job.calls.filter(pl.col("pos") == edge["pos"]))
    if index is None or ordinals.has_nulls() or awaited.is_empty():
        return None
    last = ordinals.max()
    name = COUNTERPART.get(awaited[0], awaited[0])
    return index, 0 if last is None else int(str(last)) + 1, name


def _place_of(job: Job, edge: Row) -> Place | None:
    """Return the place of the call in which a rank waits."""
    index = job.communicator_index.get((edge["waiter"], edge["key"]))
    calls = job.calls_of(edge["waiter"]).filter((pl.col("pos") == edge["pos"]) & pl.col("ordinal").is_not_null())
    return None if index is None or calls.is_empty() else (index, int(calls["ordinal"][0]), job.names_of(calls)[0])


def _positions(job: Job, wanted: set[Place]) -> dict[int, dict[Place, int]]:
    """Return, for some ranks, where in their logs they made the calls of these places."""
    index_of = pl.DataFrame(
        [(rank_id, key, index) for (rank_id, key), index in job.communicator_index.items()],
        schema={"rank_id": pl.Int32(), "key": pl.String(), "index": pl.Int32()},
        orient="row",
    ).with_columns(pl.col("key").cast(pl.Categorical))
    schema = {"index": pl.Int32(), "ordinal": pl.Int32(), "name": pl.String()}
    places = pl.DataFrame(sorted(wanted), schema=schema, orient="row")
    near = job.calls.filter(pl.col("ordinal").is_in(places["ordinal"].unique().implode()))
    rows = near.with_columns(name=job.names_of(near)).join(index_of, on=["rank_id", "key"])
    rows = rows.join(places, on=list(schema), how="semi")
    made: dict[int, dict[Place, int]] = defaultdict(dict)
    for rank_id, index, ordinal, name, position in rows.select("rank_id", *schema, "pos").iter_rows():
        made[rank_id][index, ordinal, name] = position
    return made
