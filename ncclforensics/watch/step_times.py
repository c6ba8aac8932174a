"""Tell when the steps of a watched job become slower, and when they are as fast as before again.

Which logs hold step lines is looked for in all of them, less and less often while none does; afterwards only these are
read, and judged as `slow` judges them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics import analyze
from ncclforensics.analyses.slow.step_change import STEP_CHANGE
from ncclforensics.analyses.slow.step_lines import rate
from ncclforensics.data.settings import Settings
from ncclforensics.errors import NoInputError
from ncclforensics.watch.followed_files import logs_of

RULE = "steps-slower-since"
MUCH = 1.10  # times as long: less is not worth a line
FIRST_SEARCH, LAST_SEARCH = 60.0, 3600.0  # seconds between two searches: twice as long after each that finds nothing
MOST_LOGS = 4  # with step lines: all ranks of a job may print them, and show the same
NEAR = 50  # steps by which the beginning of a change may move as lines are added
COST = 20  # times as long as a look took passes before the next one


@dataclass(slots=True)
class StepTimes:
    """The step lines of a watched job. Times are seconds since the epoch."""

    rank_from: str | None = None
    settings: Settings | None = None
    slower: dict[int, float] = field(default_factory=dict)  # first slow step -> how many times as long steps take
    _logs: tuple[str, ...] = ()  # paths of logs with step lines
    _next: float | None = None
    _search: float = FIRST_SEARCH

    def look(self, paths: Sequence[str], grown: Collection[str], now: float) -> Iterator[str]:
        """Yield what has changed; nothing while it is too early to look again, or no log with step lines grew."""
        if self._next is None:
            self._next = now + self._search
        if now < self._next or (self._logs and logs_of(self._logs).isdisjoint(grown)):
            return
        began = time.monotonic()
        changes = self._changes(paths)
        if not self._logs:
            self._search = min(2 * self._search, LAST_SEARCH)
        self._next = now + max(FIRST_SEARCH if self._logs else self._search, COST * (time.monotonic() - began))
        lasting = changes.filter(
            ~pl.col("has_ended") & pl.col("explained_by").is_null() & (pl.col("ratio") >= MUCH)
        ).to_dicts()
        slower = {}
        for row in lasting:
            known = [step for step in self.slower if row["since_step"] - NEAR <= step <= row["until_step"]]
            slower[known[0] if known else row["since_step"]] = row["ratio"]
            if not known:
                yield (
                    f"since step {row['since_step']:,} steps take {row['ratio']:.3g} times as long: "
                    f"{rate(row['pace_before'], row['unit'])} before, {rate(row['pace'], row['unit'])} since; "
                    "which rank the others wait for, `ncclforensics slow` tells from profiler traces of all ranks"
                )
        for step in self.slower.keys() - slower.keys():
            yield f"steps are no longer slower than before step {step:,}"
        self.slower = slower

    def _changes(self, paths: Sequence[str]) -> pl.DataFrame:
        """Read the logs with step lines; while none is known, both ends of all logs."""
        wanted = [path for path in self._logs if path in paths] or list(paths)
        try:
            run = analyze(
                wanted, full=bool(self._logs), select=[RULE], rank_from=self.rank_from, settings=self.settings
            ).run
        except NoInputError:
            return pl.DataFrame(schema=STEP_CHANGE)
        numbers = run["job_step"]["source"].unique().sort()
        self._logs = tuple(run.inputs[number].source.path for number in numbers.head(MOST_LOGS))
        return run["step_change"]
