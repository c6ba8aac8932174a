"""What PyTorch's watchdogs print decides as much as it shows: groups, ranks and numbers keep their scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding
from tests.incidents import INCIDENTS, Incident, answer

TIMEOUT = (
    "[rank{rank}]:[E813 12:25:30.948355712 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operatio"
    "n timeout: WorkNCCL(SeqNum={work}, OpType={name}, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for {ran} "
    "milliseconds before timing out."
)
STATUS = (
    "[rank{rank}]:[E813 12:25:30.948455712 ProcessGroupNCCL.cpp:1785] [PG ID {guid} PG GUID {guid} Rank {rank}] Except"
    "ion (either an error or timeout) detected by watchdog at work: {work}, last enqueued NCCL work: {enqueued}, last "
    "completed NCCL work: {completed}."
)


def _report(folder: Path, *ranks: dict[str, object]) -> Report:
    defaults = {"name": "ALLREDUCE", "ran": 600032, "guid": 0}
    lines = [line.format(**defaults | row) for row in ranks for line in (TIMEOUT, STATUS)]
    (folder / "job.log").write_text("\n".join(lines) + "\n")
    return analyze([str(folder)])


def _of(report: Report, rule: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def _waiting(rank: int, work: int = 808, **fields: object) -> dict[str, object]:
    return {"rank": rank, "work": work, "enqueued": work + 3, "completed": work - 1, **fields}


def test_ranks_of_a_job_of_unknown_size_are_not_all_ranks(tmp_path: Path) -> None:
    (verdict,) = _report(tmp_path, _waiting(0), _waiting(1), _waiting(2)).verdicts
    assert (verdict.verdict, verdict.certainty) == ("stuck-together", "possible")
    assert "the number of ranks is not known" in verdict.reason


def test_a_work_that_one_rank_completed_accuses_no_gpu(tmp_path: Path) -> None:
    ahead = {"rank": 1, "work": 70005, "enqueued": 70005, "completed": 70004, "name": "BROADCAST"}
    report = _report(tmp_path, ahead, _waiting(2, 70002), _waiting(4, 70002))
    (verdict,) = report.verdicts
    assert (verdict.certainty, list(verdict.culprits)) == ("possible", [])
    assert "work 70005 (Broadcast)" in verdict.reason
    assert {rival.fault for rival in report.job(0).considered} >= {"collective-mismatch", "lagging-ranks"}


def test_counters_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    (verdict,) = _report(tmp_path, _waiting(13, 216, guid=119), _waiting(15, 57, guid=112)).verdicts
    assert (verdict.verdict, list(verdict.culprits)) == ("undecidable", [])
    assert "cannot be compared" in verdict.reason


def test_a_time_out_far_beyond_its_limit_says_that_the_processes_stood_still(tmp_path: Path) -> None:
    (finding,) = _of(_report(tmp_path, _waiting(0, ran=25_624_887)), "torch-watchdog-timeout")
    assert "25,624,887 ms" in finding.detail
    (finding,) = _of(_report(tmp_path, _waiting(0)), "torch-watchdog-timeout")
    assert "stood still" not in finding.detail


LEFT = (
    "[rank0]:[W813 {time} ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we "
    "destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group\n"
)


@pytest.mark.parametrize(("time", "is_early"), [("12:15:31.107228334", True), ("12:25:31.207228334", False)])
def test_a_rank_that_left_before_others_timed_out_is_named(tmp_path: Path, time: str, is_early: bool) -> None:
    _report(tmp_path, _waiting(1, 1))
    with (tmp_path / "job.log").open("a") as log:
        log.write(LEFT.format(time=time))
    findings = _of(analyze([str(tmp_path)]), "torch-rank-left-early")
    assert [finding.ranks for finding in findings] == [[0]] * is_early


def test_an_idle_group_of_the_rank_that_timed_out_is_no_second_time_out(tmp_path: Path) -> None:
    signal = (
        "[rank2]:[E813 12:25:30.949 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump "
        "signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last "
        "enqueued NCCL work: 136, last completed NCCL work: 136."
    )
    report = _report(tmp_path, _waiting(2, guid=1))
    with (tmp_path / "job.log").open("a") as log:
        log.write(signal + "\n")

    (with_signal,) = analyze([str(tmp_path)]).verdicts

    assert with_signal.reason == report.verdicts[0].reason
    assert "different process groups" not in with_signal.reason


def test_memory_that_ran_out_on_a_rank_decides_beside_lines_of_nccl_without_ranks(tmp_path: Path) -> None:
    """NCCL's service threads name no rank; the exception of one, and the time-outs of others, do."""
    closed = "".join(
        f"gpu-a:{pid}:{pid + 9} [{device}] NCCL INFO [Service thread] Connection closed by localRank 2\n"
        for pid, device in ((100, 0), (102, 2), (104, 4))
    )
    report = _report(tmp_path, *map(_waiting, (0, 1, 3, 4, 5)))
    assert report.verdicts[0].verdict == "stuck-together"
    text = (tmp_path / "job.log").read_text()
    raised = "[rank2]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB.\n"
    (tmp_path / "job.log").write_text(raised + closed + text)

    (verdict,) = (report := analyze([str(tmp_path)])).verdicts

    assert (verdict.verdict, report.numbers(verdict.culprits)) == ("rank-died", [2])


def test_the_only_rank_without_a_time_out_is_a_suspect_where_the_reason_names_it() -> None:
    found = answer(Incident(INCIDENTS / "three-of-four-watchdogs-time-out")).json["hang"]

    assert "no time-out of rank 2 was read: the call may be missing there" in found["reason"]
    assert (found["culprits"], found["suspects"]) == ([], [2])


def _gathering(rank: int, sent: int, guid: int = 9) -> str:
    lines = (
        TIMEOUT.replace("NumelOut=4096", f"NumelOut={8 * sent}").replace("NumelIn=4096", f"NumelIn={sent}"),
        STATUS,
    )
    row = _waiting(rank, guid=guid, name="_ALLGATHER_BASE", ran=600032)
    return "\n".join(line.format(**row) for line in lines)


def test_elements_in_and_out_of_a_gather_show_the_size_of_its_group(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("\n".join(_gathering(rank, 512) for rank in (0, 3)) + "\n")
    report = analyze([str(tmp_path)])
    (verdict,) = report.verdicts
    assert verdict.verdict == "undecidable"
    assert "reports of 6 of the 8 members of this process group were not read" in verdict.reason
    assert report.run["work"]["members"].to_list() == [8, 8]


def test_gathers_of_different_sizes_differ_even_where_a_line_is_cut_before_its_work(tmp_path: Path) -> None:
    cut = _gathering(6, 600).partition(" or timeout)")[0]
    (tmp_path / "job.log").write_text(_gathering(4, 512) + "\n" + cut + "\n")
    (verdict,) = analyze([str(tmp_path)]).verdicts
    assert verdict.verdict == "collective-mismatch"
    assert "different sizes as work 808 of process group 9" in verdict.reason
    assert "600 elements on rank 6" in verdict.reason


def test_lines_cut_before_the_counters_do_not_split_the_only_group(tmp_path: Path) -> None:
    cut = TIMEOUT.format(**_waiting(3, ran=600032, name="ALLREDUCE"))
    (tmp_path / "job.log").write_text(
        "\n".join(line.format(**_waiting(0, guid=0, ran=600032, name="ALLREDUCE")) for line in (TIMEOUT, STATUS))
        + f"\n{cut}\n"
    )
    (verdict,) = analyze([str(tmp_path)]).verdicts
    assert verdict.verdict == "undecidable"
    assert "ranks 0, 3 timed out at work 808" in verdict.reason
    assert "no time-out of ranks 1, 2 was read" in verdict.reason


def test_a_size_that_a_line_lacks_differs_from_none(tmp_path: Path) -> None:
    row = _waiting(0, guid=0, ran=600032, name="ALLREDUCE")
    lines = [line.format(**row) for line in (TIMEOUT, STATUS)] + [STATUS.format(**row | {"rank": 1})]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    (verdict,) = analyze([str(tmp_path)]).verdicts
    assert verdict.verdict == "stuck-together"


def test_a_rank_that_waits_in_a_later_work_completed_the_earlier_one(tmp_path: Path) -> None:
    ahead = TIMEOUT.format(rank=1, work=809, name="ALLREDUCE", ran=600032)
    (tmp_path / "job.log").write_text(
        "\n".join(line.format(**_waiting(0, guid=0, ran=600032, name="ALLREDUCE")) for line in (TIMEOUT, STATUS))
        + f"\n{ahead}\n"
    )
    (verdict,) = analyze([str(tmp_path)]).verdicts
    assert (verdict.verdict, list(verdict.culprits)) == ("stuck-together", [])
    assert "rank 1 did and waits in work 809" in verdict.reason


def test_a_counter_that_was_never_set_completes_no_work(tmp_path: Path) -> None:
    unset = _waiting(0, 1, enqueued=1, completed=5570036741)
    (verdict,) = _report(tmp_path, unset, _waiting(1, 1, enqueued=1, completed=-1)).verdicts
    assert "ranks 0, 1 enqueued work 1 and did not complete it" in verdict.reason


@pytest.mark.parametrize(
    ("above", "sign"),
    [
        ("KeyboardInterrupt\n", "failure"),
        ("KeyboardInterrupt\nstep 3 loss 2.5\nstep 4 loss 2.4\n", "watchdog"),
        ("", "watchdog"),
    ],
    ids=["interrupted", "and a later launch made steps", "not interrupted"],
)
def test_ranks_that_wait_for_one_that_was_interrupted_show_no_hang(tmp_path: Path, above: str, sign: str) -> None:
    _report(tmp_path, _waiting(0), _waiting(1))
    log = tmp_path / "job.log"
    log.write_text(above + log.read_text())

    (verdict,) = analyze([str(log)]).verdicts

    assert list(verdict.stall_evidence) == [sign]
    assert ("a process was interrupted before that, at line 1" in verdict.reason) is (sign == "failure")


DUMP_SIGNAL = (
    "[rank{rank}]:[E703 15:37:17.178360488 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Received a dump signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info. "
    "Last enqueued NCCL work: 56118, last completed NCCL work: 56118.This is most likely caused by incorrect usages of "
    "collectives, e.g., wrong sizes used across ranks.\n"
)


def test_idle_ranks_that_relay_a_time_out_may_lack_the_call_that_timed_out(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(DUMP_SIGNAL.format(rank=rank) for rank in (3, 4)))
    [answered] = analyze([str(tmp_path)]).verdicts
    assert answered.verdict == "undecidable"
    assert not answered.culprits
    assert "of a call that rank 7 made and they had not, or one of another group" in answered.reason


def test_time_outs_without_numbers_keep_their_operations_apart(tmp_path: Path) -> None:
    line = (
        "[E ProcessGroupNCCL.cpp:587] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(OpType={}, "
        "Timeout(ms)=1800000) ran for 1809150 milliseconds before timing out.\n"
    )
    of_ranks = ((3, "ALLREDUCE"), (4, "ALLREDUCE"), (2, "BROADCAST"))
    (tmp_path / "job.log").write_text("".join(line.format(*row) for row in of_ranks))
    assert "ranks 3, 4 timed out in AllReduce, rank 2 in Broadcast" in analyze([str(tmp_path)]).verdicts[0].reason
