"""The answers on simulated jobs get no worse: a small part of `make scores`, against what was noted last.

`pytest tests/accuracy --update` notes them anew.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.intervals import wilson
from benchmark.judge import Outcome, Truth, judge
from ncclforensics.simulate.plan import RELEASES
from tests.accuracy.against import changed_answers
from tests.accuracy.calibration import Worth, plot, worth
from tests.accuracy.cases import Case, can_be_handled, simulated
from tests.accuracy.page import CALIBRATED, Measured, page
from tests.accuracy.run import LOSING, Result, Trial, _ranks_in, run
from tests.accuracy.slow_jobs import SIZES, rows
from tests.budget import IS_FULL
from tests.handlings import KEPT
from tests.incidents import ROOT

pytestmark = pytest.mark.xdist_group("accuracy")  # all renew one file
EXPECTED = Path(__file__).parent / "expected.json"
OUTCOMES = list(Outcome)
HANDLINGS = 2  # with each job


def jobs() -> list[Case]:
    """One job of every fault, of the versions in turn."""
    versions = {version: simulated([version], jobs=1) for version in RELEASES}
    turns = list(versions.values())
    return [turns[number % len(turns)][number] for number in range(len(turns[0]))]


def trials(case: Case) -> list[Trial]:
    handlings = random.Random(case.name).sample([*KEPT, *LOSING], HANDLINGS) if can_be_handled(case) else []
    return [Trial(case), *(Trial(case, handling) for handling in handlings)]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("case", jobs(), ids=lambda case: case.name)
def test_no_answer_is_worse_than_the_one_that_was_noted(case: Case, request: pytest.FixtureRequest) -> None:
    noted = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    found = {trial.name: run(trial).outcome for trial in trials(case)}
    if request.config.getoption("--update"):
        note({**noted, **found})
        return

    worse = {name: outcome for name, outcome in found.items() if ranking(outcome) > ranking(noted.get(name))}
    better = {name: outcome for name, outcome in found.items() if ranking(outcome) < ranking(noted.get(name))}

    assert not worse, f"worse than {EXPECTED.name} notes: {worse}"
    assert not better, f"better than {EXPECTED.name} notes; renew it by `pytest tests/accuracy --update`: {better}"


def note(outcomes: dict[str, Outcome]) -> None:
    EXPECTED.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def ranking(outcome: str | None) -> int:
    """Where an outcome stands, the best first; what was not noted stands behind all."""
    return OUTCOMES.index(Outcome(outcome)) if outcome else len(OUTCOMES)


def test_only_answers_of_today_are_noted(request: pytest.FixtureRequest) -> None:
    noted = json.loads(EXPECTED.read_text(encoding="utf-8"))
    today = {trial.name for case in jobs() for trial in trials(case)}
    if request.config.getoption("--update"):
        noted = {name: outcome for name, outcome in noted.items() if name in today}
        note(noted)

    assert set(noted) == today


LAGGING = Truth(frozenset({"lagging-ranks"}), (frozenset({3}),))


@pytest.mark.parametrize(
    ("verdict", "culprits", "certainty", "outcome"),
    [
        ("lagging-ranks", [3], "likely", Outcome.RIGHT),
        ("undecidable", [], "certain", Outcome.WEAKER),
        ("lagging-ranks", [], "likely", Outcome.WEAKER),
        ("lagging-ranks", [3, 5], "possible", Outcome.WEAKER),
        ("lagging-ranks", [3, 5], "likely", Outcome.WRONG),
        ("lagging-ranks", [5], "certain", Outcome.WRONG),
        ("rank-died", [3], "likely", Outcome.WRONG),
        ("no-hang", [], "certain", Outcome.WRONG),
        ("no-hang", [], "possible", Outcome.WEAKER),
    ],
)
def test_an_answer_is_held_against_the_truth(
    verdict: str, culprits: list[int], certainty: str, outcome: Outcome
) -> None:
    judgement = judge({"verdict": verdict, "culprits": culprits, "certainty": certainty}, LAGGING)

    assert judgement.outcome is outcome
    assert judgement.innocent == ((5,) if 5 in culprits else ())


def test_what_the_lines_cannot_show_is_rightly_left_open() -> None:
    hidden = Truth(frozenset({"rank-missing"}), (frozenset({3}),), is_visible=False)

    assert judge({"verdict": "undecidable", "culprits": [], "certainty": "likely"}, hidden).outcome is Outcome.RIGHT


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (5, 10), (10, 10)])
def test_an_interval_holds_its_share(hits: int, trials: int) -> None:
    low, high = wilson(hits, trials)

    assert 0 <= low <= hits / trials <= high <= 1


def test_the_page_shows_what_is_drawn_of_slow_ranks() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    sizes = SIZES if IS_FULL else dict([next(iter(SIZES.items()))])

    assert [row for row in rows(sizes) if row not in page] == []


def _result(verdict: str, culprits: list[int], certainty: str, **found: Any) -> Result:
    case = jobs()[0]
    judged = judge({"verdict": verdict, "culprits": culprits, "certainty": certainty}, LAGGING)
    return Result(Trial(replace(case, truth=LAGGING)), judged, **found)


def test_the_worth_of_a_certainty_counts_answers_that_name_a_fault() -> None:
    results = [
        _result("lagging-ranks", [3], "likely"),
        _result("lagging-ranks", [5], "likely"),
        _result("undecidable", [], "certain"),
    ]

    counts = worth(results)

    assert counts["calls that are missing", "likely"] == counts["all", "likely"] == Worth(answers=2, true=1)
    assert ("all", "certain") not in counts
    assert "1 of 2" in plot(counts)


def test_ranks_of_a_next_step_are_read_out_of_its_sentence() -> None:
    assert _ranks_in("the log of rank 11; stacks of ranks 2, 10 and 4-6 on 3 hosts") == {2, 4, 5, 6, 10, 11}
    assert _ranks_in("dump all ranks again") == frozenset()


def test_changed_answers_are_listed_with_the_worse_ones_first() -> None:
    before = {"a": ["right", "x"], "b": ["weaker", "y"], "c": ["right", "z"], "gone": ["right", ""]}
    now = {"a": ["wrong", "u"], "b": ["right", "v"], "c": ["right", "z"], "new": ["right", ""]}

    summary, _, _, _, *rows = changed_answers(before, now).splitlines()

    assert summary == "2 of 3 answers changed: 1 are worse, 1 better"
    assert rows == ["| a | right: x | wrong: u |", "| b | weaker: y | right: v |"]


def test_the_page_says_where_suspects_and_next_steps_lead() -> None:
    found = _result(
        "undecidable", [], "likely", suspects=frozenset({3, 5}), next_ranks=frozenset({7}), has_next_step=True
    )
    right = _result("lagging-ranks", [3], "likely")

    text = page(Measured([found, right], [], [replace(right, trial=replace(right.trial, missing=0.5))]), None)

    assert "| right | 2 | 0 | 0 | 2 | 0 | 0 | 2 |" in text
    assert "| weaker | 1 | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    assert CALIBRATED in text
