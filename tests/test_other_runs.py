"""Dumps and watchdogs' messages that another run left beside the logs accuse no rank of this one."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views.json_report import as_object
from tests.test_conflicting_evidence import STATUS, stack_in_all_reduce
from tests.test_flight_recorder import START, Recorder, judged
from tests.test_recorder_attempts import LAGGING, attempt

MINUTES, HOURS = timedelta(minutes=1), timedelta(hours=1)
DUMPED = datetime(1970, 1, 1) + timedelta(seconds=START // 1_000_000_000)  # in UTC
STEPS = 3  # of which each has one call of all ranks


def hang(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = as_object(analyze([str(folder)]))["hang"]
    return answer


def write_logs(folder: Path, *, ranks: int = 8, steps: int = STEPS, lagging: int | None = None, **plan: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fault = None if lagging is None else Fault(FaultKind.LAGGING, (lagging,))
    sizes = {"nodes": 1, "gpus_per_node": ranks, "layers": 1, "steps": steps, "finish": Finish.KILLED, "fault": fault}
    generate(Plan(**{**sizes, "version": "2.27.7", **plan}), folder)


def prefix(folder: Path, text: str, *, only_init: bool = False) -> None:
    for log in folder.glob("nccl_rank*.log"):
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(text + line for line in lines if not only_init or "opCount" not in line))


def write_watchdogs(folder: Path, time: str, *, work: int = STEPS + 1, lagging: int = LAGGING) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        STATUS.format(rank=rank, work=work - (rank == lagging)).replace(
            "completed work: 15", f"completed work: {work - 1}"
        )
        for rank in range(8)
    ]
    (folder / "stderr.txt").write_text("".join(lines).replace("1121 03:38:46", time))


@pytest.mark.parametrize(
    ("stamp", "later", "culprits"),
    [
        ("{time:%Y-%m-%dT%H:%M:%S}.000000Z ", 40 * MINUTES, []),
        ("{time:%Y-%m-%dT%H:%M:%S}.000000Z ", 2 * MINUTES, [LAGGING]),  # clocks of hosts differ by so much
        ("{time:%Y-%m-%dT%H:%M:%S}.000000Z ", -40 * MINUTES, [LAGGING]),
        ("[{time:%Y-%m-%d %H:%M:%S}] ", 40 * MINUTES, [LAGGING]),  # in a zone to the east it is the same moment
        ("[{time:%Y-%m-%d %H:%M:%S}] ", 15 * HOURS, []),  # in none
        ("{time:%b %d %H:%M:%S} gpu-a012 trainer[711]: ", 15 * HOURS, []),
        ("", 15 * HOURS, [LAGGING]),
    ],
)
def test_dumps_older_than_the_first_communicator_accuse_no_rank(
    stamp: str, later: timedelta, culprits: list[int], tmp_path: Path
) -> None:
    write_logs(tmp_path)
    prefix(tmp_path, stamp.format(time=DUMPED + later), only_init=True)

    found = judged(tmp_path, attempt(30))["hang"]

    assert found["culprits"] == culprits
    assert ("the dumps of ranks 0-7 do not count" in found["reason"]) is not culprits
    assert found["certainty"] == "possible" or not culprits


@pytest.mark.parametrize("ranks", [4, 16])
def test_dumps_of_a_job_of_another_size_are_no_proof(ranks: int, tmp_path: Path) -> None:
    """A larger communicator gives other ranks their numbers; a smaller one may be a part of the job."""
    write_logs(tmp_path, ranks=ranks)
    prefix(tmp_path, "", only_init=True)

    found = judged(tmp_path, attempt(30))["hang"]

    assert (found["verdict"], found["culprits"]) == (
        ("undecidable", []) if ranks == 16 else ("lagging-ranks", [LAGGING])
    )
    assert found["certainty"] != "likely"


@pytest.mark.parametrize(
    ("calls", "lagging", "expected"),
    [
        (STEPS, 5, ("lagging-ranks", [5])),  # the same rank, by the same number of calls
        (STEPS, 2, ("undecidable", [])),  # one of both is of another run, and nothing shows which
        (STEPS + 20, 5, ("lagging-ranks", [5])),
        (STEPS + 20, 2, ("undecidable", [])),  # on no rank the counts are equal
        (STEPS - 2, 2, ("lagging-ranks", [5])),  # dumped before
    ],
)
def test_dumps_that_count_other_calls_than_the_logs_accuse_no_rank(
    calls: int, lagging: int, expected: tuple[str, list[int]], tmp_path: Path
) -> None:
    """By its log rank 5 lags. A dump with as many calls shows which one; another run's shows nothing."""
    write_logs(tmp_path, lagging=5)

    found = judged(tmp_path, attempt(calls, lagging=lagging))["hang"]

    assert (found["verdict"], found["culprits"]) == expected
    assert found["certainty"] == "likely"


def test_logs_that_show_more_calls_than_all_dumps_outdate_them(tmp_path: Path) -> None:
    write_logs(tmp_path, steps=40)

    found = judged(tmp_path, attempt(30))["hang"]

    assert (found["verdict"], found["culprits"]) == ("no-hang", [])
    assert "the Flight Recorder dumps do not count" in found["reason"]


def test_dumps_that_alone_name_a_rank_are_a_possibility_where_counts_differ(tmp_path: Path) -> None:
    write_logs(tmp_path)

    found = judged(tmp_path, attempt(30))["hang"]

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("lagging-ranks", "possible", [LAGGING])
    assert any("compare the times" in item for item in found["collect_next"])


def test_a_dump_that_its_own_log_outdates_accuses_no_rank(tmp_path: Path) -> None:
    """Rank 5 was dumped one call before the others; its log shows that call."""
    write_logs(tmp_path)
    recorders = [Recorder(rank, {"0": list(range(8))}) for rank in range(8)]
    for recorder in recorders:
        for _ in range(STEPS - 1):
            recorder.call()
        if recorder.rank != 5:
            recorder.call(done=False)

    assert judged(tmp_path, recorders)["hang"]["culprits"] == []


def test_an_init_that_did_not_complete_outweighs_dumps_of_calls(tmp_path: Path) -> None:
    write_logs(tmp_path, fault=Fault(FaultKind.RANK_MISSING, (2,)))

    found = judged(tmp_path, attempt(30))["hang"]

    assert found["culprits"] == []
    assert "wait in the init" in found["reason"]


@pytest.mark.parametrize(
    ("stamp", "reported", "culprits"),
    [
        ("[2026-01-01 00:20:00] ", "1231 23:50:00", []),  # half an hour before, over New Year
        ("[2026-01-01 00:20:00] ", "101 00:50:00", [LAGGING]),
        ("[2026-11-21 03:50:00] ", "1121 03:38:46", []),
        ("2026-11-21T04:50:00.000000Z ", "1121 03:38:46", [LAGGING]),  # the collector may print another zone
        ("", "1121 03:38:46", [LAGGING]),
    ],
)
def test_time_outs_before_the_first_communicator_accuse_no_rank(
    stamp: str, reported: str, culprits: list[int], tmp_path: Path
) -> None:
    write_logs(tmp_path)
    prefix(tmp_path, stamp)
    write_watchdogs(tmp_path, reported)

    found = hang(tmp_path)

    assert found["culprits"] == culprits
    assert ("the time-outs that ranks 0-7 reported are of an earlier run" in found["reason"]) is not culprits


@pytest.mark.parametrize(("work", "certainty"), [(STEPS + 1, "likely"), (STEPS + 20, "possible")])
def test_watchdogs_that_count_other_calls_than_the_logs_are_a_possibility(
    work: int, certainty: str, tmp_path: Path
) -> None:
    write_logs(tmp_path)
    write_watchdogs(tmp_path, "1121 03:38:46", work=work)

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("lagging-ranks", certainty, [LAGGING])


@pytest.mark.parametrize(("work", "culprits"), [(31, [LAGGING]), (200, [])])
def test_time_outs_that_count_more_calls_outdate_dumps(work: int, culprits: list[int], tmp_path: Path) -> None:
    write_watchdogs(tmp_path, "1121 03:38:46", work=work, lagging=-1)
    text = (tmp_path / "stderr.txt").read_text()
    (tmp_path / "stderr.txt").write_text(text.splitlines(keepends=True)[0])  # of rank 0

    found = judged(tmp_path, attempt(30))["hang"]

    assert found["culprits"] == culprits
    assert ("do not count" in found["reason"]) is not culprits


@pytest.mark.parametrize(("attempts", "culprits"), [((0, 1), []), ((1, 1), [LAGGING])])
def test_time_outs_in_the_folder_of_an_earlier_attempt_accuse_no_rank(
    attempts: tuple[int, int], culprits: list[int], tmp_path: Path
) -> None:
    write_watchdogs(tmp_path / f"attempt_{attempts[0]}" / "0", "1121 03:38:46")
    write_logs(tmp_path / f"attempt_{attempts[1]}" / "1")

    assert hang(tmp_path)["culprits"] == culprits


@pytest.mark.parametrize(("processes", "certainty"), [(8, "possible"), (7, "likely")])
def test_as_many_processes_in_collectives_as_ranks_contradict_dumps(
    processes: int, certainty: str, tmp_path: Path
) -> None:
    (tmp_path / "stacks.txt").write_text("\n".join(stack_in_all_reduce(5000 + number) for number in range(processes)))

    found = judged(tmp_path, attempt(30))["hang"]

    assert (found["certainty"], found["culprits"]) == (certainty, [LAGGING])
    assert ("the stacks contradict" in found["reason"]) is (processes == 8)
