"""Rules whose findings came with another version, driver or variable: never before, and too often since for chance."""

from __future__ import annotations

from dataclasses import dataclass

from ncclforensics.history.probability import CHANCE, at_least, hypergeometric
from ncclforensics.history.store import History

FEWEST_BEFORE = 3  # runs with another value, before the first with the new one


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """A rule that only runs with a new value of some facts show. That they are its cause is possible, not shown."""

    rule: str
    found: int  # runs with the new values that show it
    runs: int  # with the new values
    before: int  # runs with other values, none of which shows it
    changes: list[tuple[str, str, str]]  # fact, the value before, the new value
    first_run: int  # with the new values


def first_seen(history: History) -> list[FirstSeen]:
    """Return the rules that came with a change, the least probable by chance first."""
    order = {run: at for at, run in enumerate(history["run"].sort("moment", "run")["run"])}
    found_in = {
        str(rule): set(rows["run"]) for (rule,), rows in history["finding"].group_by("rule", maintain_order=True)
    }
    changes: dict[tuple[str, frozenset[int], frozenset[int]], list[tuple[str, str, str]]] = {}
    for (what,), rows in history["fact"].group_by("what", maintain_order=True):
        values = dict(sorted(rows.select("run", "value").iter_rows(), key=lambda item: order[item[0]]))
        for value in dict.fromkeys(values.values()):
            runs = frozenset(run for run in values if values[run] == value)
            others = frozenset(values) - runs
            first = min(runs, key=order.__getitem__)
            before = [run for run in others if order[run] < order[first]]
            if len(before) < FEWEST_BEFORE:
                continue
            change = (str(what), values[max(before, key=order.__getitem__)], value)
            for rule, of_rule in found_in.items():
                if of_rule & runs and not of_rule & others:
                    changes.setdefault((rule, runs, others), []).append(change)
    seen = []
    for (rule, runs, others), of_runs in changes.items():
        found = len(found_in[rule] & runs)
        probability = at_least(found, hypergeometric(len(runs) + len(others), found, len(runs)))
        if probability <= CHANCE:
            first = min(runs, key=order.__getitem__)
            seen.append((probability, FirstSeen(rule, found, len(runs), len(others), of_runs, first)))
    return [first for _, first in sorted(seen, key=lambda item: (item[0], item[1].rule))]
