"""What logs cannot show is said: every rule reads frames that some question stands for."""

from __future__ import annotations

import inspect

import pytest

from ncclforensics.frames.registry import analyses
from ncclforensics.grammar.grammar_file import load
from ncclforensics.report.questions import QUESTIONS, Question
from ncclforensics.rules import registry


def parsed(name: str) -> set[str]:
    """The frames that a frame is made of, itself included."""
    found: set[str] = set()
    pending = [name]
    while pending:
        frame = pending.pop()
        if frame in ("call_template", "call_occurrence"):
            found |= {frame, "operation"}
        elif frame not in found:
            found.add(frame)
            one = analyses().get(frame)
            pending += inspect.signature(one.function).parameters if one else ()
    return found


def test_every_rule_reads_a_frame_of_a_coverage_question() -> None:
    asked = {frame for question in QUESTIONS for frame in (*question.frames, *question.related)}
    unasked = []
    for one in registry.all_rules():
        needs = [parsed(name) for name in inspect.signature(one.function).parameters if name != "rank"]
        is_of_any_file = {"source"} in needs  # what was read of each file, which is never absent
        if not is_of_any_file and not any(need & asked for need in needs):
            unasked.append(one.name)

    assert not unasked, "silent without their lines, and no question says so"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_a_question_says_what_to_set_by_the_grammars_that_answer_it(question: Question) -> None:
    assert question.grammars
    assert all(load(name).needs in question.needs for name in question.grammars)
