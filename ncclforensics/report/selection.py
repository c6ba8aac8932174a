"""The selection of ranks, host and communicator that a report shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclforensics.errors import UsageError


@dataclass(frozen=True, slots=True)
class Selection:
    """What to show; an empty selection shows everything."""

    ranks: frozenset[int] = frozenset()
    host: str | None = None
    communicator: str | None = None

    def shows(self, ranks: Iterable[int], hosts: Iterable[str], communicator: str | None) -> bool:
        """Whether an item with these ranks, hosts and communicator is shown; one without ranks concerns all ranks."""
        conditions = (
            (self.ranks, set(ranks)),
            ({self.host} - {None}, set(hosts)),
            ({self.communicator} - {None}, {communicator} - {None}),
        )
        return all(not selected or not named or selected & named for selected, named in conditions)


def parse_ranks(text: str) -> frozenset[int]:
    """Parse a list of ranks such as `0-7,12`. Raises UsageError if it is malformed.

    >>> sorted(parse_ranks("0-2,12"))
    [0, 1, 2, 12]
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last if dash else first).isdecimal():
            raise UsageError(f"--ranks {text}: not a list of ranks such as 0-7,12")
        ranks.update(range(int(first), int(last or first) + 1))
    return frozenset(ranks)
