"""Attempts of one job in one folder whose communicators have equal ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Plan, generate


@pytest.mark.parametrize(
    ("later_pids", "expected"),
    [
        (1000, [("lagging-ranks", [1]), ("lagging-ranks", [2])]),
        (0, None),  # equal pids, as in containers: not told apart by them
    ],
)
def test_attempts_with_equal_ids_of_communicators_are_two_jobs(
    later_pids: int, expected: list[tuple[str, list[int]]] | None, tmp_path: Path
) -> None:
    """NCCL_COMM_ID states the address of rank 0, from which the ids follow."""
    for attempt, lagging in ((0, 1), (1, 2)):
        folder = tmp_path / f"attempt_{attempt}"
        fault = Fault(FaultKind.LAGGING, (lagging,))
        generate(Plan(nodes=2, gpus_per_node=2, version="2.27.7", steps=3, layers=1, fault=fault), folder)
        for log in folder.glob("nccl_rank*.log"):
            pid = log.read_text().split(":", 2)[1]
            log.write_text(log.read_text().replace(f":{pid}:", f":{int(pid) + attempt * later_pids}:"))

    report = analyze([str(tmp_path)])

    found = sorted((row.verdict, report.numbers(row.culprits)) for row in report.verdicts)
    assert found == expected if expected else len(found) == 1
    if expected:
        assert report.numbers(report.verdicts[0].culprits) == [2]  # the later attempt


@pytest.mark.parametrize(("attempts", "pid"), [(1, 4902), (2, None)])
def test_the_table_of_a_later_attempt_gives_an_exception_no_process(
    attempts: int, pid: int | None, tmp_path: Path
) -> None:
    """Torchrun starts all ranks anew, and its table is of the processes of the last attempt."""
    agent = "E1130 06:23:03.276000 4196 torch/distributed/elastic/multiprocessing/api.py:1002] "
    raised = ["Traceback (most recent call last):", '  File "/app/train.py", line 9, in main', "ValueError: no samples"]
    ended = [f"{agent}failed (exitcode: 1) local_rank: 1 (pid: {4902 - later}) of binary: python" for later in range(2)]
    table = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-30_06:23:09",
        "  host      : node-a",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 1 (pid: 4902)",
    ]
    lines = [*(f"[rank1]: {line}" for line in raised), *reversed(ended[:attempts]), *table]
    (tmp_path / "job.log").write_text("\n".join([*lines, ""]))

    exits = analyze(str(tmp_path)).run["process_exit"].filter(how="exception")

    assert exits.select("rank", "node", "pid").rows() == [(1, "node-a", pid)]
