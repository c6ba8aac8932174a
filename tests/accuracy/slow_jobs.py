"""How often a slow rank is named in drawn series of steps, and another one where none is slow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import polars as pl

from ncclforensics.analyses.slow.step_window import StepWindow

STEP_US, CALLS_US = 100_000.0, 5_000.0  # work of a usual step, and what its calls take once all ranks are there
SIZES = {(8, 30): 20, (64, 100): 20, (512, 100): 5}  # ranks and steps -> series of each kind
LONGER = (0.0, 0.05, 0.10, 0.25)  # shares by which one rank works longer
Draw = Callable[[random.Random, int, int], list[list[float]]]  # ranks and steps -> deviations of every step


def _gauss(drawn: random.Random, ranks: int, steps: int, *, share: float) -> list[list[float]]:
    return [[drawn.gauss(0, share) for _ in range(ranks)] for _ in range(steps)]


def _by_data(drawn: random.Random, ranks: int, steps: int) -> list[list[float]]:
    return [[drawn.lognormvariate(0, 0.2) - 1 for _ in range(ranks)] for _ in range(steps)]


def _drift(drawn: random.Random, ranks: int, steps: int) -> list[list[float]]:
    """Each step keeps 95 % of the deviation of the step before; a rank deviates by 3 % at any time."""
    deviations = _gauss(drawn, ranks, 1, share=0.03)
    for _ in range(steps - 1):
        deviations.append([0.95 * last + drawn.gauss(0, 0.03 * (1 - 0.95**2) ** 0.5) for last in deviations[-1]])
    return deviations


KINDS: dict[str, Draw] = {
    "1 %": partial(_gauss, share=0.01),
    "3 %": partial(_gauss, share=0.03),
    "20 %, by the data": _by_data,
    "a drift of 3 %": _drift,
}


def section() -> str:
    """The section of the page on accuracy: a row for each size and kind."""
    lines = ["| ranks, steps | series | steps vary by | +5 % | +10 % | +25 % | none slow: named | another named |"]
    lines.append("|---" * 8 + "|")
    lines += rows(SIZES)
    text = (
        "Drawn series of steps of 100 ms, of which one rank works 5, 10 or 25 % longer, or none does: how many `slow` "
        "names\nthat rank in, from the times of all ranks; how many it names one in where none is slow, and another "
        "one where one is.\nA rank that drifts is the slow one for a while, and so may be named."
    )
    return "\n\n".join(["## Slow ranks", text, "\n".join(lines)])


def rows(sizes: Mapping[tuple[int, int], int]) -> Iterator[str]:
    """Yield the rows of series of these sizes: how many series of each."""
    for (ranks, steps), runs in sizes.items():
        for kind, draw in KINDS.items():
            drawn = random.Random(f"{ranks} {kind}")
            found, others = dict.fromkeys(LONGER, 0), 0
            for by in LONGER:
                for _ in range(runs):
                    slow = drawn.randrange(ranks)
                    named = _named(draw(drawn, ranks, steps), slow, by)
                    found[by] += named is not None if by == 0 else named == slow
                    others += by > 0 and named not in (None, slow)
            cells = [f"{found[by]}" for by in LONGER[1:]]
            yield f"| {ranks}, {steps} | {runs} | {kind} | {' | '.join(cells)} | {found[0.0]} | {others} |"


def _named(deviations: list[list[float]], slow: int, by: float) -> int | None:
    """The rank that is named, if any; `slow` works longer by this share."""
    times = []
    for step, row in enumerate(deviations):
        own = [STEP_US * (1 + deviation + by * (rank == slow)) for rank, deviation in enumerate(row)]
        longest = max(own)
        times += [
            {
                "rank": rank, "step": step, "number": step, "ended_us": 0.0, "length_us": longest + CALLS_US,
                "own_us": time, "wait_us": longest - time,
            }
            for rank, time in enumerate(own)
        ]  # fmt: skip
    window = StepWindow(pl.DataFrame(times))
    named = window.named({}, {})
    return None if named is None else window.ranks[named.found.members[0]]
