"""What ranks warn of after their program came to its end is no failure; what they warn of before is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report

RANKS = range(4)
DONE = (
    ' 0: :::MLLOG {"namespace": "", "time_ms": 1728602167490, "event_type": "INTERVAL_END", "key": "run_stop", '
    '"value": 0.92, "metadata": {"file": "/w/fit.py", "lineno": 321, "samples_count": 3840, "status": "success"}}'
)
GIVEN_UP = DONE.replace("success", "aborted")


def ended(rank: int) -> str:
    return (
        f" {rank}: [rank{rank}]:[W1010 23:16:11.146369013 ProcessGroupNCCL.cpp:1218] Warning: WARNING: "
        "process group has NOT been destroyed before we destruct ProcessGroupNCCL."
    )


def lost(rank: int, other: int) -> str:
    return (
        f" {rank}: gpu-a:{100 + rank}:{200 + rank} [{rank}] proxy.cc:1497 NCCL WARN [Service thread] Could not receive "
        f"type from localRank {other}, res=3, closed=0"
    )


EVERY_END, EVERY_LOSS = [ended(rank) for rank in RANKS], [lost(rank, rank ^ 1) for rank in RANKS]


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (EVERY_END + EVERY_LOSS, "no-hang"),
        (EVERY_LOSS + EVERY_END, "undecidable"),  # connections were lost before the programs ended
        (EVERY_END[:3] + EVERY_LOSS, "undecidable"),  # rank 3 lost its connection while its program ran
        ([DONE, *EVERY_LOSS], "no-hang"),
        ([GIVEN_UP, *EVERY_LOSS], "undecidable"),
        ([*EVERY_LOSS, DONE], "undecidable"),
        ([*EVERY_END, " 2: Traceback (most recent call last):", ' 2:   File "/w/train.py", line 9, in <module>',
          " 2: RuntimeError: no space left on device", *EVERY_LOSS], "rank-died"),
    ],
)  # fmt: skip
def test_connections_lost_around_the_end_of_the_program(tmp_path: Path, lines: list[str], verdict: str) -> None:
    (tmp_path / "slurm-1.out").write_text("\n".join(["srun: job 1", *lines, ""]))

    hang = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert hang["verdict"] == verdict
    if verdict == "no-hang":
        assert (hang["certainty"], hang["culprits"]) == ("likely", [])
