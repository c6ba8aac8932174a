"""Whether an answer is true, and whether it accuses an innocent rank or part.

Needs nothing but Python: a copy of this folder can score answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

# What is true as well of a job of which the first is true, if the ranks are the same.
ALSO_TRUE = {
    "rank-died": {"lagging-ranks"},  # it did not make the call either
    "p2p-unmatched": {"lagging-ranks"},
    "rank-missing": {"init-incomplete"},
    "init-failed": {"init-incomplete", "rank-missing"},
}
OPEN = "undecidable"
Named = int | str  # a rank of the job, or a host, a switch or an adapter of a fabric


class Outcome(StrEnum):
    """What an answer is worth, the best first."""

    RIGHT = "right"  # a true verdict, and exactly the culprits
    WEAKER = "weaker"  # nothing false is claimed: not decided, fewer culprits, or no more than possible
    WRONG = "wrong"  # an innocent rank or a false verdict, as likely or certain; or no answer


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a job: any of these verdicts, with any of these sets of culprits."""

    verdicts: frozenset[str]
    culprits: tuple[frozenset[Named], ...] = (frozenset(),)
    is_visible: bool = True  # whether the lines can show it; if not, it is right to leave it open

    @property
    def guilty(self) -> frozenset[Named]:
        """All that may be called a culprit."""
        return frozenset().union(*self.culprits)


@dataclass(frozen=True, slots=True)
class Judgement:
    """An answer held against the truth."""

    outcome: Outcome
    innocent: tuple[Named, ...] = ()  # the innocent that are called culprits, however sure
    answer: str = ""
    verdict: str = OPEN
    certainty: str = ""
    is_true: bool = False  # the verdict is true and names no innocent rank, however sure it is


def judge(hang: Json, truth: Truth) -> Judgement:
    """Hold a verdict, as the JSON report has it, against the truth."""
    verdict, certainty = hang["verdict"], hang["certainty"]
    named = frozenset(hang["culprits"])
    innocent = tuple(sorted(named - truth.guilty, key=str))
    answer = f"{verdict} {sorted(named, key=str)} ({certainty})"
    outcome = _outcome(verdict, named, certainty != "possible", bool(innocent), truth)
    is_true = verdict in _true(truth) and not innocent
    return Judgement(outcome, innocent, answer, verdict, certainty, is_true)


def _true(truth: Truth) -> frozenset[str]:
    return truth.verdicts.union(*(ALSO_TRUE.get(name, set()) for name in truth.verdicts))


def _outcome(verdict: str, named: frozenset[Named], is_sure: bool, names_innocent: bool, truth: Truth) -> Outcome:
    true = _true(truth)
    if verdict in true and (named in truth.culprits or OPEN in truth.verdicts):
        return Outcome.WRONG if names_innocent and is_sure else Outcome.RIGHT
    if not truth.is_visible and (verdict == OPEN or (verdict in true and not names_innocent)):
        return Outcome.RIGHT  # more than that cannot be known
    if not is_sure or (verdict == OPEN and not names_innocent):
        return Outcome.WEAKER
    return Outcome.WEAKER if verdict in true and not names_innocent else Outcome.WRONG
