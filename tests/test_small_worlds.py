"""In all small worlds at once: what is certain is true, and what is likely is false only where something was lost.

All sets of logs that three or four ranks can leave are the jobs of one run. Of three ranks, two are a majority that one
lost line undoes; of four, three are not. A fault and a loss concern one call each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from ncclforensics import analyze
from tests.budget import IS_FULL
from tests.small_worlds import Logs, Loss, World, worlds, write

CALLS = {3: 3, 4: 3 if IS_FULL else 2}
OPEN = ("undecidable", "no-hang")
pytestmark = pytest.mark.xdist_group("small worlds")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the program says of some logs, and what may be true of them."""

    logs: Logs
    verdict: str
    certainty: str
    culprits: frozenset[int]
    worlds: frozenset[World]

    @property
    def false_in(self) -> set[Loss]:
        """What was lost in the worlds in which it is false."""
        return {world.loss for world in self.worlds if not world.holds(self.verdict, self.culprits)}

    @property
    def true_in(self) -> set[Loss]:
        return {world.loss for world in self.worlds if world.holds(self.verdict, self.culprits)}


@cache
def groups() -> dict[Logs, set[World]]:
    return {logs: behind for ranks, calls in CALLS.items() for logs, behind in worlds(ranks, calls).items()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """The answers to all groups; each names ranks."""
    folder = tmp_path_factory.mktemp("worlds")
    every = sorted(groups(), key=str)
    write(every, folder)
    report = analyze(str(folder), full=True)
    hosts = dict(report.run["rank"].select("job", "host").iter_rows())
    found = []
    for row in report.verdicts:
        logs = every[int(str(hosts[row["job"]])[1:])]
        named = frozenset([*report.numbers(row["culprits"]), *row["missing"]])
        found.append(Answer(logs, row["verdict"], row["certainty"], named, frozenset(groups()[logs])))
    return [answer for answer in found if answer.verdict not in OPEN]


def test_every_kind_of_fault_is_answered(answers: list[Answer]) -> None:
    assert {answer.verdict for answer in answers} == {"collective-mismatch", "lagging-ranks"}
    assert {answer.certainty for answer in answers} == {"certain", "likely", "possible"}


def test_what_is_certain_is_true_in_every_world(answers: list[Answer]) -> None:
    wrong = [answer for answer in answers if answer.certainty == "certain" and answer.false_in]

    assert wrong == []


def test_what_is_likely_is_false_only_where_something_was_lost(answers: list[Answer]) -> None:
    wrong = [answer for answer in answers if answer.certainty == "likely" and Loss.NOTHING in answer.false_in]

    assert wrong == []


def test_what_is_likely_is_true_in_some_world(answers: list[Answer]) -> None:
    wrong = [answer for answer in answers if answer.certainty == "likely" and not answer.true_in]

    assert wrong == []


def test_a_single_rank_that_stops_is_named(answers: list[Answer]) -> None:
    """Where nothing was lost and two of three ranks made a call that the third lacks, that one is named."""
    named = {answer.logs: answer.culprits for answer in answers if answer.verdict == "lagging-ranks"}

    assert named["a", "ab", "ab"] == {0}
    assert named["", "a", "a"] == {0}
