"""Lines of operators, container runtimes and tools that follow from one another are told once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze

ENDED_BY_OPERATOR = """Pod: team.train-1 exited with code 1
Pod: team.train-0 exited with code 143
PyTorchJob train is failed because 1 Worker replica(s) failed.
"""  # it ends the other pods
REFUSED_BY_TOOLKIT = """slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis:     nvidia-container-cli: container error: /data/x: permission denied
slurmstepd: error: pyxis: couldn't start container
"""  # which says why
NOT_OF_THIS_GPU = "ERROR: 2 GPU[0]: ras: RSMI_STATUS_NOT_SUPPORTED: This function is not supported here."
ENDED = "a container of a job of Kubernetes ended with an error: team.train-1 exited with code 1"
TOLD_TO_END = "a container of a job of Kubernetes was told to end (SIGTERM): team.train-0"
REFUSED = "the container toolkit of NVIDIA, or NVML, could not start: container error: /data/x: permission denied"
HUNG = "rocm-smi reads no proper values of an AMD GPU, which is mostly hung: GPU[1]"


@pytest.mark.parametrize(
    ("lines", "titles"),
    [
        (ENDED_BY_OPERATOR, [ENDED]),
        ("Pod: team.train-0 exited with code 143", [TOLD_TO_END]),
        ("Pod: team.train-0 exited with code 0", []),
        (REFUSED_BY_TOOLKIT, [REFUSED]),
        (NOT_OF_THIS_GPU, []),
        ("GPU[1]          : Unable to determine current clocks. Check dmesg or GPU temperature", [HUNG]),
    ],
)
def test_what_follows_from_another_line_is_not_told_beside_it(tmp_path: Path, lines: str, titles: list[str]) -> None:
    (tmp_path / "job.out").write_text(f"{lines}\n")

    findings = analyze([str(tmp_path)], everything=True).findings
    assert [finding.title for finding in findings if finding.severity != "info"] == titles
