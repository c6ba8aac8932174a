"""Logs that were cut or filtered, on each rank differently, accuse no innocent rank as likely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ncclforensics import analyze
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Plan
from tests.incidents import ROOT

Lines = list[bytes]
JOB = Plan(nodes=2, gpus_per_node=4, tp=2, pp=2, layers=1, steps=3, version="2.27.7", finish=Finish.KILLED)


def _answer(plan: Plan, folder: Path, handle: Callable[[int, Lines], Lines]) -> Answer:
    generate(plan, folder)
    for rank in range(8):
        log = folder / f"nccl_rank{rank}.log"
        log.write_bytes(b"".join(handle(rank, log.read_bytes().splitlines(keepends=True))))
    (answer,) = analyze([str(folder)]).verdicts
    return answer


def test_an_empty_log_is_no_absent_rank(tmp_path: Path) -> None:
    plan = replace(JOB, fault=Fault(FaultKind.INIT_STOPPED, (3,), "world"))
    answer = _answer(plan, tmp_path, lambda rank, lines: [] if rank == 1 else lines)
    assert answer.certainty == "possible"
    assert "the log of rank 1 is empty" in answer.reason


def test_a_rank_that_may_wait_in_a_message_is_no_likely_culprit(tmp_path: Path) -> None:
    plan = replace(JOB, fault=Fault(FaultKind.RECV_NEVER_POSTED, (7,), "pp"))
    answer = _answer(plan, tmp_path, lambda _, lines: [line for line in lines if b" opCount " in line])
    assert 7 in answer.culprits
    assert answer.certainty == "possible"


def test_a_log_that_only_begins_later_is_not_behind(tmp_path: Path) -> None:
    fault = Fault(FaultKind.NETWORK_LOST, (1,), "world")
    plan = replace(JOB, layers=2, steps=6, finish=Finish.ABORTED, fault=fault)
    kept = (202, 110, 35, 156, 202, 94, 50, 206)
    answer = _answer(plan, tmp_path, lambda rank, lines: lines[-kept[rank] :])
    assert not answer.culprits


def test_a_log_that_begins_later_and_ends_elsewhere_is_behind(tmp_path: Path) -> None:
    plan = replace(JOB, steps=6, fault=Fault(FaultKind.LAGGING, (2,), "world"))
    answer = _answer(plan, tmp_path, lambda rank, lines: lines[-60 if rank == 2 else -110 - 20 * rank :])
    assert (answer.verdict, list(answer.culprits)) == ("lagging-ranks", [2])


def test_of_two_dumps_that_differ_none_is_accused_where_others_are_missing() -> None:
    dumps = ROOT / "fixtures" / "incidents" / "flight-recorders-differ-in-a-size"
    (answer,) = analyze([str(dumps / f"fr_trace_rank_{rank}.json") for rank in (0, 2)]).verdicts
    assert (answer.verdict, list(answer.culprits), list(answer.suspects)) == ("collective-mismatch", [], [0, 2])
