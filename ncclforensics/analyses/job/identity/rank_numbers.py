"""Numbers of ranks that follow from a count: a log that states a damaged count must not fill the memory."""

from __future__ import annotations

from collections.abc import Set

MOST_RANKS = 1 << 20  # of a communicator; no job has more, and a line that states more is damaged


def numbers_below(count: int) -> range:
    """The rank numbers of a communicator of `count` ranks; none if the count is damaged.

    >>> numbers_below(3), numbers_below(2_147_483_647)
    (range(0, 3), range(0, 0))
    """
    return range(count if count <= MOST_RANKS else 0)


def missing_numbers(nranks: int, present: Set[int | None]) -> list[int]:
    """The rank numbers of a communicator of `nranks` ranks that are not in `present`."""
    return [number for number in numbers_below(nranks) if number not in present]
