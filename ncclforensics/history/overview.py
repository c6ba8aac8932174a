"""The answer of a history: its runs, suspects, starts, bandwidths, and findings that came with a change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import polars as pl

from ncclforensics.history.bands import Series, namings, series
from ncclforensics.history.changes import Change, FirstSeen, Shift, changes, first_seen, shifts
from ncclforensics.history.probability import interval
from ncclforensics.history.returning import ReturningPart, returning_parts
from ncclforensics.history.store import History
from ncclforensics.history.tables import MOMENT, RUN

FAILED_STARTS = ("init-failed", "init-incomplete", "rank-missing")
UNDECIDED = "undecidable"


@dataclass(frozen=True, slots=True)
class Starts:
    """How many starts of a program came past the init of their first communicator."""

    failed: dict[str, int]  # verdict -> starts
    decided: int
    undecided: int

    @property
    def share(self) -> tuple[float, float]:
        """The interval of the share of decided starts that failed."""
        return interval(sum(self.failed.values()), self.decided)


@dataclass(frozen=True)
class Overview:
    """What the runs of a history show; each part is computed when it is asked for."""

    history: History

    @cached_property
    def returning(self) -> list[ReturningPart]:
        """Parts that several runs name, by a rule or a slow test: suspects first, then the least probable."""
        slow = namings(self.history, self.series)
        return returning_parts({**self.history, "naming": pl.concat([self.history["naming"], slow])})

    @cached_property
    def series(self) -> list[Series]:
        """Tests that measured a bus bandwidth."""
        return series(self.history)

    @cached_property
    def first_seen(self) -> list[FirstSeen]:
        """Rules that came with a change."""
        return first_seen(self.history, self._changes)

    @cached_property
    def shifts(self) -> list[Shift]:
        """Tests that became slower or faster with a change."""
        return list(shifts(self.series, self._changes))

    @cached_property
    def _changes(self) -> list[Change]:
        return changes(self.history)

    @cached_property
    def starts(self) -> Starts:
        """Starts that failed, of those that were decided."""
        verdicts = Counter(self.history["start"]["verdict"])
        undecided = verdicts.pop(UNDECIDED, 0)
        failed = {verdict: verdicts[verdict] for verdict in FAILED_STARTS if verdicts[verdict]}
        return Starts(failed, verdicts.total(), undecided)

    @property
    def is_alarming(self) -> bool:
        """Whether there is a suspect, or a test that was slower than this cluster is."""
        return any(part.certainty for part in self.returning) or any(test.below for test in self.series)

    @property
    def is_enough(self) -> bool:
        """Whether there is more than one run, nothing is open, and, where there are tests, any has a band."""
        is_judged = not self.series or any(test.band for test in self.series)
        return self.history["run"].height > 1 and is_judged and not any(part.is_open for part in self.returning)


def within(history: History, since: datetime | None, until: datetime | None) -> History:
    """Return the runs of a time range, both limits included."""
    moment = pl.col("moment").str.to_datetime(MOMENT)
    kept = history["run"].filter(moment >= (since or datetime.min), moment <= (until or datetime.max)).select(RUN)
    return {table: rows.join(kept, on=RUN, how="semi") for table, rows in history.items()}
