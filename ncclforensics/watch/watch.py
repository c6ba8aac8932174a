"""Watch a running job: when its calls stop for longer than its rhythm allows, look twice, then name the culprits.

Between two looks only new bytes are read. A look is the analysis of `hang`; it is taken when calls have stopped, in all
logs or in some, or when no call follows a warning.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from ncclforensics import analyze
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.vocabulary import FROM_ENDS
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.settings import Settings
from ncclforensics.errors import NoInputError
from ncclforensics.inputs.sources import forget_spooled
from ncclforensics.report.earlier_look import FollowedLook, paths_of, ranks_of
from ncclforensics.watch.followed_files import FollowedFiles, NewLines, logs_of
from ncclforensics.watch.rhythm import LOOKS, Rhythm
from ncclforensics.watch.step_times import StepTimes
from ncclforensics.watch.stragglers import Straggler, Stragglers

if TYPE_CHECKING:
    from ncclforensics.report.build import Report

WITHOUT_CULPRITS = ("no-hang", "undecidable")
FLOOD = 100  # lines of warnings that one log got between two reads, and
FLOOD_FACTOR = 10  # times the most it got before
LOOK_SHARE = 0.05  # of the time, at most, goes into looks at logs that are behind while others go on
LOOKS_AFTER_WARNING = 2


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a watch ended: two looks gave the same verdict, or the job ended or stands still without a culprit."""

    report: Report
    is_hang: bool


@dataclass(frozen=True, slots=True)
class Look:
    """The verdict on the job that is watched, from one analysis of the logs."""

    time: float
    answer: Answer
    culprits: tuple[int, ...]  # rank numbers
    logs: frozenset[str]  # of the culprits

    @property
    def accusation(self) -> tuple[object, ...]:
        """What two looks must have in common."""
        return self.answer.verdict, self.culprits, self.answer.key, self.answer.operation.ordinal


@dataclass(slots=True)
class _Log:
    """What is kept of one log."""

    rhythm: Rhythm
    most_warnings: int = 0  # between two reads


@dataclass(slots=True)
class Watch:
    """A job that is followed. Times are seconds since the epoch, for they are compared with those of files."""

    files: FollowedFiles
    rank_from: str | None = None
    longest_pause: float | None = None  # in seconds, that the user knows to be healthy
    settings: Settings | None = None
    notify: Callable[[str], None] = lambda text: None  # is called with what happens
    ask_ras: Callable[[], str | None] = lambda: None  # the path of what NCCL's own monitor reports now, if it answers
    clock: Callable[[], float] = time.time
    rhythm: Rhythm | None = None  # of all logs together; None while there are none
    look: Look | None = None  # the latest
    calls: int = 0  # lines seen
    warnings: int = 0  # lines seen
    stragglers: dict[str, Straggler] = field(default_factory=dict)  # by log: those that are named
    step_times: StepTimes = field(default_factory=StepTimes)
    _lag: Stragglers = field(default_factory=Stragglers)
    _logs: dict[str, _Log] = field(default_factory=dict)
    _warned: float | None = None  # the last warning, if no call followed it
    _looks_after_warning: int = 0
    _reports: list[str] = field(default_factory=list)  # of RAS, one for each look since the job stopped
    _next_look: float = 0.0  # the earliest time of a look at logs that are behind

    def step(self) -> Ending | None:
        """Read what is new, and look at the logs if it is time to; return why the watch ends, if it does."""
        now = self.clock()
        grown = self.files.read_new(now)
        if self.rhythm is None:
            if not self.files.names:
                return None
            self.rhythm = Rhythm(min(self.files.newest, now), self.longest_pause)
        self._note(grown, now, self.rhythm)
        self._name_stragglers(now)
        for text in self.step_times.look(self.files.names, grown.keys(), now):
            self.notify(text)
        has_stopped = self.rhythm.is_look_due(now)
        is_after_warning = self._is_look_after_warning_due(now, self.rhythm)
        lagging = [rhythm for rhythm in self._learnt().values() if rhythm.is_look_due(self.rhythm.last)]
        if not has_stopped and not is_after_warning and (not lagging or now < self._next_look):
            return None
        for rhythm in [*lagging, *[self.rhythm] * has_stopped]:
            rhythm.note_look(now)
        self._looks_after_warning += is_after_warning
        goes_on = not has_stopped and not is_after_warning
        ending = self._look_again(now, self.rhythm, goes_on=goes_on)
        self._next_look = now + (self.clock() - now) / LOOK_SHARE
        return ending

    def logs_behind(self) -> list[str]:
        """The logs without a call while others got calls for longer than their own rhythms allow."""
        if self.rhythm is None:
            return []
        return sorted(name for name, rhythm in self._learnt().items() if rhythm.is_silent(self.rhythm.last))

    def _learnt(self) -> dict[str, Rhythm]:
        """The rhythms of single logs that are known."""
        return {name: log.rhythm for name, log in list(self._logs.items()) if log.rhythm.is_learnt}

    def _note(self, grown: dict[str, NewLines], now: float, rhythm: Rhythm) -> None:
        """Note which logs got calls and warnings. Until any log shows a call, whatever is printed is progress."""
        has_progress = False
        for name, new in grown.items():
            self.calls += new.calls
            self.warnings += new.warnings
            log = self._logs.setdefault(name, _Log(Rhythm(now, self.longest_pause)))
            if new.calls:
                log.rhythm.note_calls(now)
            has_progress |= new.calls > 0 or not self.files.shows_calls
            if new.warnings >= max(FLOOD, FLOOD_FACTOR * log.most_warnings):
                self.notify(f"{name}: {new.warnings} warnings of NCCL at once")
            log.most_warnings = max(log.most_warnings, new.warnings)
        if has_progress:
            if rhythm.looks:
                self.notify(f"the job goes on after {rhythm.silence(now):.0f} s")
            rhythm.note_calls(now)
            self._warned, self._looks_after_warning = None, 0
        if any(new.warnings for new in grown.values()):
            self._warned = now

    def _name_stragglers(self, now: float) -> None:
        """Tell which logs the others regularly wait for, and which no longer."""
        self._lag.note(self.files.collectives_so_far(), now)
        found = {straggler.log: straggler for straggler in self._lag.found()}
        for log, straggler in found.items():
            if log not in self.stragglers:
                self.notify(
                    f"{self._ranks_in(log)} may be a straggler (possible): the others waited for it in "
                    f"{straggler.late_rounds} of {straggler.rounds} rounds of calls, for {straggler.waited:.1f} s of "
                    f"{straggler.round_time:.1f} s, by the times at which lines arrived in the logs"
                )
        for log in self.stragglers.keys() - found.keys():
            self.notify(f"{log}: the others no longer wait for it in most rounds of calls")
        self.stragglers = found

    def _ranks_in(self, log: str) -> str:
        """Name the ranks of a log, and the log."""
        paths = [path for path in self.files.names if log in logs_of([path])]
        try:
            ranks = analyze(paths, rank_from=self.rank_from, settings=self.settings).run["rank"]
        except NoInputError:
            return log
        return f"{ranks_text(ranks['rank'].drop_nulls())} ({log})".lstrip()

    def _is_look_after_warning_due(self, now: float, rhythm: Rhythm) -> bool:
        """Whether no call has followed a warning for once, or twice, the longest pause."""
        if self._warned is None or self._looks_after_warning >= LOOKS_AFTER_WARNING:
            return False
        return now > self._warned and now - self._warned >= rhythm.longest * (self._looks_after_warning + 1)

    def _look_again(self, now: float, rhythm: Rhythm, *, goes_on: bool) -> Ending | None:
        """Take a look, compare it with the one before, and report what it shows."""
        earlier = self.look
        if earlier is not None and earlier.time < rhythm.last and not goes_on:
            earlier = None  # this is the first look since the job stopped
        followed = FollowedLook(now - earlier.time, self._with_calls_since(earlier.time)) if earlier else None
        forget_spooled()  # what the look before unpacked
        asked = self.ask_ras()
        self._reports = (self._reports[-1:] if earlier else []) + ([asked] if asked else [])
        try:
            report = analyze(
                [*self.files.paths, *self._reports],
                rank_from=self.rank_from,
                since_look=followed,
                settings=self.settings,
            )
        except NoInputError as error:
            self.notify(str(error))
            return None
        self.look = look = self._look_of(report, now)
        if look is None:
            return None
        if earlier is not None and self._is_confirmed(look, earlier, now, rhythm):
            return Ending(report, is_hang=True)
        has_ended = (look.answer.verdict, look.answer.certainty) == ("no-hang", "certain")
        if has_ended or rhythm.looks == LOOKS:
            return Ending(report, is_hang=False)
        lagging = f"{count_of(len(self.logs_behind()), 'log')} without calls while others go on"
        stopped = f"no call for {rhythm.silence(now):.0f} s, of {rhythm.allowed:.0f} s that the rhythm allows"
        so_far = f"{look.answer.verdict} ({look.answer.certainty})"
        self.notify(f"{lagging if goes_on else stopped}; the logs show {so_far} so far")
        return None

    def _look_of(self, report: Report, now: float) -> Look | None:
        """The verdict on the first job that made calls since it is watched; on the first job if none did."""
        for answer in report.verdicts:
            logs = logs_of(paths_of(report.run, ranks_of(report.run, answer.job)))
            if not logs or not self._logs or not logs.isdisjoint(self._logs):
                culprits = tuple(sorted({*report.numbers(answer.culprits), *answer.missing}))
                paths = paths_of(report.run, pl.Series(answer.culprits, dtype=pl.Int32()))
                return Look(now, answer, culprits, logs_of(paths))
        return None

    def _with_calls_since(self, moment: float) -> frozenset[str]:
        """The paths of the logs that got calls since a moment."""
        recent = {name for name, log in self._logs.items() if log.rhythm.moments and log.rhythm.last > moment}
        return frozenset(path for path in self.files.names if not recent.isdisjoint(logs_of([path])))

    def _is_confirmed(self, look: Look, earlier: Look, now: float, rhythm: Rhythm) -> bool:
        """Whether two looks accuse the same ranks, and calls have stopped for as long as such a verdict needs."""
        if look.answer.verdict in WITHOUT_CULPRITS or look.accusation != earlier.accusation:
            return False
        if rhythm.is_silent(now):
            return True
        if self._looks_after_warning == LOOKS_AFTER_WARNING and look.answer.verdict not in FROM_ENDS:
            return True
        learnt = self._learnt()
        return bool(look.logs) and all(name in learnt and learnt[name].is_silent(rhythm.last) for name in look.logs)
