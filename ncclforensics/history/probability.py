"""Exact probabilities of counts, and an interval for a share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb, sqrt
from statistics import NormalDist

LEVEL = 0.95  # of intervals
CHANCE = 1 - LEVEL  # what is at most as probable as this does not happen by chance


def interval(count: int, of: int) -> tuple[float, float]:
    """Return Wilson's interval for a share, which holds for small numbers and for shares of 0 and 1.

    Wilson, Probable inference, the law of succession, and statistical inference (1927); NIST handbook, 7.2.4.1.

    >>> [round(bound, 2) for bound in interval(0, 10)], [round(bound, 2) for bound in interval(3, 4)]
    ([0.0, 0.28], [0.3, 0.95])
    """
    if not of:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = count / of
    scale = 1 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    half = z / scale * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def hypergeometric(population: int, marked: int, drawn: int) -> list[float]:
    """Return the probabilities that 0, 1, 2, … of the drawn are marked.

    >>> hypergeometric(4, 1, 2)
    [0.5, 0.5]
    """
    ways = comb(population, drawn)
    return [
        comb(marked, count) * comb(population - marked, drawn - count) / ways for count in range(min(marked, drawn) + 1)
    ]


def sum_of(distributions: Iterable[Sequence[float]]) -> list[float]:
    """Return the distribution of the sum of independent counts.

    >>> sum_of([[0.5, 0.5], [0.5, 0.5]])
    [0.25, 0.5, 0.25]
    """
    total = [1.0]
    for distribution in distributions:
        added = [0.0] * (len(total) + len(distribution) - 1)
        for count, probability in enumerate(total):
            for more, share in enumerate(distribution):
                added[count + more] += probability * share
        total = added
    return total


def at_least(count: int, distribution: Sequence[float]) -> float:
    """Return the probability of a count of at least this."""
    return min(sum(distribution[count:]), 1.0)


def mean(distribution: Sequence[float]) -> float:
    """Return the expected count."""
    return sum(count * probability for count, probability in enumerate(distribution))
