"""How Polars' engine is run: on its own threads, on this one alone, or on several of ours, each alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

import polars as pl

Item = TypeVar("Item")
Result = TypeVar("Result")
InTurn = Callable[[Callable[[Item], Result], Iterable[Item]], Iterator[Result]]


def alone(work: Callable[[], Result]) -> Result:
    """Do some work with the engine on this thread alone. Raises what `work` raises.

    Inside of a function that the engine itself calls, it hands nothing to its threads, lest they wait for this one. On
    a frame of few rows the handing over is most of what a call costs (Polars 2.1, 2 cores: 0.2 ms of 0.25), and readers
    that already share the cores among them gain nothing by it.
    """
    done: list[Result] = []
    failed: list[BaseException] = []

    def inside(frame: pl.DataFrame) -> pl.DataFrame:
        try:
            done.append(work())
        except BaseException as error:  # to be raised as it is: the engine would make an error of its own of it
            failed.append(error)
        return frame

    pl.LazyFrame({"": [0]}).map_batches(inside).collect()
    if failed:
        raise failed[0]
    return done[0]


def in_turn(work: Callable[[Item], Result], items: Iterable[Item], pool: Executor, ahead: int) -> Iterator[Result]:
    """What becomes of each item, in their order. So many at once are worked on in a pool; one is worked on here."""
    if ahead < 2:
        yield from map(work, items)
        return
    begun: deque[Future[Result]] = deque()
    for item in items:
        begun.append(pool.submit(alone, partial(work, item)))
        if len(begun) == ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()
