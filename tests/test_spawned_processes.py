"""Processes of torch.multiprocessing.spawn: which one failed first, and what it called in its teardown."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views.json_report import as_object
from tests.incidents import INCIDENTS

BARRIER = "a-spawned-rank-raises-and-meets-the-other-in-a-barrier"
HEADING = "-- Process 1 terminated with the following error:\n"
VALUE_ERROR = "ValueError: sample 88213 of shard 17 has 0 tokens\n"
NCCL_ERROR = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
    "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
)
CHAINED = f"""\
ConnectionResetError: [Errno 104] Connection reset by peer

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
{VALUE_ERROR}"""


def answer_with(folder: Path, change: tuple[str, str]) -> dict[str, Any]:
    """Answer the incident with a text of the parent's output replaced."""
    shutil.copytree(INCIDENTS / BARRIER, folder, ignore=shutil.ignore_patterns("case.json", "report.md"))
    output = folder / "job.log"
    assert change[0] in output.read_text()
    output.write_text(output.read_text().replace(*change))
    answer: dict[str, Any] = as_object(analyze([str(folder)]))
    return answer


def hang_with(folder: Path, change: tuple[str, str]) -> dict[str, Any]:
    hang: dict[str, Any] = answer_with(folder, change)["hang"]
    return hang


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        (VALUE_ERROR, "AssertionError\n"),
        (VALUE_ERROR, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 1 is full\n"),
        (VALUE_ERROR, CHAINED),
        ("torch.multiprocessing.spawn.ProcessRaisedException: ", "Exception: "),
    ],
    ids=["value", "without-message", "gpu-memory", "while-another-was-handled", "early-torch"],
)
def test_the_rank_that_raised_is_named_and_not_the_one_it_leaves_behind(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    hang = hang_with(tmp_path / "job", change)

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [1])


@pytest.mark.parametrize(
    "change", [(HEADING, ""), (VALUE_ERROR, NCCL_ERROR)], ids=["no-process-is-named", "it-passes-on-an-error"]
)
def test_a_call_of_one_element_is_a_difference_where_its_rank_did_not_raise(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    hang = hang_with(tmp_path / "job", change)

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [0, 1])


def test_an_exception_explains_no_other_call_than_a_barrier(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(INCIDENTS / BARRIER, folder, ignore=shutil.ignore_patterns("case.json", "report.md"))
    log = folder / "nccl.1.log"
    log.write_text(log.read_text().replace("count 1 ", "count 2 "))

    hang = as_object(analyze([str(folder)]))["hang"]

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [0, 1])


def test_processes_are_numbered_on_their_node(tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (3,))
    plan = Plan(2, gpus_per_node=2, tp=1, layers=1, steps=2, version="2.21.5", finish=Finish.KILLED, fault=fault)
    generate(plan, tmp_path)
    of_second_node = tmp_path / "nccl_rank2.log"  # the parent and this rank print to one terminal
    text = (INCIDENTS / BARRIER / "job.log").read_text()
    of_second_node.write_text(of_second_node.read_text() + text[text.index(HEADING) :])

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [3])


def test_without_lines_of_nccl_the_number_is_that_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text((INCIDENTS / BARRIER / "job.log").read_text())

    findings = as_object(analyze([str(tmp_path)], everything=True))["findings"]

    assert [(found["title"], found["ranks"]) for found in findings if found["category"] == "application-error"] == [
        ("local rank 1 raised ValueError: sample 88213 of shard 17 has 0 tokens", [])
    ]
