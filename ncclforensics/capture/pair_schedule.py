"""Order the tests of all pairs of ranks in rounds of disjoint pairs, so that all ranks are busy at the same time.

Between hosts, each round pairs whole hosts, so that all pairs of a round share the NICs of a host alike and can be
compared. Runs on each rank, and imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]


def rounds_of_pairs(host_of_rank: Sequence[str]) -> list[list[Pair]]:
    """Return rounds of disjoint pairs of ranks that hold every pair once: first those within a host.

    >>> rounds_of_pairs(["a", "a", "b", "b"])
    [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    >>> rounds_of_pairs(["a", "a", "a"])
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    names = dict.fromkeys(host_of_rank)
    hosts = [[rank for rank, name in enumerate(host_of_rank) if name == host] for host in names]
    return [*_within(hosts), *_between(hosts)]


def _within(hosts: Sequence[Sequence[int]]) -> list[list[Pair]]:
    of_hosts = [[[(ranks[a], ranks[b]) for a, b in pairs] for pairs in _tournament(len(ranks))] for ranks in hosts]
    rounds = max(map(len, of_hosts), default=0)
    return [[pair for pairs in of_hosts if nth < len(pairs) for pair in pairs[nth]] for nth in range(rounds)]


def _between(hosts: Sequence[Sequence[int]]) -> list[list[Pair]]:
    rounds = []
    for host_pairs in _tournament(len(hosts)):
        largest = max((len(hosts[host]) for pair in host_pairs for host in pair), default=0)
        for shift in range(largest):
            rounds.append([pair for a, b in host_pairs for pair in _shifted(hosts[a], hosts[b], shift, largest)])
    return [pairs for pairs in rounds if pairs]


def _shifted(first: Sequence[int], second: Sequence[int], shift: int, places: int) -> list[Pair]:
    """Pair each rank of a host with the rank of another one that stands `shift` places further."""
    partners = [(place, (place + shift) % places) for place in range(len(first))]
    pairs = [(first[place], second[other]) for place, other in partners if other < len(second)]
    return [(min(pair), max(pair)) for pair in pairs]


def _tournament(players: int) -> list[list[Pair]]:
    """Return the rounds of a round-robin tournament (circle method); with an odd number one rests in each round."""
    places = [*range(players), *([None] if players % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return [sorted(pairs) for pairs in rounds if pairs]
