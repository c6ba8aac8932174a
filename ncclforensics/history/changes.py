"""What came with another version, driver or variable: findings of rules never seen before it, and other bandwidths.

A history shows only that two things coincide: whatever it finds here is possible, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from ncclforensics.history.bands import LEAST_SHARE, Series
from ncclforensics.history.probability import CHANCE, at_least, hypergeometric
from ncclforensics.history.store import History

FEWEST_BEFORE = 3  # runs with another value, before the first with the new one
Facts = list[tuple[str, str, str]]  # fact, the value before, the new value


@dataclass(frozen=True, slots=True)
class Change:
    """Facts that got a new value in the same run, and kept it in the same runs."""

    facts: Facts
    runs: frozenset[int]  # with the new values
    others: frozenset[int]  # with another value of any of these facts; at least FEWEST_BEFORE of them came before
    first_run: int  # with the new values


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """A rule that only runs after a change show."""

    rule: str
    found: int  # runs with the new values that show it
    change: Change


@dataclass(frozen=True, slots=True)
class Shift:
    """A test that is slower or faster after a change than before."""

    test: str
    before: float  # median in GB/s
    after: float
    change: Change


def changes(history: History) -> list[Change]:
    """Return the changes of facts, the earliest first."""
    order = {run: at for at, run in enumerate(history["run"].sort("moment", "run")["run"])}
    facts: dict[frozenset[int], Facts] = {}
    others: dict[frozenset[int], frozenset[int]] = {}
    for (what,), rows in history["fact"].sort("what").group_by("what", maintain_order=True):
        values = dict(sorted(rows.select("run", "value").iter_rows(), key=lambda item: order[item[0]]))
        for value in dict.fromkeys(values.values()):
            runs = frozenset(run for run in values if values[run] == value)
            before = [run for run in values if order[run] < order[_first(runs, order)]]
            if len(before) >= FEWEST_BEFORE:
                facts.setdefault(runs, []).append((str(what), values[before[-1]], value))
                others[runs] = others.get(runs, frozenset()) | (frozenset(values) - runs)
    found = [Change(of_runs, runs, others[runs], _first(runs, order)) for runs, of_runs in facts.items()]
    return sorted(found, key=lambda change: order[change.first_run])


def _first(runs: Iterable[int], order: dict[int, int]) -> int:
    return min(runs, key=order.__getitem__)


def first_seen(history: History, found_changes: list[Change]) -> list[FirstSeen]:
    """Return the rules that came with a change, the least probable by chance first.

    The probability is corrected for the number of rules that any run shows (Bonferroni).
    """
    seen = []
    rules = history["finding"]["rule"].n_unique()
    for (rule,), rows in history["finding"].sort("rule").group_by("rule", maintain_order=True):
        of_rule = set(rows["run"])
        for change in found_changes:
            found = len(of_rule & change.runs)
            by_chance = hypergeometric(len(change.runs) + len(change.others), found, len(change.runs))
            probability = at_least(found, by_chance) * rules
            if found and not of_rule & change.others and probability <= CHANCE:
                seen.append((probability, FirstSeen(str(rule), found, change)))
    return [first for _, first in sorted(seen, key=lambda item: (item[0], item[1].rule))]


def shifts(tests: list[Series], found_changes: list[Change]) -> Iterator[Shift]:
    """Yield the tests that another median came with: more figures on one side of the common one than by chance.

    Mood's median test, with exact probabilities, corrected for the number of tests: single slow runs do not matter.
    """
    judged = [test for test in tests if test.band]
    for test in judged:
        middle = test.median
        for change in found_changes:
            after = [figure.busbw for figure in test.figures if figure.run in change.runs]
            before = [figure.busbw for figure in test.figures if figure.run in change.others]
            if not after or not before or abs(median(after) - median(before)) <= LEAST_SHARE * median(before):
                continue
            is_slower = median(after) < median(before)
            beyond = [(value < middle) if is_slower else (value > middle) for value in (*after, *before)]
            by_chance = hypergeometric(len(beyond), sum(beyond), len(after))
            questions = 2 * len(judged)  # slower or faster
            if at_least(sum(beyond[: len(after)]), by_chance) * questions <= CHANCE:
                yield Shift(test.test, median(before), median(after), change)
