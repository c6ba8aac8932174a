"""One log that lost its head, its tail or a line names no rank that the whole logs do not name."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.incidents import INCIDENTS
from tests.test_flight_recorder import Recorder

Lines = list[bytes]


def hang_of(folder: Path) -> dict[str, Any]:
    hang: dict[str, Any] = json_report.as_object(analyze([str(folder)]))["hang"]
    return hang


def changed(incident: str, file: str, change: Callable[[Lines], Lines], folder: Path) -> dict[str, Any]:
    """Return the answer on the logs of an incident of which one is changed."""
    shutil.copytree(INCIDENTS / incident, folder, ignore=shutil.ignore_patterns("case.json", "report.md"))
    lines = (folder / file).read_bytes().splitlines(keepends=True)
    (folder / file).write_bytes(b"".join(change(lines)))
    return hang_of(folder)


@pytest.mark.parametrize("change", [lambda x: [i for i in x if b"Init START" not in i], lambda x: x[:9]])
def test_beside_a_rank_without_a_log_one_that_lacks_its_init_is_not_named(
    change: Callable[[Lines], Lines], tmp_path: Path
) -> None:
    hang = changed("a-rank-never-starts", "nccl_rank6.log", change, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert 9 in hang["suspects"]


def test_a_rank_whose_log_ends_before_its_init_does_not_hide_inits_that_wait_for_each_other(tmp_path: Path) -> None:
    hang = changed("init-in-opposite-order", "nccl_rank5.log", lambda lines: lines[:16], tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("init-incomplete", [2])


@pytest.mark.parametrize("lost", [30, 44, 60])
def test_a_rank_in_its_second_init_has_begun_it_though_the_head_of_its_log_is_lost(lost: int, tmp_path: Path) -> None:
    hang = changed("a-rank-never-splits", "nccl_rank3.log", lambda lines: lines[lost:], tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("init-incomplete", [5])


def test_an_error_in_an_init_that_others_completed_was_survived(tmp_path: Path) -> None:
    hang = changed("another-broadcast-root", "nccl_rank3.log", lambda lines: lines[:17], tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("collective-mismatch", [4], "likely")


def test_a_log_that_ends_before_the_network_of_its_host_failed_is_not_accused_for_certain(tmp_path: Path) -> None:
    hang = changed("the-link-of-the-peer-goes-down", "nccl_rank3.log", lambda lines: lines[:33], tmp_path / "logs")

    assert hang["certainty"] != "certain"
    assert "the network of its host stopped the job" in str(hang["explanations"])


@pytest.mark.parametrize("line", [6, 8])
def test_a_journal_whose_numbers_show_a_lost_line_accuses_no_rank(line: int, tmp_path: Path) -> None:
    hang = changed(
        "a-rehearsed-hang", "journal.rank1.log", lambda lines: lines[:line] + lines[line + 1 :], tmp_path / "logs"
    )

    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [3])


def test_a_rank_with_exit_code_1_did_not_end_first_where_the_end_of_another_was_not_read(tmp_path: Path) -> None:
    hang = changed(
        "a-rank-exits-in-silence-between-others",
        "node-0.log",
        lambda lines: [line for line in lines if not line.startswith(b"[rank1]")],
        tmp_path / "logs",
    )

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])


def test_an_exit_code_beside_a_crash_of_another_rank_is_no_cause(tmp_path: Path) -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-02_11:04:57\n  host      : node-{rank}\n"
        "  rank      : {rank} (local_rank: 0)\n  exitcode  : {code} (pid: 720{rank})\n"
    )
    crash = "[rank1]: Fatal Python error: Segmentation fault\n"
    (tmp_path / "node-0.log").write_text(table.format(rank=0, code=1))
    (tmp_path / "node-1.log").write_text(crash + table.format(rank=1, code=-11))

    causes = [f for f in json_report.as_object(analyze([str(tmp_path)]))["findings"] if f["role"] == "cause"]

    assert [cause["ranks"] for cause in causes] == [[1]]


def test_ranks_that_end_together_with_an_exit_code_of_the_program_are_no_first_and_followers(tmp_path: Path) -> None:
    """The lines in which both refuse their arguments are lost."""
    hang = changed("a-program-refuses-its-arguments", "job.log", lambda lines: lines[21:], tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])


LOST = "RuntimeError: [/src/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.11.0.11]:9114."
CRASHED = "Fatal Python error: Segmentation fault"
FAILED = (
    "E1122 09:01:26.263000 10080 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
    " local_rank: 0 (pid: 10860) of binary: /venv/bin/python3\n"
)
TABLE = """\
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_09:01:26
  host      : node-0
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 10861)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 10861
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_09:01:26
  host      : node-0
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 10860)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("error_of_2", "culprits"),
    [
        (f"[rank2]: {LOST}", [3]),  # local rank 0 of node-1 is rank 2
        (LOST, []),
    ],
)
def test_a_local_rank_is_a_rank_only_where_its_folder_shows_the_first(
    error_of_2: str, culprits: list[int], tmp_path: Path
) -> None:
    """The output of the other node's torchrun is lost."""
    errors = {"node-0": [f"[rank0]: {LOST}", f"[rank1]: {LOST}"], "node-1": [error_of_2, CRASHED]}
    for node, of_ranks in errors.items():
        for local, error in enumerate(of_ranks):
            folder = tmp_path / f"logs-{node}" / f"4711_{node[-1]}" / "attempt_0" / str(local)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(f"{error}\n")
    (tmp_path / "node-0.log").write_text(FAILED + TABLE)

    hang = hang_of(tmp_path)

    assert hang["culprits"] == culprits


DIFFERS = (
    "[rank{0}]: RuntimeError: DDP expects same model across all ranks, but Rank {0} has {1} params,"
    " while rank {2} has inconsistent {3} params."
)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([(0, 4, 2, 6)], ([2], "likely")),  # rank 1, which rank 0 compared before, has 4, too
        ([(0, 4, 1, 6)], ([], "likely")),  # of ranks 2 and 3 nothing is known
        ([(0, 4, 2, 6), (3, 4, 2, 6)], ([2], "certain")),
        ([(1, 6, 0, 4), (2, 6, 0, 4), (3, 6, 0, 4)], ([0], "certain")),
    ],
)
def test_a_rank_of_two_whose_models_differ_is_named_where_others_agree_with_one(
    messages: list[tuple[int, int, int, int]], expected: tuple[list[int], str], tmp_path: Path
) -> None:
    others = [f"[rank{rank}]: Traceback (most recent call last):" for rank in range(4)]
    errors = [DIFFERS.format(*message) for message in messages]
    (tmp_path / "job.log").write_text("".join(f"{line}\n" for line in [*others, *errors]))

    hang = hang_of(tmp_path)

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("collective-mismatch", *expected)


WAITED = "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/0\n"
CUT = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(("waiting", "culprits"), [((1, 2, 3), [0]), ((1, 3), [])])
def test_rank_0_which_waits_for_all_is_absent_only_where_all_others_wait_for_it(
    waiting: tuple[int, ...], culprits: list[int], tmp_path: Path
) -> None:
    for rank in waiting:
        (tmp_path / f"rank{rank}.log").write_text(CUT + WAITED)

    assert hang_of(tmp_path)["culprits"] == culprits


def test_rank_0_is_not_absent_whose_traceback_stands_in_its_log(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(CUT + (WAITED if rank else '  File "/job/train.py", line 274\n'))

    assert hang_of(tmp_path)["culprits"] == []


@pytest.mark.parametrize(("names", "culprits"), [((0, 1, 2, 3), [2]), ((0, 1, 5, 3), []), ((4, 5, 6, 7), [])])
def test_numbers_in_names_of_dumps_are_ranks_only_if_all_are_members(
    names: tuple[int, ...], culprits: list[int], tmp_path: Path
) -> None:
    for rank, name in enumerate(names):
        recorder = Recorder(rank, {"0": list(range(4))})
        recorder.call()
        if rank != 2:
            recorder.call(done=False)
        (tmp_path / f"dump_{name}").write_bytes(pickle.dumps(recorder.document(), protocol=2))

    assert hang_of(tmp_path)["culprits"] == culprits


def test_a_thread_that_drives_all_ranks_makes_their_calls_one_after_another(tmp_path: Path) -> None:
    """The log ends behind the call of rank 2: those of ranks 3 to 7 come later, in every collective."""
    hang = changed("one-process-drives-all-gpus", "nccl_rank0.log", lambda lines: lines[:326], tmp_path / "logs")

    assert hang["culprits"] == []


def test_a_version_of_nccl_in_a_description_of_systems_is_no_ras_report(tmp_path: Path) -> None:
    systems = '{\n    "other_software_stack": {\n        "nccl_version": "2.25.1",\n    }\n}\n'
    (tmp_path / "job.log").write_text(systems * 2 + "h:7:7 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n")

    assert analyze([str(tmp_path)]).run["ras_snapshot"].is_empty()


CLOSING = (
    "{rank}: gpu-a012:{pid}:9 [{rank}] proxy.cc:1497 NCCL WARN [Service thread]"
    " Could not receive type from localRank {peer}, res=3, closed=0\n"
    "{rank}: gpu-a012:{pid}:9 [{rank}] proxy.cc:1521 NCCL WARN [Proxy Service {rank}]"
    " Failed to execute operation {operation} from rank {peer}, retcode 3\n"
)


@pytest.mark.parametrize(("operation", "is_failed"), [("Close", False), ("Connect", True)])
def test_connections_that_ranks_had_asked_to_close_show_no_failure(
    operation: str, is_failed: bool, tmp_path: Path
) -> None:
    lines = [
        CLOSING.format(rank=rank, pid=100 + rank, peer=peer, operation=operation)
        for rank, peer in ((2, 6), (3, 5), (7, 4))
    ]
    (tmp_path / "job.log").write_text("".join(lines))

    report = json_report.as_object(analyze([str(tmp_path)]))

    assert report["hang"]["standstill"]["shown"] == is_failed
