"""Hostile inputs that broke the program once, and a few new ones; `make fuzz` tries as many as time allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report, text_report
from tests.fuzz.ingredients import examples_of
from tests.fuzz.invariants import check_all
from tests.fuzz.mutation import Draw
from tests.fuzz.reduction import write_files
from tests.fuzz.targets import TARGETS, counted_up
from tests.incidents import ROOT

CASES = sorted(path for path in (ROOT / "fixtures" / "fuzz").iterdir() if path.is_dir())
FEW = (
    "copies",
    "grammar-init",
    "incidents",
    "json-documents",
    "flight-recorders",
    "compressed",
    "folders",
    "records",
    "saved-runs",
)


@pytest.mark.one_in(30)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_broke_once_breaks_no_more(case: Path) -> None:
    ways = (case / "ways.txt").read_text(encoding="utf-8").split() if (case / "ways.txt").exists() else []

    check_all(case / "inputs", ways)


@pytest.mark.slow
@pytest.mark.parametrize("target", FEW)
def test_hostile_inputs_of_every_kind_are_survived(target: str, tmp_path: Path) -> None:
    write_files(tmp_path / "in", {})
    TARGETS[target](Draw(target), tmp_path / "in")

    check_all(tmp_path / "in", ["hang"])


@pytest.mark.parametrize(
    ("grammar", "place"),
    [("channel", 0), ("job", None), ("journal", None), ("launcher", 1), ("operation", 0)],
)
def test_copies_of_lines_are_not_joined_with_each_other(
    grammar: str, place: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What joins each line with each other takes no time here, and minutes and gigabytes for a megabyte."""
    lines = [counted_up(line, place, number) for number in range(30) for line in examples_of(grammar)]
    (tmp_path / "job.log").write_bytes(b"\n".join(lines))
    largest, join = 0, pl.DataFrame.join

    def measured_join(self: pl.DataFrame, *arguments: Any, **options: Any) -> pl.DataFrame:
        nonlocal largest
        result = join(self, *arguments, **options)
        largest = max(largest, result.height)
        return result

    monkeypatch.setattr(pl.DataFrame, "join", measured_join)
    report = analyze([str(tmp_path)], everything=True)

    assert report.defects == []
    assert largest <= 2 * len(lines)


def test_thousands_of_jobs_cost_no_more_than_their_lines(tmp_path: Path) -> None:
    lines = [
        f"node0:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pid:x}00 rank 0 nranks 2 cudaDev 0 nvmlDev 0 "
        f"busId 1a000 commId 0x{pid:x} - Init START"
        for pid in range(1000, 1300)
    ]
    (tmp_path / "job.log").write_text("\n".join(lines))

    report = analyze([str(tmp_path)])

    assert len(report.verdicts) == len(lines)
    assert report.run["earlier_run"].height < 40 * len(lines)
    assert "and 100 more jobs" in text_report.text(report, verbose=True)
    assert len(json_report.as_object(report)["jobs"]) == len(lines)
