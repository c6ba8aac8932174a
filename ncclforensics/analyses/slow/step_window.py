"""The steps of all ranks side by side, and what they name: a rank, a host, a group, or periodic stalls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import comb
from statistics import median

import polars as pl

from ncclforensics.analyses.slow.what_if import (
    FEWEST_STEPS,
    MEMBER_LATE,
    SET_GAIN,
    Gain,
    change_in,
    gain,
    is_named,
    is_named_since,
    latest,
    ordinary_steps,
)

FEWEST_STALLS = 3
SAME_DISTANCE = 0.8  # share of the distances between stalls that are one period, or several
NAMED_BY_CHANCE, RARELY = 0.07, 0.02  # how often chance makes one rank the longest in so many stalls
FEWEST_MEMBERS = 3  # ranks, of which two can tell that the third is late
APART_SHARE, APART_US = 0.05, 1000.0  # of a step, and at least: by so much may the ends of calls lie apart
TIMES_APART = 3  # so many times as much as the ends lie apart must a rank be late
Members = frozenset[int]


@dataclass(frozen=True, slots=True)
class Named:
    """The ranks that the others wait for: their places, what that costs, and the step from which on."""

    found: Gain
    since: int | None  # place of the step, if it was not so from the beginning
    kind: str  # rank, host, group
    name: str  # of the host or group
    steps: int  # that were judged


@dataclass(frozen=True, slots=True)
class Stalls:
    """Long steps at equal distances, and the rank that is the longest in most of them."""

    places: tuple[int, ...]
    period: int
    owner: int | None  # place of a rank
    owned: int  # stalls in which it is the longest
    share: float  # of all time
    chance: float  # how often chance makes any rank the longest in so many of them


class StepWindow:
    """The steps that the traces of all ranks have in common."""

    def __init__(self, own_time: pl.DataFrame) -> None:
        self.ranks: list[int] = sorted(own_time["rank"].unique().to_list())
        steps = own_time.sort("step", "rank").group_by("step", maintain_order=True)
        rows = steps.agg("own_us", "length_us", pl.col("number").max(), ended_us=pl.col("ended_us").min())
        self.own: list[list[float]] = rows["own_us"].to_list()
        lengths: list[list[float]] = rows["length_us"].to_list()
        self.lengths = [median(values) for values in lengths]
        self.apart = [max(values) - min(values) for values in lengths]
        self.numbers: list[int | None] = rows["number"].to_list()
        self.ended: list[float] = rows["ended_us"].to_list()

    @cached_property
    def ordinary(self) -> list[int]:
        """Places of the steps that are no stalls."""
        return [place for place, is_ordinary in enumerate(ordinary_steps(self.own)) if is_ordinary]

    @property
    def length(self) -> float:
        """Microseconds of an ordinary step."""
        return median(self.lengths[place] for place in self.ordinary)

    @property
    def apart_us(self) -> float:
        """By how many microseconds the ends of the same steps usually lie apart, clocks aside."""
        return median(self.apart)

    @property
    def ends_together(self) -> bool:
        """Whether all ranks end their steps together, as they do where all wait for the last."""
        return self.apart_us <= max(APART_US, APART_SHARE * self.length)

    def late_by(self, places: Sequence[int], members: Members) -> list[float]:
        """By how much the latest of some ranks works longer than the median rank, in each of these steps."""
        return [max(self.own[place][rank] for rank in members) - median(self.own[place]) for place in places]

    def named(self, groups: Mapping[str, Members], hosts: Mapping[str, Members]) -> Named | None:
        """Return the ranks that the others wait for. `groups`, `hosts`: name -> the rank numbers of its members."""
        if len(self.ranks) < FEWEST_MEMBERS or len(self.ordinary) < FEWEST_STEPS:
            return None
        place_of = {rank: place for place, rank in enumerate(self.ranks)}
        sets = [
            (kind, name, frozenset(place_of[rank] for rank in members if rank in place_of))
            for kind, named in (("host", hosts), ("group", groups))
            for name, members in named.items()
        ]
        sets = [entry for entry in sets if 1 < len(entry[2]) < len(self.ranks)]
        single = self._single(self.ordinary)
        for kind, name, members in sorted(sets, key=lambda entry: len(entry[2])):
            if found := self._set(kind, name, members):
                return found
        return single

    def late_ranks(self) -> list[int]:
        """The numbers of the ranks that usually work longer than the median rank."""
        late = [
            median(self.own[place][rank] - median(self.own[place]) for place in self.ordinary)
            for rank in range(len(self.ranks))
        ]
        return [self.ranks[rank] for rank, value in enumerate(late) if value >= MEMBER_LATE * self.length]

    def _single(self, places: Sequence[int]) -> Named | None:
        """Return the rank that the others wait for, from the beginning or from a change on."""
        own = [self.own[place] for place in places]
        return self._judged("rank", "", frozenset([latest(own)])) or self._changed()

    def _changed(self) -> Named | None:
        """Return the rank that became late, where that is too short to be named over all steps."""
        last_steps = [self.own[place] for place in self.ordinary[-FEWEST_STEPS // 2 :]]
        members = frozenset([latest(last_steps)])
        at = change_in(self.late_by(self.ordinary, members), self.length)
        if at is None:
            return None
        places = self.ordinary[at:]
        found = self._gain(places, members)
        is_clear = self._is_clear(places, members)
        return (
            Named(found, places[0], "rank", "", len(places))
            if is_clear and is_named_since(found, len(places))
            else None
        )

    def _set(self, kind: str, name: str, members: Members) -> Named | None:
        """Return a set each of whose members is late, so that it gains more than its best member alone."""
        outside = [rank for rank in range(len(self.ranks)) if rank not in members]
        for rank in members:
            late = median(
                self.own[place][rank] - median(self.own[place][other] for other in outside) for place in self.ordinary
            )
            if late < MEMBER_LATE * self.length:
                return None
        best = max(self._gain(self.ordinary, frozenset([rank])).step_share for rank in members)
        found = self._judged(kind, name, members)
        return found if found and found.found.step_share >= SET_GAIN * best else None

    def _judged(self, kind: str, name: str, members: Members) -> Named | None:
        found = self._gain(self.ordinary, members)
        others = [self._gain(self.ordinary, frozenset([rank])).step_share for rank in self._rivals(members)]
        if not is_named(found, max(others, default=0.0), len(self.ordinary)):
            return None
        if not self._is_clear(self.ordinary, members):
            return None
        at = change_in(self.late_by(self.ordinary, members), self.length)
        places = self.ordinary if at is None else self.ordinary[at:]
        return Named(self._gain(places, members), None if at is None else places[0], kind, name, len(places))

    def _rivals(self, members: Members) -> set[int]:
        """The other ranks that are the longest in any step: none else gains anything."""
        longest = {self.own[place].index(max(self.own[place])) for place in self.ordinary}
        return longest - members

    def _gain(self, places: Sequence[int], members: Members) -> Gain:
        return gain([self.own[place] for place in places], [self.lengths[place] for place in places], members)

    def _is_clear(self, places: Sequence[int], members: Members) -> bool:
        """Whether some ranks are later than the ends of the calls lie apart, whatever the reason for that."""
        late = [value for value in self.late_by(places, members) if value > 0]
        return self.ends_together or (bool(late) and median(late) >= TIMES_APART * self.apart_us)

    @cached_property
    def stalls(self) -> Stalls | None:
        """Long steps at equal distances; None if there are fewer than three, or they come without a rhythm."""
        places = [place for place in range(len(self.own)) if place not in set(self.ordinary)]
        if len(places) < FEWEST_STALLS:
            return None
        distances = [later - earlier for earlier, later in pairwise(places)]
        period = min(distances)
        fits = [abs(distance - round(distance / period) * period) <= (period > FEWEST_STALLS) for distance in distances]
        if sum(fits) < SAME_DISTANCE * len(distances) or period < FEWEST_STALLS:
            return None
        longest = Counter(self.own[place].index(max(self.own[place])) for place in places)
        owner, owned = longest.most_common(1)[0]
        chance = _chance(owned, len(places), len(self.ranks))
        lost = sum(self.lengths[place] - self.length for place in places)
        return Stalls(
            places=tuple(places),
            period=period,
            owner=owner if chance <= NAMED_BY_CHANCE else None,
            owned=owned,
            share=lost / sum(self.lengths),
            chance=chance,
        )


def _chance(owned: int, stalls: int, ranks: int) -> float:
    """Return how often chance makes any of so many ranks the longest in `owned` or more of the stalls.

    >>> round(_chance(4, 4, 4), 4)
    0.0156
    """
    tail = (
        comb(stalls, count) * (1 / ranks) ** count * (1 - 1 / ranks) ** (stalls - count)
        for count in range(owned, stalls + 1)
    )
    return ranks * sum(tail)
