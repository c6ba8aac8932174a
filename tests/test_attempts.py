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
