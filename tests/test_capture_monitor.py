"""Captures that are repeated, limited or held against a bandwidth: what stops them, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclforensics.capture import request, result
from ncclforensics.capture.fault_injection import parse_fault
from ncclforensics.capture.plan import Plan
from ncclforensics.cli import main
from tests.test_capture import measured, write_end, write_journals

FINISHED = [{"rank": rank, "pid": 70 + rank, "ended": "finished", "code": 0} for rank in range(4)]
KILLED = [*FINISHED[:3], {"rank": 3, "pid": 73, "ended": "signal", "code": -9}]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Replace the captures by folders that look as if rank 3 had been killed in the second one."""
    made: list[Plan] = []

    def capture(plan: Plan, _: Any) -> result.CaptureResult:
        made.append(plan)
        is_killed = plan.folder.name == "turn-002"
        write_journals(plan.folder, parse_fault("crash:3@6", 4, 10) if is_killed else None)
        if is_killed:
            for rank in range(4):
                write_end(plan.folder, rank, *(("signal", -9) if rank == 3 else ("gave-up", 3)))
        return result.CaptureResult(
            plan.folder, KILLED if is_killed else FINISHED, "", [] if is_killed else measured(2)
        )

    monkeypatch.setattr(result, "capture", capture)
    monkeypatch.setattr(request, "check_torch", lambda: None)
    return made


def arguments(tmp_path: Path, *more: str) -> list[str]:
    return ["capture", "--backend", "gloo", "-o", str(tmp_path / "c"), "-q", *more]


@pytest.mark.parametrize("more", [(), ("--min-busbw", "1")])
def test_a_turn_with_a_killed_rank_ends_the_repetition_with_its_verdict(
    turns: list[Plan], more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "--repeat", "3", *more)) == 1
    assert [plan.folder.name for plan in turns] == ["turn-001", "turn-002"]
    printed = capsys.readouterr()
    assert "RANK-DIED" in printed.out
    assert ("so --min-busbw cannot be checked" in printed.err) == bool(more)


def test_a_bandwidth_below_the_least_one_is_reported(
    turns: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "--min-busbw", "90")) == 1
    assert "all_reduce reached 83.47 GB/s at most, below --min-busbw 90" in capsys.readouterr().err


def test_a_capture_that_ended_before_it_measured_decides_nothing(
    turns: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result, "_is_well", lambda rank: False)

    assert main(arguments(tmp_path)) == 3


def test_the_limit_holds_for_the_capture_and_its_algorithms_together(
    turns: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "algorithms", lambda _: ["Ring", "Tree"])

    assert main(arguments(tmp_path, "--limit", "60")) == 0
    assert [plan.limit_s for plan in turns] == [20, 20, 20]
