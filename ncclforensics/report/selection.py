"""What a report shows of a run: the ranks, hosts and communicators that the reader asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclforensics.errors import UsageError


@dataclass(frozen=True, slots=True)
class Selection:
    """Nothing given selects everything."""

    ranks: frozenset[int] = frozenset()
    host: str | None = None
    communicator: str | None = None

    def shows(self, ranks: Iterable[int], hosts: Iterable[str], communicator: str | None) -> bool:
        """Whether something concerns what was asked for; what names no rank (host, communicator) concerns all."""
        known = (
            (self.ranks, set(ranks)),
            ({self.host} - {None}, set(hosts)),
            ({self.communicator} - {None}, {communicator} - {None}),
        )
        return all(not wanted or not told or wanted & told for wanted, told in known)


def ranks(text: str) -> frozenset[int]:
    """`0-7,12` as numbers. Raises UsageError.

    >>> sorted(ranks("0-2,12"))
    [0, 1, 2, 12]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last if dash else first).isdecimal():
            raise UsageError(f"--ranks {text}: not ranks such as 0-7,12")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
