"""The steps of all ranks side by side, and what they name: a rank, a host, a group, or periodic stalls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from math import comb
from statistics import median

import polars as pl

from ncclforensics.analyses.slow.change_points import levels
from ncclforensics.analyses.slow.stalls import LongSteps, period
from ncclforensics.analyses.slow.what_if import (
    ALWAYS_LAST,
    FEWEST_BEHIND_CHANGE,
    FEWEST_STEPS,
    MEMBER_LATE,
    SET_GAIN,
    Gain,
    gain,
    is_named,
    is_named_since,
    latest,
)

NAMED_BY_CHANCE, RARELY = 0.07, 0.02  # how often chance makes one rank the longest in so many stalls
HARDLY_EVER = 0.001  # and in so many steps
FEWEST_MEMBERS = 3  # ranks, of which two can tell that the third is late
APART_SHARE, APART_US = 0.05, 1000.0  # of a step, and at least: by so much may the ends of calls lie apart
SEEN_IN_CALLS = 0.5  # share of its lateness by which the others wait longer than the named rank
FEW_MEMBERS = 1 / 16  # of all ranks
MOST_LATE = 1 / 4  # of all ranks: where more of them work longer than the others, they do other work
CLEAR_SET = 0.1  # share of the step that these few ranks cost together
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
        rows = steps.agg("own_us", "wait_us", "length_us", pl.col("number").max(), ended_us=pl.col("ended_us").min())
        self.own: list[list[float]] = rows["own_us"].to_list()
        self.waits: list[list[float]] = rows["wait_us"].to_list()
        lengths: list[list[float]] = rows["length_us"].to_list()
        self.lengths = [median(values) for values in lengths]
        self.apart = [max(values) - min(values) for values in lengths]
        self.numbers: list[int | None] = rows["number"].to_list()
        self.ended: list[float] = rows["ended_us"].to_list()

    @cached_property
    def _long(self) -> LongSteps:
        return LongSteps.of([max(times) for times in self.own])

    @cached_property
    def ordinary(self) -> list[int]:
        """Places of the steps that are no stalls."""
        long = set(self._long.places)
        return [place for place in range(len(self.own)) if place not in long]

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
        return [max(self.own[place][rank] for rank in members) - self._middles[place] for place in places]

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
        sets = [entry for entry in sets if 1 < len(entry[2]) < len(self.ranks) and self._may_be_late(entry[2])]
        single = self._single()
        for kind, name, members in sorted(sets, key=lambda entry: len(entry[2])):
            if found := self._set(kind, name, members):
                return found
        return single or self._several()

    def _several(self) -> Named | None:
        """Return a few ranks that are clearly late together: nothing else but this shows that they belong together."""
        places = frozenset(place for place, rank in enumerate(self.ranks) if rank in self.late_ranks())
        is_few = 1 < len(places) <= MOST_LATE * len(self.ranks)
        named = self._set("rank", "", places) if is_few else None
        is_clear = named and named.found.last_share >= ALWAYS_LAST and named.found.step_share >= CLEAR_SET
        return named if is_clear else None

    @cached_property
    def _middles(self) -> list[float]:
        """How long the median rank works in each step."""
        return [median(times) for times in self.own]

    @cached_property
    def _often_late(self) -> frozenset[int]:
        """Places of the ranks that are later than the median rank by half of MEMBER_LATE, always or in the end."""
        least, late = MEMBER_LATE / 2 * self.length, set()
        for places in (self.ordinary, self.ordinary[-FEWEST_BEHIND_CHANGE:]):
            for rank in range(len(self.ranks)):
                if median(self.own[place][rank] - self._middles[place] for place in places) >= least:
                    late.add(rank)
        return frozenset(late)

    def _may_be_late(self, members: Members) -> bool:
        """Whether a set is worth a comparison with the ranks outside, which takes long if there are thousands.

        So few ranks hardly move the median of all; of larger sets there are few.
        """
        return len(members) > FEW_MEMBERS * len(self.ranks) or members <= self._often_late

    def late_ranks(self) -> list[int]:
        """The numbers of the ranks that usually work longer than the median rank, by more than chance explains."""
        steps, ranks = len(self.ordinary), []
        for rank, number in enumerate(self.ranks):
            late = [self.own[place][rank] - self._middles[place] for place in self.ordinary]
            later = sum(value > 0 for value in late)
            is_chance = often_by_chance(later, steps, 0.5) * len(self.ranks) > RARELY
            if median(late) >= MEMBER_LATE * self.length and not is_chance:
                ranks.append(number)
        return ranks

    def _single(self) -> Named | None:
        """Return the rank that the others wait for: that which is late most, or most in the last steps."""
        own = [self.own[place] for place in self.ordinary]
        candidates = dict.fromkeys((latest(own), latest(own[-FEWEST_BEHIND_CHANGE:])))
        named = (self._judged("rank", "", frozenset([rank])) for rank in candidates)
        return next(filter(None, named), None)

    def _became_late(self, members: Members) -> int | None:
        """Return the ordinary step from which on some ranks are later than before; None if they are from the first on.

        The series is that of steps whose length varies with the lateness of these ranks alone.
        """
        lengths = [self.length + late for late in self._later_than_outside(members, self.ordinary)]
        parts = levels(lengths, FEWEST_BEHIND_CHANGE // 2, 1 + MEMBER_LATE)
        return parts[-1].start if len(parts) > 1 and parts[-1].middle > parts[-2].middle else None

    def _later_than_outside(self, members: Members, places: Sequence[int]) -> list[float]:
        """By how much the median of some ranks works longer than that of the others, in each of these steps."""
        outside = [rank for rank in range(len(self.ranks)) if rank not in members]
        return [
            median(self.own[place][rank] for rank in members) - median(self.own[place][rank] for rank in outside)
            for place in places
        ]

    def _set(self, kind: str, name: str, members: Members) -> Named | None:
        """Return a set each of whose members is late, so that it gains more than its best member alone."""
        found = self._judged(kind, name, members)
        if found is None:
            return None
        places = [place for place in self.ordinary if found.since is None or place >= found.since]
        outside = [rank for rank in range(len(self.ranks)) if rank not in members]
        for rank in members:
            late = median(
                self.own[place][rank] - median(self.own[place][other] for other in outside) for place in places
            )
            if late < MEMBER_LATE * self.length:
                return None
        best = max(self._gain(places, frozenset([rank])).step_share for rank in members)
        return found if found.found.step_share >= SET_GAIN * best else None

    def _judged(self, kind: str, name: str, members: Members) -> Named | None:
        """Return these ranks if the others wait for them in the whole window, or since they became late."""
        at = self._became_late(members)
        places = self.ordinary if at is None else self.ordinary[at:]
        found = self._gain(places, members)
        is_since = at is not None and is_named_since(found, len(places))
        if not (is_since or self._is_named_throughout(members)) or not self._is_clear(places, members):
            return None
        return Named(found, None if at is None else places[0], kind, name, len(places))

    def _is_named_throughout(self, members: Members) -> bool:
        found, steps = self._gain(self.ordinary, members), len(self.ordinary)
        is_chance = self._chance(round(found.last_share * steps), steps, len(members)) > HARDLY_EVER
        return is_named(found, self._best_of_others(members), steps) and not is_chance

    def _best_of_others(self, members: Members) -> float:
        """The share of the steps that would be gained without the best rank outside: it gains where it is longest."""
        gained: dict[int, float] = defaultdict(float)
        for place in self.ordinary:
            longest, next_longest = nlargest(2, self.own[place])
            gained[self.own[place].index(longest)] += longest - next_longest
        outside = (time for rank, time in gained.items() if rank not in members)
        return max(outside, default=0.0) / (sum(self.lengths[place] for place in self.ordinary) or 1.0)

    def _gain(self, places: Sequence[int], members: Members) -> Gain:
        return gain([self.own[place] for place in places], [self.lengths[place] for place in places], members)

    def _is_clear(self, places: Sequence[int], members: Members) -> bool:
        """Whether all wait for the same, or else the calls show, too, that the others wait for these ranks.

        Where ends of calls lie apart, a rank may work longer because it began earlier: then none waits for it.
        """
        if self.ends_together:
            return True
        late = median(self.late_by(places, members))
        less = median(median(self.waits[place]) - min(self.waits[place][rank] for rank in members) for place in places)
        return less >= SEEN_IN_CALLS * late

    def _chance(self, last: int, steps: int, members: int = 1) -> float:
        """Return how often chance makes any rank, or set of so many, the longest in `last` or more of the steps."""
        share = members / len(self.ranks)
        return often_by_chance(last, steps, share) / share

    @cached_property
    def stalls(self) -> Stalls | None:
        """Long steps at equal distances; None if there are fewer than three, or they come without a rhythm."""
        places = self._long.recurring()
        if not places:
            return None
        longest = [self.own[place].index(max(self.own[place])) for place in places]
        owner, owned = Counter(longest).most_common(1)[0]
        chance = self._chance(owned, len(places))
        is_owned = chance <= NAMED_BY_CHANCE
        own = [place for place, rank in zip(places, longest, strict=True) if rank == owner and is_owned]
        every = period(own) or period(places)
        if every is None:
            return None
        lost = sum(self.lengths[place] - self.length for place in places)
        return Stalls(
            places=places,
            period=every,
            owner=owner if is_owned else None,
            owned=owned,
            share=lost / sum(self.lengths),
            chance=chance,
        )


def often_by_chance(times: int, of: int, share: float) -> float:
    """Return how often something of this probability happens so many times, or more.

    >>> often_by_chance(3, 4, 0.5)
    0.3125
    """
    return sum(comb(of, count) * share**count * (1 - share) ** (of - count) for count in range(times, of + 1))
