"""The error of the system decides what is said of a shared memory segment that NCCL could not create or attach."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze

SHM_OPEN = "gpu-a:9:10 [0] include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied"
ATTACH = (
    "gpu-a:9:10 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-a "
    "(size 8)"
)


@pytest.mark.parametrize(
    ("lines", "reason", "remedy"),
    [
        ([f"{ATTACH}, error: No such file or directory (2)"], "No such file", "share /dev/shm"),
        ([SHM_OPEN, ATTACH], "Permission", "rights"),
        ([ATTACH], "nccl-a", "df -h"),
    ],
)
def test_the_reason_decides_the_advice(tmp_path: Path, lines: list[str], reason: str, remedy: str) -> None:
    (tmp_path / "rank0.log").write_text("\n".join(lines) + "\n")
    (finding,) = [found for found in analyze([str(tmp_path)]).findings if found.rule == "shm-segment-failed"]
    assert reason in finding.detail
    assert remedy in finding.remedy
