"""`slow`: what makes a running job slow, and when nothing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ncclforensics.cli import main
from tests.incidents import ROOT

STUCK = str(ROOT / "fixtures" / "incidents" / "one-rank-stops-before-an-allreduce")


def answer(capsys: pytest.CaptureFixture[str], *paths: Path | str) -> tuple[int, dict[str, object]]:
    """Run `slow` on these paths: the exit code, and the object `slow` of the JSON report."""
    code = main(["slow", *map(str, paths), "--format", "json", "-q"])
    return code, json.loads(capsys.readouterr().out)["slow"]


def test_logs_without_times_decide_nothing_and_say_what_to_collect(capsys: pytest.CaptureFixture[str]) -> None:
    code, slow = answer(capsys, STUCK)

    assert (code, slow["verdict"], slow["ranks"]) == (3, "undecidable", [])
    assert "torch.profiler" in str(slow["collect_next"])
