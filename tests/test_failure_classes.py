"""Every form of `failure` has a class beside its alternative in the grammar."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics.analyses.job.ends.failure_events import CLASSES
from ncclforensics.errors import GrammarError
from ncclforensics.grammar import folders, grammar_file


def test_every_form_of_failure_has_a_class() -> None:
    grammar = grammar_file.load("warning")
    forms = {pattern.form for shape in grammar.shapes if shape.frame == "failure" for pattern in shape.patterns}

    classes = grammar.form_classes("failure")

    assert set(classes) == forms
    assert set(classes.values()) == set(CLASSES)


def test_one_form_with_two_classes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.lark").write_text('failure: "a" -> a  // class: hard\n    | "b" -> a  // class: lost\n')
    monkeypatch.setattr(folders, "_FOLDERS", [tmp_path])

    with pytest.raises(GrammarError, match="form a: classes hard and lost"):
        grammar_file.Grammar("lines").form_classes("failure")
