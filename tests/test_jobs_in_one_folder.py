"""Logs of two jobs in one folder: each has its answer, and neither that of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from tests.incidents import INCIDENTS

HEALTHY = sorted(map(str, (INCIDENTS / "a-healthy-run").glob("*.log")))
IN_INIT = str(INCIDENTS / "an-excerpt-ends-in-the-bootstrap" / "job.log")
HUNG = sorted(map(str, (INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log")))


@pytest.mark.parametrize(("logs", "verdict"), [(HEALTHY, "no-hang"), (HUNG, "lagging-ranks")], ids=["healthy", "hung"])
def test_processes_in_their_init_are_no_ranks_of_a_job_of_which_all_are_known(logs: list[str], verdict: str) -> None:
    report = analyze([*logs, IN_INIT])

    answers = {answer.verdict: answer for answer in report.verdicts}
    assert answers.keys() == {verdict, "undecidable"}
    ranks = report.run["rank"].filter(job=answers["undecidable"].job)
    assert {*ranks["host"]} == {"node-c"}


def test_processes_in_their_init_may_be_the_ranks_that_a_job_lacks() -> None:
    report = analyze([*HEALTHY[:-2], IN_INIT])

    assert [(answer.verdict, answer.certainty) for answer in report.verdicts] == [("no-hang", "likely")]
    assert report.verdicts[0].reason.endswith("of 2 processes more only the start of NCCL was read")


POISONED = str(INCIDENTS / "a-kernel-poisons-the-context-of-one-rank" / "job.log")
FAILED_INIT = str(INCIDENTS / "a-pod-lacks-the-interface-of-its-nic" / "job.log")
COMPLETE = (
    "node-b:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRank comm 0x55d1c3e0{rank}010 rank {rank} nranks 2 cudaDev 0"
    " nvmlDev {rank} busId 1b000 commId 0x8f3bd2a4c1e07755 - Init COMPLETE\n"
)
RAISED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 12, in <module>
[rank1]:     main()
[rank1]: ValueError: no sample 7
"""


def test_text_is_of_the_job_whose_lines_stand_in_its_file() -> None:
    report = analyze([POISONED, *HEALTHY])

    answers = {answer.verdict: answer for answer in report.verdicts}
    assert answers.keys() == {"rank-died", "no-hang"}
    assert answers["rank-died"].certainty == "certain"
    assert report.run["rank"].filter(rank_id=answers["rank-died"].culprits[0])["rank"].to_list() == [1]


def test_a_process_of_another_host_is_no_rank_of_a_job_of_which_all_are_known() -> None:
    report = analyze([*HUNG, FAILED_INIT])

    certainties = {answer.verdict: answer.certainty for answer in report.verdicts}
    assert certainties == {"lagging-ranks": analyze(HUNG).verdicts[0].certainty, "init-failed": "likely"}


@pytest.mark.parametrize(
    ("texts", "certainty"),
    [
        ([RAISED], "likely"),
        ([f"[rank1]:[W1122 09:48:18 a.cpp:2] on node-b\n{COMPLETE.format(rank=1, pid=41)}{RAISED}"], "certain"),
        ([f"{RAISED}failed (exitcode: 1) local_rank: 1 (pid: 41) of binary: /usr/bin/python3\n"], "certain"),
    ],
    ids=["of no process", "beside lines of NCCL", "with the id of the process"],
)
def test_a_text_that_names_a_rank_alone_may_be_of_another_job(texts: list[str], certainty: str, tmp_path: Path) -> None:
    for number, text in enumerate([COMPLETE.format(rank=0, pid=40) + COMPLETE.format(rank=1, pid=41), *texts]):
        (tmp_path / f"{number}.log").write_text(text)

    [answer] = analyze(tmp_path).verdicts

    assert (answer.verdict, answer.certainty) == ("rank-died", certainty)


def test_an_exception_in_another_launch_leaves_the_answer_of_the_calls(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text(RAISED)

    [alone], [beside] = (analyze(logs).verdicts for logs in (HUNG, [*HUNG, tmp_path / "other.log"]))

    assert (beside.verdict, beside.culprits, beside.certainty) == (alone.verdict, alone.culprits, alone.certainty)


def test_a_rank_that_torchrun_started_again_did_not_end_the_job(tmp_path: Path) -> None:
    again = INCIDENTS / "torchrun-starts-the-ranks-again" / "job.log"
    (tmp_path / "nccl.log").write_text(COMPLETE.format(rank=0, pid=40) + COMPLETE.format(rank=1, pid=41))

    [answer] = analyze([tmp_path / "nccl.log", again]).verdicts

    assert answer.verdict in ("no-hang", "undecidable")
    assert not answer.culprits
