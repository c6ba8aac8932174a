"""In all small worlds at once: what is certain is true, and what is likely is false only where something was lost.

All sets of logs that three or four ranks can leave are the jobs of one run. Of three ranks, two are a majority that one
lost line undoes; of four, three are not. A fault and a loss concern one call each.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.budget import IS_FULL
from tests.small_worlds import Answer, Logs, Loss, World, ask, worlds

CALLS = {3: 4 if IS_FULL else 2, 4: 3 if IS_FULL else 2}
pytestmark = pytest.mark.xdist_group("small worlds")


@cache
def groups() -> dict[Logs, set[World]]:
    return {logs: behind for ranks, calls in CALLS.items() for logs, behind in worlds(ranks, calls).items()}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """The answers to all groups; each names ranks."""
    return ask(groups(), tmp_path_factory.mktemp("worlds"))


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


@pytest.mark.parametrize("logs", [("a", "bbaa", "bbaa"), ("aabb", "aabb", "b")])
def test_a_call_that_the_others_made_two_calls_later_is_another_call(logs: Logs, tmp_path: Path) -> None:
    """That two lines before it were lost, and nothing behind it, is no simpler: one call agrees by chance."""
    lonely = min(range(3), key=lambda rank: len(logs[rank] or ""))

    (answer,) = ask({logs: worlds(3, 4)[logs]}, tmp_path)

    assert (answer.verdict, answer.culprits) == ("collective-mismatch", {lonely})
    assert answer.true_in
