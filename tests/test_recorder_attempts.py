"""Flight Recorder dumps of several attempts in one folder: an old dump accuses no rank, and says that it is old."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.test_flight_recorder import Recorder, judged, verdict

MINUTE, HOUR, DAY = 60, 3600, 86_400
WORLD = {"0": list(range(8))}
LAGGING = 5


def attempt(calls: int, *, later: float = 0, ranks: int = 8, lagging: int = LAGGING) -> list[Recorder]:
    """Ranks that made some calls together, of which one did not make the next; `later`: seconds after the first."""
    recorders = [Recorder(rank, {"0": list(range(ranks))}) for rank in range(ranks)]
    for recorder in recorders:
        for _ in range(calls):
            recorder.call()
        if recorder.rank != lagging:
            recorder.call(done=False)
        for entry in recorder.entries:
            entry["time_created_ns"] += int(later * 1e9)
            is_done = entry["state"] == "completed"
            entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 50_000_000 if is_done else None
    return recorders


@pytest.mark.parametrize("calls", [2, 30, 400], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("age", [20 * MINUTE, 2 * HOUR, 3 * DAY])
def test_a_dump_of_an_earlier_attempt_accuses_no_rank(calls: int, age: float, tmp_path: Path) -> None:
    """Rank 2 wrote no dump in the latest attempt, so that its old one is still there."""
    judged(tmp_path, attempt(calls, lagging=1))

    report = judged(tmp_path, [recorder for recorder in attempt(30, later=age) if recorder.rank != 2])

    assert verdict(report) == ("lagging-ranks", [LAGGING], "likely")
    assert "rank 2" in report["hang"]["reason"].rpartition("; the dumps of ")[2]
    assert any("rank 2" in item for item in report["hang"]["collect_next"])


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (20 * MINUTE, ("undecidable", [])),  # the clock of its host may be off by as much
        (2 * HOUR, ("lagging-ranks", [LAGGING])),  # no dump of this attempt: a possibility
    ],
)
def test_only_the_dump_of_the_rank_in_question_is_old(
    age: float, expected: tuple[str, list[int]], tmp_path: Path
) -> None:
    judged(tmp_path, attempt(400, lagging=1))

    report = judged(tmp_path, [recorder for recorder in attempt(30, later=age) if recorder.rank != LAGGING])

    assert verdict(report)[:2] == expected
    assert verdict(report)[2] == ("possible" if expected[1] else "likely")


@pytest.mark.parametrize("ranks", [4, 16])
@pytest.mark.parametrize("full", [True, False])
def test_dumps_of_a_job_of_another_size_do_not_count(ranks: int, full: bool, tmp_path: Path) -> None:
    judged(tmp_path, attempt(30, ranks=ranks, lagging=3))

    report = judged(tmp_path, attempt(30, later=DAY), full=full)

    assert verdict(report) == ("lagging-ranks", [LAGGING], "likely")
    assert report["run"]["world_size"] == 8
    assert report["run"]["ranks_missing"] == []


@pytest.mark.parametrize("offset", [-100, 100])
def test_clocks_that_differ_by_a_minute_or_two_do_no_harm(offset: float, tmp_path: Path) -> None:
    ranks = attempt(30)
    of_other_host = attempt(30, later=offset)

    assert verdict(judged(tmp_path, ranks[:4] + of_other_host[4:])) == ("lagging-ranks", [LAGGING], "likely")


def test_numbers_of_groups_in_a_process_are_not_compared(tmp_path: Path) -> None:
    """Torch 2.2 prints no members, and the pairs of all ranks have the number 1."""
    for rank in range(8):
        pair = {"0": list(range(8)), "1": [rank // 2 * 2, rank // 2 * 2 + 1]}
        recorder = Recorder(rank, pair).call()
        for _ in range(3 if rank // 2 == 2 else 4):
            recorder.call(("1", "tp"), done=rank // 2 != 2)
        dropped = ("process_group", "collective_seq_id", "p2p_seq_id", "is_p2p", "input_dtypes", "output_dtypes")
        entries: list[dict[str, Any]] = [
            {name: value for name, value in entry.items() if name not in dropped}
            | {"seq_id": entry["collective_seq_id"]}
            for entry in recorder.entries
        ]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries, protocol=2))

    assert json_report.as_object(analyze([str(tmp_path)]))["hang"]["culprits"] == []
