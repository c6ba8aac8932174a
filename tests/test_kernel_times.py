"""Lines of the kernel at the time of the run, and at other times: a process id or a GPU alone binds neither."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.report.chain import chain
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views.json_report import as_object
from ncclforensics.views.text_report import text

BEGAN = datetime(2026, 3, 2, 11, 0)
KILLED = "Out of memory: Killed process {pid} (python3) total-vm:950kB, anon-rss:640kB, file-rss:0kB, shmem-rss:0kB"
FELL_OFF = "NVRM: Xid (PCI:0000:{bus}:00): 79, pid={pid}, name=python3, GPU has fallen off the bus."
LINK_DOWN = "mlx5_core 0000:5d:00.0 ens1np0: Link down"
LONG_BEFORE, BEFORE, DURING, AFTER = (
    timedelta(hours=-20),
    timedelta(hours=-2),
    timedelta(seconds=20),
    timedelta(hours=2),
)
LAGGING = Fault(FaultKind.LAGGING, (5,))


def write_job(folder: Path, line: str, at: timedelta, *, of: int, fault: Fault | None, finish: Finish) -> None:
    """Write the logs of eight ranks on two hosts, a line each 300 ms, and one of the kernel on the host of a rank."""
    plan = Plan(nodes=2, gpus_per_node=4, layers=1, steps=2, version="2.27.7", finish=finish, fault=fault)
    generate(plan, folder)
    for log in folder.glob("nccl_rank*.log"):
        lines = log.read_text().splitlines()
        times = (BEGAN + timedelta(milliseconds=300) * number for number in range(len(lines)))
        log.write_text("".join(f"{time.isoformat()}Z {words}\n" for time, words in zip(times, lines, strict=True)))
    own = (folder / f"nccl_rank{of}.log").read_text()
    host, pid = own.split(" ", 1)[1].split(":")[:2]
    bus = own.partition("busId ")[2].partition(" ")[0].removesuffix("000")
    (folder / "dmesg.txt").write_text(f"{BEGAN + at:%b %e %H:%M:%S} {host} kernel: {line.format(pid=pid, bus=bus)}\n")


def judged(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = as_object(analyze([str(folder)], everything=True))
    return answer


@pytest.mark.parametrize(
    ("fault", "of", "at", "expected"),
    [
        (LAGGING, 5, DURING, ("rank-died", "certain", [5])),
        (LAGGING, 5, AFTER, ("rank-died", "likely", [5])),  # another time zone, or another process
        (LAGGING, 5, LONG_BEFORE, ("lagging-ranks", "likely", [5])),  # no zone is so far away
        (LAGGING, 1, DURING, ("rank-died", "likely", [1])),  # the others wait for rank 5
        (LAGGING, 1, BEFORE, ("lagging-ranks", "likely", [5])),
        (LAGGING, 1, AFTER, ("lagging-ranks", "likely", [5])),
        (None, 1, DURING, ("rank-died", "certain", [1])),
        (None, 1, LONG_BEFORE, ("no-hang", "possible", [])),
    ],
)
def test_a_kill_is_certain_at_the_time_of_the_run_alone(
    fault: Fault | None, of: int, at: timedelta, expected: tuple[str, str, list[int]], tmp_path: Path
) -> None:
    write_job(tmp_path, KILLED, at, of=of, fault=fault, finish=Finish.KILLED)

    found = judged(tmp_path)["hang"]

    assert (found["verdict"], found["certainty"], found["culprits"]) == expected


@pytest.mark.parametrize(
    ("line", "rule", "at", "certainty"),
    [
        (KILLED, "oom-host", DURING, "certain"),
        (KILLED, "oom-host", AFTER, None),
        (KILLED, "oom-host", BEFORE, None),
        (FELL_OFF, "cuda-gpu-fault", DURING, "certain"),
        (FELL_OFF, "cuda-gpu-fault", AFTER, None),
        (FELL_OFF, "cuda-gpu-fault", BEFORE, None),
    ],
)
def test_a_run_that_ended_well_has_no_fault_of_another_time(
    line: str, rule: str, at: timedelta, certainty: str | None, tmp_path: Path
) -> None:
    write_job(tmp_path, line, at, of=5, fault=None, finish=Finish.CLEAN)

    report = judged(tmp_path)

    assert report["hang"]["verdict"] == "no-hang"
    found = {finding["rule"]: finding["certainty"] for finding in report["findings"]}
    assert found.get(rule) == certainty


@pytest.mark.parametrize(
    ("line", "fault", "rule", "certainties"),
    [
        (FELL_OFF, LAGGING, "cuda-gpu-fault", ("certain", "likely")),
        (LINK_DOWN, Fault(FaultKind.NETWORK_LOST, (5,)), "kernel-link-event", ("likely", "possible")),
    ],
)
@pytest.mark.parametrize("at", [DURING, AFTER])
def test_a_fault_of_another_time_does_not_begin_the_chain(
    line: str, fault: Fault, rule: str, certainties: tuple[str, str], at: timedelta, tmp_path: Path
) -> None:
    finish = Finish.CLEAN if fault.kind is FaultKind.NETWORK_LOST else Finish.KILLED
    write_job(tmp_path, line, at, of=5, fault=fault, finish=finish)

    report = analyze([str(tmp_path)], everything=True)

    (finding,) = (finding for finding in report.findings if finding.rule == rule)
    assert finding.certainty == certainties[at == AFTER]
    assert finding.role == ("context" if at == AFTER else "cause")
    links = chain(report, report.verdicts[0])
    assert (finding.title in {link.text for link in links}) is (at == DURING)


@pytest.mark.parametrize(("of", "is_cause"), [(5, True), (1, False)])
def test_a_gpu_fault_explains_the_rank_on_it_alone(of: int, is_cause: bool, tmp_path: Path) -> None:
    write_job(tmp_path, FELL_OFF, DURING, of=of, fault=LAGGING, finish=Finish.KILLED)

    report = analyze([str(tmp_path)])

    assert report.verdicts[0].verdict == "lagging-ranks"
    assert ("Cause: GPU fault" in text(report)) is is_cause
