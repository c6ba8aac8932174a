"""The selection of ranks, host and communicator that a report shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.errors import UsageError
from ncclforensics.frames.protocol import Frames
from ncclforensics.rules.finding import Finding

MOST_RANKS = 1 << 20
LONGEST_RANK = 20  # digits that are looked at: Python refuses to read thousands
MOST_NAMES = 8  # of hosts or communicators that a sentence lists


class Selection(NamedTuple):
    """What to show; an empty selection shows everything."""

    ranks: frozenset[int] = frozenset()
    host: str | None = None
    communicator: str | None = None

    def shows(self, ranks: Iterable[int], hosts: Iterable[str | None], communicator: str | None) -> bool:
        """Whether an item with these ranks, hosts and communicator is shown; one without ranks concerns all ranks."""
        conditions = (
            (self.ranks, set(ranks)),
            ({self.host} - {None}, set(hosts)),
            ({self.communicator} - {None}, {communicator} - {None}),
        )
        return all(not selected or not named or selected & named for selected, named in conditions)

    def problems(self, run: Frames, findings: Iterable[Finding]) -> list[str]:
        """Return a sentence for each option that selects nothing, with what the logs and findings name instead."""
        if not self.ranks and self.host is None and self.communicator is None:
            return []
        places = run["rank"].select("rank", pl.col("host").cast(pl.String))
        known_ranks, known_hosts = set(places["rank"].drop_nulls()), set(places["host"].drop_nulls())
        for finding in findings:
            known_ranks.update(finding.ranks)
            known_hosts.update(finding.hosts)
        known_ids = sorted(run["member"]["key"].cast(pl.String).drop_nulls().unique())
        found = []
        if self.ranks and not self.ranks & known_ranks:
            shown = f"they show {ranks_text(known_ranks)}" if known_ranks else "they show no rank"
            found.append(f"--ranks: the logs do not show {ranks_text(self.ranks)}; {shown}")
        for option, wanted, known, noun in (
            ("--host", self.host, sorted(known_hosts), "host"),
            ("--comm", self.communicator, known_ids, "communicator"),
        ):
            if wanted is not None and wanted not in known:
                found.append(f"{option}: the logs do not show {noun} {wanted}; they show {_listed(known, noun)}")
        return found


def _listed(names: list[str], noun: str) -> str:
    if not names:
        return f"no {noun}"
    more = f" and {count_of(len(names) - MOST_NAMES, 'other')}" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def parse_ranks(text: str) -> frozenset[int]:
    """Parse a list of ranks such as `0-7,12`. Raises UsageError if it is malformed, or names more than any job has.

    >>> sorted(parse_ranks("0-2,12"))
    [0, 1, 2, 12]
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last if dash else first).isdecimal():
            raise UsageError(f"--ranks {text}: not a list of ranks such as 0-7,12")
        numbers = (int(first[:LONGEST_RANK]), int((last or first)[:LONGEST_RANK]))
        if not numbers[0] <= numbers[1] < MOST_RANKS:
            raise UsageError(f"--ranks {text}: ranks ascend in a range, and are below {MOST_RANKS:,}")
        ranks.update(range(numbers[0], numbers[1] + 1))
    return frozenset(ranks)
