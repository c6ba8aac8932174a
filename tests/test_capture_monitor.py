"""Captures that are repeated, limited or held against a bandwidth: what stops them, and the exit code."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ncclforensics.capture import request, result
from ncclforensics.capture.fault_injection import parse_fault
from ncclforensics.capture.host_results import host_results, host_table
from ncclforensics.capture.plan import Plan
from ncclforensics.capture.previous import comparison, find_previous
from ncclforensics.cli import main
from ncclforensics.cli.capture import _named_ranks
from tests.incidents import INCIDENTS, Incident, answer
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


def captured(folder: Path, hosts: list[str], slow: str = "", killed: int | None = None) -> result.CaptureResult:
    """A capture of two ranks on each host; the pairs of one host may be slow, and a rank may be killed."""
    names = dict(enumerate(host for host in hosts for _ in range(2)))
    ends = [("signal", -9) if rank == killed else ("finished" if killed is None else "gave-up", 0) for rank in names]
    return result.CaptureResult(
        folder,
        [{"rank": rank, "pid": 70 + rank, "ended": how, "code": code} for rank, (how, code) in enumerate(ends)],
        "",
        [],
        pairs=[
            {"ranks": [a, b], "size": 1 << 28, "latency_us": 9.0, "busbw_GBps": 14.0 if slow in (x, y) else 46.0}
            for (a, x), (b, y) in combinations(names.items(), 2)
            if killed is None
        ],
        hosts=names,
    )


def test_the_table_of_hosts_names_the_slow_host_and_that_of_the_killed_rank(tmp_path: Path) -> None:
    hosts = ["gpu-a012", "gpu-a013", "gpu-a014", "gpu-a015"]

    slow = host_results([captured(tmp_path, hosts, slow="gpu-a014")] * 2, {})
    killed = host_results([captured(tmp_path, hosts), captured(tmp_path, hosts, killed=2)], {})
    named = host_results([captured(tmp_path, hosts)], {7: "lagging-ranks"})

    assert [row.outcome(2) for row in slow.values()] == ["PASS", "PASS", "FAIL", "PASS"]
    assert [row.outcome(2) for row in killed.values()] == ["not completed", "FAIL", "not completed", "not completed"]
    assert [row.outcome(1) for row in named.values()] == ["PASS", "PASS", "PASS", "FAIL"]
    table = list(host_table(killed, 2))
    assert "FAIL  rank 2 ended by signal, code -9 (ranks 2, 3)" in table[2]


@pytest.mark.parametrize(("hosts", "is_found"), [({"0": "gpu-a012"}, True), ({"0": "gpu-a013"}, False)])
def test_a_capture_is_compared_with_the_last_one_of_the_same_hosts(
    hosts: dict[str, str], is_found: bool, tmp_path: Path
) -> None:
    plan = {"backend": "nccl", "nranks": 2, "ranks_per_gpu": 1, "program": None}
    for day, busbw in (("03-01", 400.0), ("03-02", 380.0), ("03-03", 310.0)):
        row = {"collective": "all_reduce", "size": 1 << 30, "busbw_GBps": busbw}
        record = {"began": f"2026-{day} 11:04:57.000000", "complete": True, "plan": plan, "measured": [row]}
        own = {"0": "gpu-a012"} if day == "03-03" else hosts
        (tmp_path / day).mkdir()
        result.write_record(tmp_path / day / result.RECORD, {**record, "pairs": [], "hosts": own})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / result.RECORD).write_text("{", encoding="ascii")

    found = find_previous(tmp_path / "03-03", result.RECORD)

    assert found == (tmp_path / "03-02" if is_found else None)
    if found is not None:
        lines = list(comparison(tmp_path / "03-03", found, result.RECORD))
        assert lines[1:] == ["  all_reduce of 1073741824 bytes: 380.00 -> 310.00 GB/s (-18%)"]


def test_a_host_fails_whose_rank_is_late_in_every_step() -> None:
    late = answer(Incident(INCIDENTS / "a-capture-rank-is-300-ms-late-in-every-step")).report
    healthy = answer(Incident(INCIDENTS / "a-healthy-benchmark")).report

    assert set(_named_ranks(late).values()) == {"straggler"}
    assert _named_ranks(healthy) == {}
