"""Which call of one rank is which call of another, where their traces begin at different calls; and what repeats."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

MOST_SHIFT = 4  # calls by which the traces of two ranks may begin earlier or later
GOOD = 0.05  # of the time between two calls: ends that differ by less fit as they are
MOST_COMPARED = 200  # calls


def shift_of(kinds: Sequence[str], ends: Sequence[float], own_kinds: Sequence[str], own_ends: Sequence[float]) -> int:
    """Return by how much the numbers of a rank's calls are to be raised to be those of the same calls of another rank.

    The clocks of the two may differ, but not change. The calls are of one group, in order; ends in microseconds.

    >>> shift_of("ababab", [1, 2, 4, 5, 8, 9], "babab", [12, 14, 15, 18, 19])
    1
    """
    if list(kinds[:MOST_COMPARED]) == list(own_kinds[:MOST_COMPARED]) and len(ends) == len(own_ends):
        between = (ends[-1] - ends[0]) / max(len(ends) - 1, 1) if ends else 0.0
        if _spread(kinds, ends, own_kinds, own_ends, 0) <= GOOD * between:
            return 0
    order = sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs)
    return min(order, key=lambda shift: _spread(kinds, ends, own_kinds, own_ends, shift))


def _spread(
    kinds: Sequence[str], ends: Sequence[float], own_kinds: Sequence[str], own_ends: Sequence[float], shift: int
) -> float:
    """How far the ends of the same calls lie apart, beside a constant; infinite where the calls are of other kinds."""
    first = max(0, -shift)
    pairs = range(first, min(len(own_ends), len(ends) - shift, first + MOST_COMPARED))
    if len(pairs) < min(len(ends), len(own_ends)) / 2 and len(pairs) < MOST_COMPARED:
        return float("inf")
    if any(kinds[place + shift] != own_kinds[place] for place in pairs):
        return float("inf")
    apart = [own_ends[place] - ends[place + shift] for place in pairs]
    if not apart:
        return float("inf")
    middle = median(apart)
    return median(abs(value - middle) for value in apart)


def period_of(kinds: Sequence[str]) -> int:
    """Return after how many calls their kinds repeat; 1 where all are equal, 0 where nothing repeats three times.

    >>> period_of("abcabcabcabc"), period_of("aaaa"), period_of("abcdefgh")
    (3, 1, 0)
    """
    for period in range(1, len(kinds) // 3 + 1):
        compared = len(kinds) - period
        equal = sum(kinds[place] == kinds[place + period] for place in range(compared))
        if equal >= 0.95 * compared:
            return period
    return 0
