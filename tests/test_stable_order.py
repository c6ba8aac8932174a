"""An answer does not depend on the order in which Polars hands out groups and distinct rows, which it leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from polars.dataframe.group_by import GroupBy

from ncclforensics import analyze
from ncclforensics.views import json_report, markdown, text_report
from tests.incidents import ALL, ROOT

CASES = [
    ROOT / "fixtures" / "fuzz" / "variables-that-another-rank-does-not-print" / "inputs",
    *(incident.folder for number, incident in enumerate(ALL) if number % 60 == 0),
]


def answer(path: str) -> tuple[str, ...]:
    report = analyze([path], everything=True)
    assert report.defects == []
    texts = text_report.text(report, verbose=True), text_report.text(report, everything=True)
    return json_report.json(report).decode(), markdown.markdown(report, everything=True), *texts


@pytest.fixture
def reversed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate, groups, unique = GroupBy.agg, GroupBy.__iter__, pl.DataFrame.unique

    def aggregate_reversed(self: Any, *columns: Any, **named: Any) -> pl.DataFrame:
        rows = aggregate(self, *columns, **named)
        return rows if self.maintain_order else rows.reverse()

    def groups_reversed(self: Any) -> Iterator[Any]:
        found = list(groups(self))
        return iter(found if self.maintain_order else found[::-1])

    def unique_reversed(self: pl.DataFrame, *columns: Any, **options: Any) -> pl.DataFrame:
        if options.pop("maintain_order", False):
            return unique(self, *columns, maintain_order=True, **options)
        rows = self.reverse() if options.get("keep", "any") == "any" else self
        return unique(rows, *columns, maintain_order=True, **options)

    monkeypatch.setattr(GroupBy, "agg", aggregate_reversed)
    monkeypatch.setattr(GroupBy, "__iter__", groups_reversed)
    monkeypatch.setattr(pl.DataFrame, "unique", unique_reversed)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda folder: folder.parent.name if folder.name == "inputs" else folder.name
)
def test_no_answer_depends_on_the_order_of_groups(case: Any, request: pytest.FixtureRequest) -> None:
    usual = answer(str(case))

    request.getfixturevalue("reversed_order")

    assert answer(str(case)) == usual
