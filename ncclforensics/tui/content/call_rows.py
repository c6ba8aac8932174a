"""The rows of the calls screen: positions of a sequence; of many without a change there is one row, a fold."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass

import polars as pl

CONTEXT = 5  # positions without a change that are shown beside a change, and at the end
FEWEST = 3  # positions that are folded


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive positions at which as many ranks made calls, all of them equal or all of them not."""

    first: int
    last: int
    ranks: int  # that made a call; 0 where the logs show none
    is_equal: bool  # these ranks made the same call


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one position each, or one row of a folded stretch."""

    row: int  # its first
    first: int
    last: int
    fold: Stretch | None = None


class CallRows:
    """The rows of a sequence; `opened` holds the first positions of stretches that are not folded."""

    def __init__(self, stretches: Iterable[Stretch] = (), opened: Set[int] = frozenset()) -> None:
        self._segments: list[Segment] = []
        self.count = 0
        parts = [part for stretch in stretches for part in _segments_of(stretch, opened)]
        for part in parts:
            before = self._segments[-1] if self._segments else None
            if part.fold is None and before is not None and before.fold is None:
                self._segments[-1] = Segment(before.row, before.first, part.last)
            else:
                self._segments.append(Segment(self.count, part.first, part.last, part.fold))
            self.count += 1 if part.fold else part.last - part.first + 1
        self._rows = [segment.row for segment in self._segments]
        self._positions = [segment.first for segment in self._segments]

    def position(self, row: int) -> int:
        """Return the position of a row; of a fold the first."""
        segment = self._segments[bisect_right(self._rows, row) - 1]
        return segment.first if segment.fold else segment.first + row - segment.row

    def fold(self, row: int) -> Segment | None:
        """Return the fold of a row, if it is one."""
        segment = self._segments[bisect_right(self._rows, row) - 1]
        return segment if segment.fold else None

    def row(self, position: int) -> int:
        """Return the row of a position; of one within a fold that of the fold."""
        segment = self._segments[max(0, bisect_right(self._positions, position) - 1)]
        return segment.row if segment.fold else segment.row + min(position, segment.last) - segment.first


def _segments_of(stretch: Stretch, opened: Set[int]) -> list[Segment]:
    """Split a stretch: its ends, which stand beside a change, and a fold between them. Rows are counted later."""
    first = stretch.first + (CONTEXT if stretch.first else 0)
    last = stretch.last - CONTEXT
    if not stretch.is_equal or stretch.first in opened or last - first + 1 < FEWEST:
        return [Segment(0, stretch.first, stretch.last)]
    ends = [Segment(0, stretch.first, first - 1)] if stretch.first < first else []
    return [*ends, Segment(0, first, last, stretch), Segment(0, last + 1, stretch.last)]


def stretches_of(call: pl.DataFrame, signature: pl.Series) -> dict[str, list[Stretch]]:
    """Return the stretches of each communicator with collectives by their position, of others by that of their calls.

    A rank makes one call at a position, so that the number of calls is that of ranks.
    """
    has_collectives = call.group_by("key").agg(pl.col("nth").count() > 0)
    only_p2p = has_collectives.filter(~pl.col("nth"))["key"]
    position = pl.when(pl.col("key").is_in(only_p2p.implode())).then("ordinal").otherwise("nth")
    placed = call.select("key", position=position).with_columns(signature).drop_nulls("position")
    counted = placed.group_by("key", "position").agg(
        pl.len().cast(pl.Int32).alias("ranks"), equal=pl.col("signature").min() == pl.col("signature").max()
    )
    same = ["key", "ranks", "equal"]
    changes = (
        counted.sort("key", "position")
        .with_columns(
            run=(pl.any_horizontal(pl.col(*same).ne_missing(pl.col(*same).shift()))
            | (pl.col("position") != pl.col("position").shift() + 1)).fill_null(value=True).cum_sum()
        )
        .group_by("run", maintain_order=True)
        .agg(pl.col(*same).first(), first=pl.col("position").first(), last=pl.col("position").last())
    )  # fmt: skip
    found: dict[str, list[Stretch]] = defaultdict(list)
    for key, first, last, ranks, is_equal in changes.select("key", "first", "last", "ranks", "equal").iter_rows():
        begin = found[key][-1].last + 1 if found[key] else 0
        if begin < first:  # lines that were not read, or that no log holds
            found[key].append(Stretch(begin, first - 1, 0, is_equal=True))
        found[key].append(Stretch(first, last, ranks, is_equal))
    return found
