"""Measure what intervals of time cover, where they overlap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

Interval = tuple[float, float]  # start and end


class Covered:
    """The union of intervals, and how much of it lies before any moment."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        starts: list[float] = []
        ends: list[float] = []
        for start, end in sorted(intervals):
            if starts and start <= ends[-1]:
                if end > ends[-1]:
                    ends[-1] = end
            else:
                starts.append(start)
                ends.append(end)
        self._starts, self._ends = starts, ends
        self._before = [0.0, *accumulate(end - start for start, end in zip(starts, ends, strict=True))]

    def before(self, moment: float) -> float:
        """How much of it lies before a moment.

        >>> Covered([(0, 2), (1, 3), (5, 6)]).before(5.5)
        3.5
        """
        place = bisect_right(self._starts, moment)
        if not place:
            return 0.0
        return self._before[place] - max(self._ends[place - 1] - moment, 0.0)

    def within(self, start: float, end: float) -> float:
        """How much of it lies between two moments."""
        return self.before(end) - self.before(start)


def exposed(calls: Iterable[Interval], busy: Covered) -> list[float]:
    """How much of each interval, in the order of their starts, neither `busy` nor an earlier interval covers.

    >>> exposed([(0, 4), (2, 6)], Covered([(3, 5)]))
    [3.0, 1.0]
    """
    found: list[float] = []
    covered_until = float("-inf")
    for start, end in calls:
        begin = max(start, covered_until)
        found.append(max(end - begin - busy.within(begin, end), 0.0) if end > begin else 0.0)
        covered_until = max(covered_until, end)
    return found


def unrequested(tasks: Iterable[tuple[float, float, Any]], requested: Mapping[Any, float]) -> Iterator[Interval]:
    """Yield the gaps between tasks, as far as the task behind was not requested yet; nothing where that is not known.

    `tasks`: start, end and key, in the order of their starts; `requested`: when a task was, by its key.

    >>> list(unrequested([(0, 2, "a"), (5, 6, "b"), (9, 10, "c")], {"b": 4, "c": 1}))
    [(2, 4)]
    """
    free: float | None = None
    for start, end, key in tasks:
        moment = min(requested.get(key, start if free is None else free), start)
        if free is not None and moment > free:
            yield free, moment
        free = end if free is None else max(free, end)
