"""Hostile inputs that broke the program once, and a few new ones; `make fuzz` tries as many as time allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.invariants import check_all
from tests.fuzz.mutation import Draw
from tests.fuzz.reduction import write_files
from tests.fuzz.targets import TARGETS
from tests.incidents import ROOT

CASES = sorted(path for path in (ROOT / "fixtures" / "fuzz").iterdir() if path.is_dir())
FEW = (
    "grammar-init",
    "incidents",
    "json-documents",
    "flight-recorders",
    "compressed",
    "folders",
    "records",
    "saved-runs",
)


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
