"""What a step would gain if a rank, or a set of ranks, worked no longer than the others.

A rank that is longest in a step costs the difference to the next longest: without it, the step would wait for that one.
Naming needs more than being longest, which always some rank is: the gain must be
worth it, lasting, and most of what uneven ranks cost at all (measured on balanced, noisy and drifting jobs).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

OwnTimes = Sequence[Sequence[float]]  # of every step, of every rank

FEWEST_STEPS = 20  # ordinary ones
FEWEST_BEHIND_CHANGE = 10  # steps from a change on
WORTH = 0.02  # share of the step that a gain needs
WORTH_OF_PART, PARTS, FEWEST_PARTS = 0.01, 4, 3  # it needs this share in three of four parts
OFTEN_WORTH = 0.5  # and in this share of the steps
OF_LOSS = 0.5  # share of what all uneven arrival costs,
OFTEN_LAST, TIMES_NEXT = 0.5, 5  # or being last so often, and gaining so many times as much as the next
SET_GAIN = 1.5  # of its best member, that a set gains
MEMBER_LATE = 0.02  # share of the step by which each member of a set is later than those outside
ALWAYS_LAST = 0.9  # share of the steps behind a change


@dataclass(frozen=True, slots=True)
class Gain:
    """What the steps would gain without a set of ranks, as shares of them."""

    members: tuple[int, ...]  # places of the ranks
    step_share: float
    loss_share: float  # of what all uneven arrival costs
    last_share: float  # of the steps, in which one of them is the longest
    parts: int  # of four parts of the window, in which it is worth naming
    worth_share: float  # of the steps, in which it is


def gain(own: OwnTimes, lengths: Sequence[float], members: Collection[int]) -> Gain:
    """Return what the steps would gain if these ranks worked no longer than the longest other.

    >>> gain([[1, 1, 4, 2]] * 4, [5] * 4, [2]).step_share
    0.4
    """
    saved, lost, last, worth = [], 0.0, 0, 0
    for times, length in zip(own, lengths, strict=True):
        longest, middle = max(times), median_low(times)
        others = max((time for place, time in enumerate(times) if place not in members), default=middle)
        saved.append(longest - others)
        lost += longest - middle
        last += times.index(longest) in members
        worth += saved[-1] >= WORTH_OF_PART * length
    total, steps = sum(lengths) or 1.0, len(own)
    bounds = [round(steps * part / PARTS) for part in range(PARTS + 1)]
    parts = [
        sum(saved[begin:end]) >= WORTH_OF_PART * sum(lengths[begin:end])
        for begin, end in pairwise(bounds)
        if end > begin
    ]
    return Gain(
        members=tuple(sorted(members)),
        step_share=sum(saved) / total,
        loss_share=sum(saved) / lost if lost else 0.0,
        last_share=last / max(steps, 1),
        parts=sum(parts),
        worth_share=worth / max(steps, 1),
    )


def uneven_share(own: OwnTimes, lengths: Sequence[float]) -> float:
    """Return what the steps would gain, as a share of them, if all ranks worked as long as the median one.

    >>> uneven_share([[1, 1, 4]], [6])
    0.5
    """
    return sum(max(times) - median(times) for times in own) / (sum(lengths) or 1.0)


def latest(own: OwnTimes) -> int:
    """Return the place of the rank that is late most, over all steps."""
    late = [0.0] * len(own[0])
    for times in own:
        middle = median(times)
        for place, time in enumerate(times):
            late[place] += max(time - middle, 0.0)
    return late.index(max(late))


def is_named(found: Gain, others: float, steps: int) -> bool:
    """Whether a gain is worth naming ranks; `others`: the share of the step that the best other rank gains."""
    is_lasting = found.parts >= FEWEST_PARTS and found.worth_share >= OFTEN_WORTH
    is_alone = found.last_share >= OFTEN_LAST and found.step_share >= TIMES_NEXT * others
    is_enough = steps >= FEWEST_STEPS and found.step_share >= WORTH
    return is_enough and is_lasting and (found.loss_share >= OF_LOSS or is_alone)


def is_named_since(found: Gain, steps: int) -> bool:
    """Whether the steps behind a change name ranks: fewer steps suffice, in which they are nearly always last."""
    return (
        steps >= FEWEST_BEHIND_CHANGE
        and found.step_share >= WORTH
        and found.parts >= FEWEST_PARTS
        and found.last_share >= ALWAYS_LAST
        and found.loss_share >= OF_LOSS
    )
