"""Steps that take much longer than those around them, and the distance at which they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ncclforensics.analyses.slow.change_points import MIN_RECORDS, levels

LONG = 1.25  # times its neighbours
FAR = 8.0  # times their spread
FEWEST = 3  # long steps
MANY = 5  # long steps; the distances of fewer must all be equal
REGULAR = 0.8  # of the long steps
MOST_LONG = 0.34  # of all lines: what is as frequent is how steps are
EXACT_BELOW = 10  # steps; longer periods may miss by one


@dataclass(frozen=True, slots=True)
class LongSteps:
    """Places of the long steps of a series, and by how much each step is longer than those around it."""

    places: tuple[int, ...]
    excess: tuple[float, ...]  # of every step

    @classmethod
    def of(cls, times: Sequence[float], least: int = MIN_RECORDS) -> LongSteps:
        """Find them in a series of times; `least`: records of a level of the series.

        >>> LongSteps.of([1.0, 1.01] * 10 + [3.0] + [1.0, 1.01] * 10).places
        (20,)
        """
        parts = levels(times, least)
        middles = [part.middle for part in parts for _ in range(part.records)]
        limits = [max(LONG, 1 + FAR * part.spread) for part in parts for _ in range(part.records)]
        return cls(
            tuple(
                place
                for place, (time, middle, limit) in enumerate(zip(times, middles, limits, strict=True))
                if time > limit * middle
            ),
            tuple(time - middle for time, middle in zip(times, middles, strict=True)),
        )

    def recurring(self, begin: int = 0) -> tuple[int, ...]:
        """Return the places from `begin` on of the longest of these steps; empty if there are few, or very many.

        The longest ones are of one kind; shorter ones may have any other cause.
        """
        places = [place for place in self.places if place >= begin]
        if len(places) < FEWEST:
            return ()
        least = sorted((self.excess[place] for place in places), reverse=True)[FEWEST - 1] / FEWEST
        longest = tuple(place for place in places if self.excess[place] >= least)
        return longest if len(longest) <= MOST_LONG * len(self.excess) else ()


def period(places: Sequence[int]) -> int | None:
    """The distance at which numbers follow each other; None if they are irregular.

    It is the most frequent distance, nearly all places are a multiple of it apart, and most of these are taken.

    >>> period([5, 9, 19, 29, 49]), period([3, 20, 31, 60])
    (10, None)
    """
    counted = Counter(after - before for before, after in pairwise(places))
    if len(places) < FEWEST:
        return None
    step = min(counted, key=lambda distance: (-counted[distance], distance))
    if step < 2:
        return None
    slack = 1 if step >= EXACT_BELOW else 0
    fitting = max(
        ([place for place in places if _is_multiple(place - start, step, slack)] for start in places), key=len
    )
    if len(places) < MANY and len(counted) > 1:
        return None
    expected = (fitting[-1] - fitting[0]) / step + 1
    is_regular = len(fitting) >= max(REGULAR * len(places), FEWEST) and len(fitting) * 2 >= expected
    return step if is_regular else None


def _is_multiple(distance: int, step: int, slack: int) -> bool:
    return min(distance % step, -distance % step) <= slack
