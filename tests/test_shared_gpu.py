"""Ranks that begin a communicator on one GPU are named where NCCL's refusal is not in the logs."""

from __future__ import annotations

from pathlib import Path

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Plan

START = (
    "gpu-a012:{pid}:{pid} [{gpu}] NCCL INFO ncclCommInitRank comm 0x7a12257c8780 rank {rank} nranks 2 cudaDev {gpu} "
    "nvmlDev {gpu} busId {bus} commId 0xaa9becea043c4e6c - Init {state}"
)


def _report(folder: Path, second_bus: str, *states: str) -> Report:
    ranks = [{"rank": 0, "pid": 42, "gpu": 0, "bus": "1000"}, {"rank": 1, "pid": 43, "gpu": 0, "bus": second_bus}]
    lines = [START.format(state=state, **rank) for state in states for rank in ranks]
    (folder / "job.log").write_text("\n".join(lines) + "\n")
    return analyze([str(folder)])


def test_ranks_that_begin_on_one_gpu_are_named_as_possible(tmp_path: Path) -> None:
    report = _report(tmp_path, "1000", "START")
    (verdict,) = report.verdicts
    assert (verdict.verdict, verdict.certainty, list(verdict.culprits)) == ("init-failed", "possible", [0, 1])
    assert [finding.category for finding in report.findings if finding.rule == "boot-init-refused"] == ["duplicate-gpu"]


def test_ranks_on_different_gpus_share_none(tmp_path: Path) -> None:
    (verdict,) = _report(tmp_path, "2000", "START").verdicts
    assert verdict.verdict != "init-failed"


def test_a_communicator_that_was_created_was_not_refused(tmp_path: Path) -> None:
    (verdict,) = _report(tmp_path, "1000", "START", "COMPLETE").verdicts
    assert verdict.verdict != "init-failed"


def test_ranks_on_one_gpu_are_two_processes(tmp_path: Path) -> None:
    plan = Plan(version="2.27.7", finish=Finish.ABORTED, seed=14474, fault=Fault(FaultKind.SHARED_GPU, (4, 5), "world"))
    generate(plan, tmp_path)
    (verdict,) = analyze([str(tmp_path)]).verdicts
    assert (verdict.certainty, list(verdict.culprits)) == ("certain", [4, 5])


def test_ranks_that_nccl_cannot_connect_at_the_first_call_are_past_init(tmp_path: Path) -> None:
    _report(tmp_path, "2000", "START", "COMPLETE")
    warning = "gpu-a012:42:44 [0] transport.cc:41 NCCL WARN No transport found for rank 0[1000] -> rank 1[2000]\n"
    (tmp_path / "job.log").write_text((tmp_path / "job.log").read_text() + warning)

    (finding,) = (finding for finding in analyze([str(tmp_path)]).findings if finding.rule == "boot-init-refused")

    assert finding.title == ("init completed, and the first call of NCCL failed: no transport connects rank 0 to 1")
    assert "NCCL_SHM_DISABLE" in finding.remedy
