"""Follow who waits for whom to the ranks that wait for none, or to a circle of waiting ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ncclforensics.analyses.hang.recorder_graph import Recordings, Standing
from ncclforensics.analyses.job.text.recorder_groups import RecordedCall


@dataclass(slots=True)
class Roots:
    """The ranks that the others wait for, and why."""

    lagging: list[int] = field(default_factory=list)  # did not make the call, and have no open call
    unfinished: list[int] = field(default_factory=list)  # did not complete a call that other members completed
    unclear: list[int] = field(default_factory=list)  # their last calls are not recorded, so that they may wait, too
    cycle: list[int] = field(default_factory=list)  # wait for each other
    open_messages: list[RecordedCall] = field(default_factory=list)  # in a circle of messages and collectives
    is_message_cycle: bool = False  # in point-to-point calls
    standing: list[Standing] = field(default_factory=list)  # calls at which all members stand
    messages: list[RecordedCall] = field(default_factory=list)  # point-to-point calls at which both sides stand
    is_message: bool = False  # the lagging ranks are waited for in point-to-point calls only


def find_roots(recordings: Recordings) -> Roots:
    """Follow who waits for whom to its ends; the messages of ranks that wait in a circle are left out.

    Such a rank may wait for its message, or may have posted it in advance and be elsewhere: its dump cannot show which.
    """
    edges = wait_edges(recordings)
    unresolved = _unresolved(edges)
    calls = [call for rank in _cycle(edges, unresolved) if (call := recordings.blocking(rank))]
    messages = [call for call in calls if call.is_p2p]
    if not messages or len(messages) == len(calls):
        roots = _roots(recordings, edges, unresolved)
        roots.is_message_cycle = bool(messages)
        return roots
    recordings.forget_messages(unresolved)
    edges = wait_edges(recordings)
    roots = _roots(recordings, edges, _unresolved(edges))
    return (
        Roots(lagging=roots.lagging, unfinished=roots.unfinished) if roots.unfinished else Roots(open_messages=messages)
    )


def wait_edges(recordings: Recordings) -> dict[int, list[int]]:
    """Rank -> ranks it waits for; of a rank whose entries were not read, by the numbers of its groups."""
    edges = {rank: recordings.targets(rank) for rank in recordings.read - recordings.outdated}
    for group, rows in recordings.positions.items():
        unread = [rank for rank in rows if rank not in recordings.read and rank not in recordings.outdated]
        if not unread or any(row["has_p2p"] for row in rows.values()):
            continue
        for rank in unread:
            last = recordings.enqueued(group, rank)
            if recordings.completed(group, rank) < last:
                edges.setdefault(rank, []).extend(recordings.standing(group, last).missing)
    return edges


def _unresolved(edges: dict[int, list[int]]) -> set[int]:
    """Ranks from which no rank that waits for none is reached."""
    waiters: dict[int, list[int]] = defaultdict(list)
    for rank, targets in edges.items():
        for target in targets:
            waiters[target].append(rank)
    reached = [rank for rank in {*edges, *waiters} if not edges.get(rank)]
    resolved = set(reached)
    while reached:
        for waiter in waiters[reached.pop()]:
            if waiter not in resolved:
                resolved.add(waiter)
                reached.append(waiter)
    return {rank for rank in edges if rank not in resolved}


def _cycle(edges: dict[int, list[int]], unresolved: set[int]) -> list[int]:
    """The unresolved ranks that others of them wait for: those that only wait for a cycle are left out."""
    cycle = set(unresolved)
    while True:
        waited_for = {target for rank in cycle for target in edges[rank]} & cycle
        if waited_for == cycle:
            return sorted(cycle)
        cycle = waited_for


def _roots(recordings: Recordings, edges: dict[int, list[int]], unresolved: set[int]) -> Roots:
    waiters: dict[int, list[int]] = defaultdict(list)
    for rank, targets in edges.items():
        for target in targets:
            waiters[target].append(rank)
    ends = [rank for rank in waiters if not edges.get(rank)]
    roots = Roots(
        lagging=sorted(rank for rank in ends if recordings.is_idle(rank)),
        unfinished=sorted(rank for rank in ends if rank in recordings.read and recordings.is_unfinished(rank)),
        cycle=_cycle(edges, unresolved) if unresolved else [],
    )
    roots.unclear = sorted({*ends} - {*roots.lagging} - recordings.read)
    calls = [recordings.blocking(rank) for rank in edges if not edges[rank]]
    places = sorted({row.collective for row in calls if row is not None and not row.is_p2p})
    roots.standing = [recordings.standing(*place) for place in places]
    roots.messages = [row for row in calls if row is not None and row.is_p2p and row.peer in recordings.dumps]
    in_messages = [
        all((row := recordings.blocking(waiter)) is not None and row.is_p2p for waiter in waiters[rank])
        for rank in roots.lagging
    ]
    roots.is_message = bool(in_messages) and all(in_messages)
    return roots
