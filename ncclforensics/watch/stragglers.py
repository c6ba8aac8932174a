"""Find the logs that the others regularly wait for, from the numbers of calls that they show at each read.

Logs of ranks with the same part in a job show the same number of calls whenever these ranks have met. If a few show
fewer, and all others stand between two reads and go on only after these few have, they may have waited for them.
Lines that arrive late look like calls that are made late, so this is never more than possible. It is seen only
where the others wait for longer than the time between two reads; how often and how long is compared with the job's own
rounds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ncclforensics.analyses.hang.stragglers import MIN_RANKS
from ncclforensics.data.thresholds import LATE_SHARE
from ncclforensics.watch.rhythm import LEARNT

ROUNDS = 2 * LEARNT  # the latest ones, which are judged
WAITING_SHARE = 0.05  # of the time of these rounds, at least, in which the others waited
MOST_UNMET = 50 * ROUNDS  # reads without one at which all show the same number: they have not the same part


@dataclass(frozen=True, slots=True)
class Straggler:
    """A log that the others regularly wait for."""

    log: str
    late_rounds: int
    rounds: int
    waited: float  # seconds of a round, the mean of those in which the others waited
    round_time: float  # seconds, the mean of all


@dataclass(slots=True)
class _Peers:
    """Logs that have shown the same number of calls, and what they showed at the last read."""

    calls: dict[str, int]
    time: float
    round_began: float
    has_met: bool = True  # all showed the same number at the last read
    unmet: int = 0  # reads with calls since all showed the same number
    pending: dict[str, float] = field(default_factory=dict)  # seconds that the others have stood, by the log behind
    waits: dict[str, float] = field(default_factory=dict)  # the same, of this round, where that log went on first
    rounds: deque[tuple[float, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=ROUNDS))

    def note(self, calls: dict[str, int], now: float) -> None:
        """Compare the numbers of calls with those of the last read."""
        last, still_last = _last(self.calls), _last(calls)
        changed = {log for log, number in calls.items() if number != self.calls[log]}
        others_stood = changed <= last
        for log in last:
            if not others_stood and log not in changed:
                self.pending.pop(log, None)  # the others went on without it
            elif others_stood and log in still_last:
                self.pending[log] = self.pending.get(log, 0.0) + now - self.time
        for log in changed & set(self.pending):
            self.waits[log] = self.waits.get(log, 0.0) + self.pending.pop(log)
        if self.has_met and changed:
            self.rounds.append((now - self.round_began, self.waits))
            self.round_began, self.waits = now, {}
        self.pending = {log: seconds for log, seconds in self.pending.items() if log in still_last}
        self.has_met = len(set(calls.values())) == 1
        self.unmet = 0 if self.has_met else self.unmet + bool(changed)
        self.calls, self.time = calls, now

    def stragglers(self) -> list[Straggler]:
        """Return the logs that the others waited for in most of the latest rounds, the longest wait first."""
        if len(self.rounds) < LEARNT:
            return []
        total = sum(seconds for seconds, _ in self.rounds)
        waits: dict[str, list[float]] = defaultdict(list)
        for _, waited in self.rounds:
            for log, seconds in waited.items():
                waits[log].append(seconds)
        found = [
            Straggler(log, len(times), len(self.rounds), sum(times) / len(times), total / len(self.rounds))
            for log, times in waits.items()
            if len(times) >= LATE_SHARE * len(self.rounds) and sum(times) >= WAITING_SHARE * total
        ]
        return sorted(found, key=lambda straggler: (-straggler.waited, straggler.log))


@dataclass(slots=True)
class Stragglers:
    """All logs that were followed from their first line, and show no messages between two ranks.

    A stage of a pipeline makes its calls later than the one before it, which is no fault.
    """

    _peers: list[_Peers] = field(default_factory=list)

    def note(self, calls: Mapping[str, int], now: float) -> None:
        """Note the number of calls that each log has shown so far."""
        self._peers = [
            peers for peers in self._peers if peers.unmet <= MOST_UNMET and all(log in calls for log in peers.calls)
        ]
        for peers in self._peers:
            peers.note({log: calls[log] for log in peers.calls}, now)
        logs_of: dict[int, list[str]] = defaultdict(list)
        for log, number in calls.items():
            logs_of[number].append(log)
        for number, logs in logs_of.items():
            inside = [peers for peers in self._peers if not peers.calls.keys().isdisjoint(logs)]
            known = set().union(*(peers.calls for peers in inside))
            if number and len(logs) >= MIN_RANKS and known < set(logs):
                self._peers = [peers for peers in self._peers if peers not in inside]
                self._peers.append(_Peers(dict.fromkeys(logs, number), now, now))

    def found(self) -> list[Straggler]:
        """Return the stragglers among all logs."""
        return [straggler for peers in self._peers for straggler in peers.stragglers()]


def _last(calls: Mapping[str, int]) -> set[str]:
    """Return the logs with the fewest calls, unless these are half of all or more."""
    fewest = min(calls.values())
    last = {log for log, number in calls.items() if number == fewest}
    return last if 2 * len(last) < len(calls) else set()
