"""Warnings of which values, a stretch or the end were left out are read as lines of their shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.extensions.examples import fields_by_pattern
from ncclforensics.formats import nccl
from ncclforensics.grammar.patterns import Shape
from ncclforensics.inputs import lines
from ncclforensics.parsing.matching import match
from ncclforensics.parsing.shortened_lines import MIN_LITERAL, PREFIXED, read_shortened
from tests.budget import sample

OF_COMPLETIONS = {
    "NET/IB : Got completion from peer XXX<YYY> with error 12, opcode 0, len 0, vendor err 129",
    "NET/IB : Got completion from peer 10.0.4.13<45210> with error 12, opcode X, len X, vendor err X",
    "NET/IB : Got completion from peer ... with error 12, ...",
    "NET/IB : Got completion with error 12, ...",
    "NET/IB: Got completion ... status=IBV_WC_RETRY_EXC_ERR(12)",
    "NET/IB: Got completion from peer 10.0.4.13<45210> with status=12 […] vendor err 129 (Recv)",
    "NET/IB: Got completion from peer 10.0.4.13<45210> with status=12 opcode=0 len=0 vend",
}
# What stands behind a sentence, or in front of the first words that are left, may give it another meaning; a value at
# the end may have been cut.
NOT_SHORTENED = {
    "NET/IB : Got completion from peer 10.0.4.13<45210> with error 1",
    "NET/IB : Got completion from peer 10.0.4.13<45210> with error 1...",
    "NET/IB : Got completion from peer 10.0.4.13<45210> with error 12, opcode 0, len 0, vendor err 129, ignoring",
    "... with error 12, opcode 0, len 0, vendor err 129",
    "NET/IB : Got ... error 12",
    "Got completion of init from peer ... with error 12",
}


def read(text: str) -> set[tuple[str, str]]:
    """Frame and form of what a line is read as, but for the shapes of any text."""
    dialect = nccl.dialect()
    rows = lines.block(f"{text}\n".encode(), 1)
    frames = read_shortened(match(rows, dialect).frames, dialect)
    return {
        (shape.frame, str(form))
        for shape in dialect.shapes
        for table in frames.get(shape.frame, [])
        for form in table["form"]
        if shape.priority >= 0
    }


@pytest.mark.parametrize("message", sorted(OF_COMPLETIONS))
def test_a_shortened_completion_is_one(message: str, tmp_path: Path) -> None:
    log = tmp_path / "post.txt"
    log.write_text(f"node1:77:330 [0] transport/net_ib.cc:774 NCCL WARN {message}\n", encoding="utf-8")

    report = analyze([log])

    assert [finding.rule for finding in report.findings if finding.severity == "error"] == ["ib-timeout-mid-run"]


@pytest.mark.parametrize("message", sorted(NOT_SHORTENED))
def test_a_sentence_with_more_or_too_few_words_is_none(message: str, tmp_path: Path) -> None:
    log = tmp_path / "post.txt"
    log.write_text(f"node1:77:330 [0] transport/net_ib.cc:774 NCCL WARN {message}\n", encoding="utf-8")

    report = analyze([log])

    assert [finding.rule for finding in report.findings if finding.severity != "info"] == ["warn-unexplained"]


def examples() -> Iterator[tuple[Shape, str, str]]:
    """The examples of warnings, with the form of each."""
    for shape in nccl.dialect().shapes:
        if shape.priority < 0 or not any(name in pattern.suffixes for pattern in shape.patterns for name in PREFIXED):
            continue
        for example in shape.examples:
            if " NCCL WARN " in example:
                fields = fields_by_pattern(shape, example)
                yield shape, example, fields[0] if fields else ""


@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_warning_that_is_cut_is_of_its_own_shape_or_of_none() -> None:
    read_as, missed = 0, 0
    for shape, example, form in sample(examples(), 25):
        start = example.index(" NCCL WARN ") + len(" NCCL WARN ") + MIN_LITERAL
        cut = f"{example[: (start + 2 * len(example)) // 3]}..."
        found = read(cut)

        assert found <= {(shape.frame, form)}, cut
        read_as, missed = read_as + bool(found), missed + (not found)
    assert read_as > missed
