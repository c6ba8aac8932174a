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
NO_NIC = """2026/03/02 11:04:57 Warning: no devices in device pool, creating empty resource server for rdma_a
2026/03/02 11:04:57 Warning: no Rdma Devices were found for resource rdma_a
"""
OF_SYSTEMD = """Mar  2 11:04:57 gpu-a012 systemd-oomd[734]: Considered 97 cgroups for killing, top candidates were:
Mar  2 11:04:57 gpu-a012 systemd-oomd[734]: Killed /a.slice/train.service due to memory pressure for /a.slice being 64%
Mar  2 11:04:57 gpu-a012 systemd[1]: train.service: systemd-oomd killed 2 process(es) in this unit.
"""
OF_BLOCKS = """GPU: 3
    ECC_BLOCKS:
        UMC:
            CORRECTABLE_COUNT: 2
            UNCORRECTABLE_COUNT: 3
        GFX:
            UNCORRECTABLE_COUNT: 0
"""
NOT_LAUNCHED = """[slurm_plugin.common:_launch_ec2_instances] - ERROR - Failed RunInstances request: 4711
[slurm_plugin.resume:_resume] - ERROR - Failed to launch following nodes, setting nodes to down: (x1) ['gpu-1']
"""
UNRESOLVABLE = (
    "a container runtime does not know a device that was asked for, so that a container did not start: x/gpu=0"
)
NO_NIC_FOUND = (
    "the device plugin of a node found no NIC for a resource, so that pods that ask for it do not start there: rdma_a"
)
KILLED = (
    "gpu-a012: systemd-oomd killed a unit, because the host was short of memory: /a.slice/train.service, train.service"
)
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
        (NO_NIC, [NO_NIC_FOUND]),
        (OF_SYSTEMD, [KILLED]),
        (NOT_LAUNCHED, ["EC2 did not launch nodes of a job, which Slurm then sets down: 'gpu-1'"]),
        ("Error: setting up CDI devices: unresolvable CDI devices x/gpu=0", [UNRESOLVABLE]),
        (OF_BLOCKS, ["AMD GPU 3: 3 memory errors that could not be corrected"]),
        ("        UMC:\n            UNCORRECTABLE_COUNT: 0", []),
    ],
)
def test_what_follows_from_another_line_is_not_told_beside_it(tmp_path: Path, lines: str, titles: list[str]) -> None:
    (tmp_path / "job.out").write_text(f"{lines}\n")

    findings = analyze([str(tmp_path)], everything=True).findings
    assert [finding.title for finding in findings if finding.severity != "info"] == titles
