"""Logs that were sorted, doubled, cut, or begun by an earlier process: none of them accuses an innocent rank."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Plan
from tests.test_incomplete_logs import HANG, HEALTHY, MISMATCH, Logs, calls_in, hang_of, logs_of

UNDECIDED = {"undecidable", "no-hang"}


def of_container(logs: Logs) -> Logs:
    """The same logs from containers: every process has the pid 1 on a host of its own."""
    prefix = re.compile(rb"^\S+:\d+:\d+ \[")
    return {
        name: [prefix.sub(b"%s:1:1 [" % name.encode().removesuffix(b".log"), line) for line in lines]
        for name, lines in logs.items()
    }


def earlier_attempt(lines: list[bytes], part: float) -> list[bytes]:
    """The beginning of another run of the same program, which has another unique id."""
    text = b"".join(lines[: int(len(lines) * part)])
    return re.sub(rb"commId 0x(\w+)", lambda found: b"commId 0x%x" % (int(found[1], 16) ^ 0xABCDEF), text).splitlines(
        keepends=True
    )


@pytest.mark.parametrize("name", [HANG, HEALTHY, MISMATCH])
@pytest.mark.parametrize("is_merged", [False, True])
def test_sorted_lines_show_no_order_of_calls(name: str, is_merged: bool, tmp_path: Path) -> None:
    logs = {file: sorted(lines) for file, lines in logs_of(name).items()}
    if is_merged:
        logs = {"job.log": sorted(line.rstrip(b"\n") + b"\n" for lines in logs.values() for line in lines)}

    hang = hang_of(logs, tmp_path / "logs")

    assert hang["verdict"] in UNDECIDED
    assert not hang["culprits"]


@pytest.mark.parametrize(("name", "culprits"), [(HANG, [11]), (HEALTHY, []), (MISMATCH, [3])])
def test_lines_that_a_collector_delivered_twice_are_no_calls(name: str, culprits: list[int], tmp_path: Path) -> None:
    draw = random.Random(name)
    logs = {
        file: [copy for line in lines for copy in [line] * (2 if draw.random() < 0.05 else 1)]
        for file, lines in logs_of(name).items()
    }

    hang = hang_of(logs, tmp_path / "logs")

    assert hang["culprits"] == culprits or hang["verdict"] in UNDECIDED


@pytest.mark.parametrize(("name", "culprits"), [(HANG, [11]), (HEALTHY, []), (MISMATCH, [3])])
def test_an_earlier_process_of_the_same_pid_is_another_run(name: str, culprits: list[int], tmp_path: Path) -> None:
    logs = of_container(logs_of(name))

    hang = hang_of({file: earlier_attempt(lines, 0.7) + lines for file, lines in logs.items()}, tmp_path / "logs")

    assert hang["culprits"] == culprits
    assert (hang["verdict"] == "no-hang") == (name == HEALTHY)


def test_a_shorter_log_of_another_rank_leaves_open_which_rank_stands(tmp_path: Path) -> None:
    logs = logs_of(HANG)
    own = logs["nccl_rank4.log"]
    logs["nccl_rank4.log"] = own[: calls_in(own)[-20]]

    hang = hang_of(logs, tmp_path / "logs")

    assert 4 not in hang["culprits"] or hang["certainty"] == "possible"


@pytest.mark.parametrize("name", [HANG, HEALTHY])
def test_windows_and_a_full_read_give_the_same_verdict(name: str, tmp_path: Path) -> None:
    """The logs are made longer than both windows, with lines of the application between the calls."""
    noise = b"".join(b"step %d loss 1.2345 of a program that prints much\n" % step for step in range(40))
    for file, lines in logs_of(name).items():
        calls = set(calls_in(lines))
        (tmp_path / file).write_bytes(b"".join(line + noise * (at in calls) for at, line in enumerate(lines)))

    verdicts = [analyze([str(tmp_path)], full=full).verdicts[0] for full in (False, True)]

    for field in ("verdict", "certainty", "culprits", "operation"):
        assert getattr(verdicts[0], field) == getattr(verdicts[1], field)


def of_world(lines: list[bytes]) -> list[bytes]:
    """What `grep` selects with the pointer of the first communicator, of all ranks."""
    pointer = re.search(rb"comm (0x\w+)", b"".join(lines))
    return [line for line in lines if pointer and pointer[1] in line]


@pytest.mark.parametrize(
    "select",
    [
        pytest.param(of_world, id="grep-a-communicator"),
        pytest.param(lambda lines: [line for line in lines if b"AllReduce" not in line], id="grep-v-AllReduce"),
        pytest.param(lambda lines: list(dict.fromkeys(lines)), id="each-line-once"),
    ],
)
def test_calls_that_a_selection_leaves_out_accuse_no_innocent_rank(
    select: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    fault = Fault(FaultKind.EXTRA_CALL, (14,), "tp")
    generate(Plan(tp=4, layers=1, version="2.30.7", finish=Finish.KILLED, fault=fault), tmp_path / "whole")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted((tmp_path / "whole").iterdir())}

    hang = hang_of({file: select(lines) for file, lines in logs.items()}, tmp_path / "logs")

    assert set(hang["culprits"]) <= {14} or hang["certainty"] == "possible"
