"""Pods and nodes as kubectl describe shows them: findings name the container, the pod or the node of their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report

POD = """\
Name:             train-3
Namespace:        team
Init Containers:
  wait:
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
Containers:
  trainer:
    State:          Terminated
      Reason:       {reason}
      Exit Code:    {code}
    Limits:
      memory:          512Gi
  logs:
    State:          Running
Volumes:
  settings:
    Name:      train-settings
Events:
  Type     Reason            Age  From               Message
  ----     ------            ---- ----               -------
  Warning  FailedScheduling  3m   default-scheduler  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.
"""
NODE = """\
Name:               gpu-b017
Labels:             nvidia.com/gpu.count=8
Capacity:
  cpu:                192
{capacity}Allocatable:
  cpu:                191
{allocatable}Events:              <none>
"""


def report_of(folder: Path, text: str) -> Report:
    (folder / "pasted.txt").write_text(text)
    return analyze(str(folder / "pasted.txt"), everything=True)


def devices(*counts: tuple[str, int]) -> str:
    return "".join(f"  {name}:  {count}\n" for name, count in counts)


@pytest.mark.parametrize("margin", ["", "    "])
@pytest.mark.parametrize(
    ("reason", "code", "title"),
    [
        ("OOMKilled", 137, "container trainer of train-3 killed: the memory of the host"),
        ("Error", 139, "container trainer of train-3 crashed with SIGSEGV"),
    ],
)
def test_a_container_that_ended_is_named_with_its_pod(
    tmp_path: Path, margin: str, reason: str, code: int, title: str
) -> None:
    text = "".join(margin + line for line in POD.format(reason=reason, code=code).splitlines(keepends=True))

    assert report_of(tmp_path, text).findings[0].title.startswith(title)


def test_a_pod_that_finds_no_node_is_named_and_no_volume(tmp_path: Path) -> None:
    titles = [finding.title for finding in report_of(tmp_path, POD.format(reason="Completed", code=0)).findings]

    assert any(title.startswith("train-3: Kubernetes found no node for a pod") for title in titles)
    assert not any("train-settings" in title for title in titles)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "title"),
    [
        ([("nvidia.com/gpu", 8)], [("nvidia.com/gpu", 7)], "1 of 8 nvidia.com/gpu cannot be given to pods"),
        ([("nvidia.com/gpu", 8)], [("nvidia.com/gpu", 0)], "8 of 8 nvidia.com/gpu cannot be given to pods"),
        ([("nvidia.com/gpu", 0)], [("nvidia.com/gpu", 0)], "none of 8 GPUs is offered to pods"),
        ([("rdma/hca", 63)], [("rdma/hca", 63)], "none of 8 GPUs is offered to pods"),
        ([("nvidia.com/gpu", 8)], [("nvidia.com/gpu", 8)], None),
        ([("nvidia.com/gpu.shared", 32)], [("nvidia.com/gpu.shared", 32)], None),
        ([("nvidia.com/mig-1g.10gb", 56)], [("nvidia.com/mig-1g.10gb", 56)], None),
    ],
)
def test_devices_that_a_node_has_and_does_not_give_are_counted(
    tmp_path: Path, capacity: list[tuple[str, int]], allocatable: list[tuple[str, int]], title: str | None
) -> None:
    text = NODE.format(capacity=devices(*capacity), allocatable=devices(*allocatable))

    found = [finding for finding in report_of(tmp_path, text).findings if finding.rule == "node-devices-missing"]
    assert [finding.title for finding in found] == ([f"node gpu-b017: {title}"] if title else [])
    assert all(finding.hosts == ["gpu-b017"] for finding in found)


def test_a_list_that_is_cut_above_its_second_half_shows_nothing_missing(tmp_path: Path) -> None:
    text = NODE.format(capacity=devices(("rdma/hca", 63)), allocatable="").partition("Allocatable:")[0]

    assert report_of(tmp_path, text).findings == []
