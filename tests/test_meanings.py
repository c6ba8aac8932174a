"""Every line that its grammar marks as one to be answered is answered, also where it stands alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from ncclforensics.data.line_rules import LINE_RULES, rules_of_line
from ncclforensics.errors import GrammarError
from ncclforensics.formats import all_formats
from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.meanings import ANSWERED, Kind, Meaning, read_meanings
from ncclforensics.grammar.patterns import Shape, may_match
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Category
from ncclforensics.views import json_report
from tests.budget import IS_FULL, drawn

FORMS_SHARE = 3  # one form in so many is tried of each shape: a log of a single line costs as much as a small one
FORMS = {"spill": {"", "slow", "gone"}}
# Grammars of parts of lines: a launcher's prefix, a value, what stands around a copied message.
PARTS = ("copied", "deduplicated", "launcher", "prefix", "values")
SHAPES = [shape for name in grammar_file.names() if name not in PARTS for shape in grammar_file.load(name).shapes]


class Sample(NamedTuple):
    """An example line of a form that has to be answered."""

    shape: Shape
    form: str
    text: str
    meaning: Meaning

    @property
    def name(self) -> str:
        """What a sample of samples is chosen by: the same in each process."""
        return self.text

    @property
    def head(self) -> str:
        """A line that makes its format known, where the sample alone does not; else nothing."""
        for form in all_formats().values():
            if self.shape.grammar in form.GRAMMARS and form.SIGNATURES and self.shape.frame not in form.SIGNATURES:
                first = (s for name in form.GRAMMARS for s in grammar_file.load(name).shapes)
                return next(s.examples[0] for s in first if s.frame in form.SIGNATURES)
        return ""

    @property
    def lines(self) -> list[str]:
        """A log of nothing but this line."""
        return [*filter(None, [self.head]), self.text]


def _examples(shape: Shape) -> Iterator[Sample]:
    meanings = grammar_file.load(shape.grammar).meanings[shape.frame]
    for text, form in zip(shape.examples, _forms(shape), strict=True):
        if form is not None:
            yield Sample(shape, form, text, meanings[form])


def _forms(shape: Shape) -> Iterable[str | None]:
    """The form of each example: that of the first pattern that matches it."""
    forms = {pattern.form for pattern in shape.patterns}
    if len(forms) == 1:
        return [*forms] * len(shape.examples)
    return [_form_of(text, shape) for text in shape.examples]


def _form_of(text: str, shape: Shape) -> str | None:
    """The same of one example; patterns of several forms are compiled only where their literals stand in it."""
    possible = [pattern for pattern in shape.patterns if may_match(text, pattern.literals, pattern.words)]
    if len({pattern.form for pattern in possible}) == 1:
        return possible[0].form
    line = pl.Series([text])
    return next((pattern.form for pattern in possible if line.str.contains(pattern.regex).item()), None)


def _samples(shape: Shape) -> Iterator[Sample]:
    meanings = grammar_file.load(shape.grammar).meanings[shape.frame]
    if any(meaning.kind in ANSWERED for meaning in meanings.values()):
        yield from (sample for sample in _examples(shape) if sample.meaning.kind in ANSWERED)


_SAMPLES = {shape.frame: tuple(_samples(shape)) for shape in SHAPES}


def samples(shape: Shape) -> tuple[Sample, ...]:
    """Its examples that have to be answered, of which several modules make tests."""
    return _SAMPLES[shape.frame]


ANSWERABLE = [shape for shape in SHAPES if samples(shape)]


def judging(sample: Sample, alone: Callable[..., Report]) -> set[str]:
    """The rules that say what a line means where it stands alone."""
    return {
        finding.rule
        for finding in alone(*sample.lines).findings
        if finding.explains and finding.category != Category.INCOMPLETE_EVIDENCE
        if any(line.line == len(sample.lines) for line in finding.evidence)
    }


def unanswered(sample: Sample, alone: Callable[..., Report]) -> str:
    """What is wrong with the answer to a log of nothing but this line; nothing if it is answered."""
    report = alone(*sample.lines)
    answers = [
        finding
        for finding in json_report.as_object(report)["findings"]
        if finding["category"] != Category.INCOMPLETE_EVIDENCE or sample.meaning.category == finding["category"]
        if any(line["line"] == len(sample.lines) for line in finding["evidence"])
    ]
    of_verdict = report.frames["verdict_evidence"].filter(line=len(sample.lines))
    if not answers and of_verdict.is_empty():
        return f"{sample.shape.frame} {sample.form}: {sample.text}"
    return "" if all(answer["title"] and answer["remedy"] for answer in answers) else f"no remedy: {sample.text}"


@pytest.mark.parametrize("shape", ANSWERABLE, ids=lambda shape: shape.frame)
def test_a_line_that_states_a_failure_is_answered_where_it_stands_alone(
    shape: Shape, alone: Callable[..., Report]
) -> None:
    of_forms = {sample.text if IS_FULL else sample.form: sample for sample in samples(shape)}  # one of each form
    tried = drawn([*of_forms.values()], FORMS_SHARE)
    wrong = [found for sample in tried if (found := unanswered(sample, alone))]
    unnamed = [
        f"{sample.form}: {rules}"
        for sample in tried
        if (rules := judging(sample, alone) - {*rules_of_line(shape.frame, sample.form)})
    ]

    assert (wrong, unnamed) == ([], [])


@pytest.mark.nightly
def test_the_rules_of_lines_are_those_that_answer_the_examples(
    alone: Callable[..., Report], golden: Callable[[Path, str], None]
) -> None:
    rows = []
    for shape in SHAPES:
        counted: dict[str, Counter[str]] = {}
        for sample in _examples(shape):
            is_of_any_text = shape.priority < 0  # its examples need not mean the same
            if sample.meaning.kind in ANSWERED or is_of_any_text or sample.form not in counted:
                counted.setdefault(sample.form, Counter()).update(judging(sample, alone))
        named = {form: sorted(found, key=lambda rule: (-found[rule], rule)) for form, found in counted.items()}
        if judged := {form: named[form] for form in sorted(named) if named[form]}:
            rows.append(f'"{shape.frame}": {json.dumps(judged)}')

    golden(LINE_RULES, "{\n" + ",\n".join(sorted(rows)) + "\n}\n")


def test_every_shape_of_a_line_has_a_meaning() -> None:
    for shape in SHAPES:
        meanings = grammar_file.load(shape.grammar).meanings[shape.frame]
        assert {pattern.form for pattern in shape.patterns} == set(meanings), shape.frame
        assert {m.category for m in meanings.values() if m.kind in ANSWERED} <= {*Category}, shape.frame


def test_a_mark_holds_for_the_forms_that_it_names_and_for_the_rest_without_names() -> None:
    text = "// default: noise\n//! failure oom gone: it is gone -> look\n//! fact\nspill: A\nother: B\n"

    found = read_meanings(text, {**FORMS, "other": {""}})

    failure = Meaning(Kind.FAILURE, "oom", "it is gone", "look")
    assert found["spill"] == {"gone": failure, "": Meaning(Kind.FACT), "slow": Meaning(Kind.FACT)}
    assert found["other"] == {"": Meaning(Kind.NOISE)}


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ("//! fact gone\n", "spill: no mark such as `//! fact` for"),
        ("//! fact lost\n//! noise\n", "names lost, which is no form"),
        ("//! fact gone\n//! noise gone\n//! fact\n", "names gone, which is no form, or has a mark already"),
        ("//! fault gone\n", "begins with none of failure, consequence"),
        ("//! failure oom gone\n//! fact\n", "lacks a category, or what happened"),
        ("//! condition: it is gone -> look\n", "lacks a category"),
    ],
)
def test_a_mark_that_cannot_be_read_is_refused(marks: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        read_meanings(f"{marks}spill: A\n", FORMS)
