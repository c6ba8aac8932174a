"""The first screen never says less than the line it rests on: the words that say what failed are not cut out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.extensions.examples import fields_by_pattern
from ncclforensics.grammar.column_types import COLUMN_TYPES
from ncclforensics.grammar.meanings import Kind
from ncclforensics.grammar.patterns import Shape
from ncclforensics.report.build import Report
from ncclforensics.views.text_report import HEIGHT
from ncclforensics.views.text_screen import screen
from tests.budget import IS_FULL
from tests.test_meanings import ANSWERABLE, Sample, samples

WIDTHS = (80, 120)
ELSEWHERE = {"fingerprint": "aspects"}  # what differs between two calls stands in the calls themselves


def squeezed(text: str) -> str:
    return "".join(text.split())


def reasons(sample: Sample) -> Iterator[str]:
    """The decisive words of a line: its values of free text, and the end of a line with `error: `."""
    _, fields = fields_by_pattern(sample.shape, sample.text) or ("", {})
    texts = [
        value
        for name, value in fields.items()
        if sample.shape.columns[name] == COLUMN_TYPES["TEXT"] and name != ELSEWHERE.get(sample.shape.frame)
    ]
    behind = [sample.text.rpartition(": ")[2]] if " error: " in sample.text else []
    for text in [*texts, *behind]:
        first = text.partition(". ")[0].partition(": 0x")[0].strip(" .'*\t")  # not advice, nor pointers
        if any(letter.isalpha() for letter in first):
            yield first


FAILURES = [shape for shape in ANSWERABLE if any(s.meaning.kind is Kind.FAILURE for s in samples(shape))]


@pytest.mark.parametrize("shape", FAILURES, ids=lambda shape: shape.frame)
def test_what_failed_stands_whole_on_the_first_screen(shape: Shape, alone: Callable[..., Report]) -> None:
    failures = [sample for sample in samples(shape) if sample.meaning.kind is Kind.FAILURE]
    tried = {sample.text if IS_FULL else sample.form: sample for sample in failures if any(reasons(sample))}
    cut: list[tuple[int, str]] = []
    for sample in tried.values():
        report = alone(*sample.lines)
        for width in WIDTHS:
            shown = squeezed(screen(report, width=width, height=HEIGHT))
            cut += [(width, reason) for reason in reasons(sample) if squeezed(reason) not in shown]

    assert cut == []


def test_a_line_that_says_no_more_than_its_headline_takes_one_row(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "node1:77:330 [0] transport.cc:9 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n"
    )

    shown = screen(analyze(str(log)), width=80).splitlines()

    assert sum("…" in line for line in shown) == 1
    assert "an illegal memory access was encountered" in " ".join(shown[2:4])
