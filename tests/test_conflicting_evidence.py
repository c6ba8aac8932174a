"""Two sources on one job: which is believed where they disagree, and how sure the verdict then is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views.json_report import as_object
from tests.incidents import INCIDENTS

STATUS = (
    "[rank{rank}]:[E1121 03:38:46.100000000 ProcessGroupNCCL.cpp:2100] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "failure detected by watchdog at work sequence id: {work} PG status: last enqueued work: {work}, last completed "
    "work: 15\n"
)
TIMED_OUT = (
    "[rank0]:[E1121 03:38:46.100000000 ProcessGroupNCCL.cpp:682] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=60000) ran for 60029 "
    "milliseconds before timing out.\n"
)


def hang(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = as_object(analyze([str(folder)]))["hang"]
    return answer


@pytest.mark.parametrize(
    ("watchdog", "finish", "certainty"),
    [
        ("", Finish.KILLED, "possible"),  # the job may run on, and its collector delivered a line twice
        ("", Finish.CLEAN, "possible"),  # it did run on
        (TIMED_OUT, Finish.KILLED, "likely"),  # a line that came twice stops no job
    ],
)
def test_a_call_equal_to_the_one_before_it_may_be_a_line_that_came_twice(
    watchdog: str, finish: Finish, certainty: str, tmp_path: Path
) -> None:
    generate(Plan(nodes=1, gpus_per_node=4, tp=2, layers=1, steps=3, version="2.27.7", finish=finish), tmp_path)
    log = tmp_path / "nccl_rank3.log"
    lines = log.read_text().splitlines(keepends=True)
    third_last = [number for number, line in enumerate(lines) if "opCount" in line][-3]
    log.write_text("".join([*lines[: third_last + 1], lines[third_last], *lines[third_last + 1 :]]))
    if watchdog:
        (tmp_path / "stderr.txt").write_text(watchdog)

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("collective-mismatch", certainty, [3])
    assert "a log collector may have delivered a line twice" in found["reason"]


@pytest.mark.parametrize(
    ("lagging", "certainty", "phrase"),
    [
        (1, "possible", "the watchdogs' messages name rank 1 instead: the dumps show every call, and decide"),
        (2, "likely", ""),
    ],
)
def test_dumps_decide_where_watchdogs_name_another_rank(
    lagging: int, certainty: str, phrase: str, tmp_path: Path
) -> None:
    for dump in (INCIDENTS / "flight-recorders-show-a-rank-that-stopped").glob("comm_lib_trace_rank_*"):
        shutil.copy(dump, tmp_path)
    text = "".join(STATUS.format(rank=rank, work=15 if rank == lagging else 16) for rank in range(4))
    (tmp_path / "stderr.txt").write_text(text)

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("lagging-ranks", certainty, [2])
    assert phrase in found["reason"]
    assert ("instead" in found["reason"]) is bool(phrase)


@pytest.mark.parametrize(
    ("kind", "rank", "reports", "certainty"),
    [
        (FaultKind.LAGGING, 13, 2, "certain"),  # two reports name the same rank, and no count has changed
        (FaultKind.LAGGING, 5, 2, "possible"),  # they name rank 13
        (FaultKind.LAGGING, 5, 1, "likely"),  # one report shows no more than that ranks differ
        (FaultKind.OTHER_COUNT, 5, 2, "likely"),  # the lines prove the difference, whichever rank is behind
    ],
)
def test_ras_reports_that_name_another_rank_make_a_verdict_doubtful(
    kind: FaultKind, rank: int, reports: int, certainty: str, tmp_path: Path
) -> None:
    generate(Plan(version="2.27.7", layers=1, steps=2, finish=Finish.KILLED, fault=Fault(kind, (rank,))), tmp_path)
    for number in range(reports):
        shutil.copy(INCIDENTS / "ras-shows-a-rank-that-stands-still" / f"ras-{number + 1}.log", tmp_path)

    found = hang(tmp_path)

    assert (found["certainty"], found["culprits"]) == (certainty, [rank])
    assert ("but RAS names rank 13, which" in found["reason"]) is (rank != 13 and reports > 1)
