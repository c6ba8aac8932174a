"""GPU faults in the kernel log, and GPUs at rest in nvidia-smi: each condition beside an example without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.rules.host.gpu_use import gpu_at_rest_among_busy
from ncclforensics.rules.job.cuda_errors import cuda_call_failed, cuda_gpu_fault
from tests.rule_rows import Row, findings_of

GPU, OTHER_GPU, THIRD_GPU = "5d000", "1b000", "9a000"
OFF_THE_BUS, LINK_TRAINING, UNDESCRIBED, OF_A_PROGRAM = 79, 136, 167, 31
PID = 100

Rows = Sequence[Row]


def process(number: int, host: str = "gpu-a", pid: int | None = PID, busid: str | None = GPU) -> Row:
    return {"job": 0, "rank_id": number, "rank": number, "host": host, "pid": pid, "busid": busid}


HERE = process(0)
ON_ANOTHER_HOST = process(1, "gpu-b", 200, OTHER_GPU)
LOST = [{"rank": 1, "is_final": True, "reporter": "torchrun"}]
ENDED_WELL = [{"job": 0, "verdict": "no-hang", "culprits": []}]
BLAMED = [{"job": 0, "verdict": "lagging-ranks", "culprits": [0]}]


def faults(*ranks: Row, exits: Rows = (), verdict: Rows = (), **event: object) -> list[tuple[str, list[int]]]:
    row = {"form": "xid", "xid": OFF_THE_BUS, "busid": GPU, **event}
    findings = findings_of(
        cuda_gpu_fault, kernel_event=[row], rank=list(ranks), process_exit=[*exits], verdict=[*verdict]
    )
    return [(finding.certainty, finding.ranks) for finding in findings]


CERTAIN, LIKELY, POSSIBLE = [("certain", [0])], [("likely", [0])], [("possible", [])]


@pytest.mark.parametrize(
    ("ranks", "event", "expected"),
    [
        ((HERE, ON_ANOTHER_HOST), {"node": "gpu-a", "pid": PID}, CERTAIN),
        ((HERE, ON_ANOTHER_HOST), {"node": "gpu-a.cluster", "pid": PID}, CERTAIN),
        # Without its host: on the only host of the run, or on the very GPU of that process.
        ((HERE, ON_ANOTHER_HOST), {"pid": PID}, CERTAIN),
        ((process(0, busid=None), ON_ANOTHER_HOST), {"pid": PID}, LIKELY),
        ((process(0, busid=None), process(1, pid=200, busid=OTHER_GPU)), {"pid": PID}, CERTAIN),
        # Of a GPU on which that process is not: an earlier process may have had its number.
        ((process(0, busid=OTHER_GPU), ON_ANOTHER_HOST), {"pid": PID}, LIKELY),
        ((process(0, busid=OTHER_GPU),), {"pid": PID}, LIKELY),
        ((process(0, busid=OTHER_GPU), process(1, pid=200, busid=THIRD_GPU)), {"node": "gpu-a", "pid": PID}, LIKELY),
        # A number that processes of two hosts have: the GPU tells which is meant, or nothing does.
        ((HERE, process(1, "gpu-b", busid=OTHER_GPU)), {"pid": PID}, CERTAIN),
        ((process(0, busid=None), process(1, "gpu-b", busid=None)), {"pid": PID}, []),
        ((process(0, busid=None), process(1, "gpu-b", busid=None)), {"node": "gpu-a", "pid": PID}, CERTAIN),
        # The GPU alone: the fault may be of before the job.
        ((HERE, ON_ANOTHER_HOST), {"node": "gpu-a"}, LIKELY),
        ((HERE, ON_ANOTHER_HOST), {"node": "gpu-a", "pid": 999}, LIKELY),
        ((HERE, ON_ANOTHER_HOST), {"node": "gpu-a", "busid": THIRD_GPU}, POSSIBLE),
        # Neither host nor process: every host has a GPU at this address.
        ((HERE, ON_ANOTHER_HOST), {}, []),
        ((HERE, ON_ANOTHER_HOST), {"node": "gpu-c", "pid": PID}, []),
    ],
)
def test_a_fault_is_certain_for_a_process_of_which_host_and_gpu_do_not_speak_against(
    ranks: tuple[Row, ...], event: Row, expected: list[tuple[str, list[int]]]
) -> None:
    assert faults(*ranks, **event) == expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"node": "gpu-a"}, CERTAIN),
        ({"node": "gpu-a", "busid": THIRD_GPU}, POSSIBLE),
        ({"node": "gpu-c"}, POSSIBLE),
        ({}, POSSIBLE),
    ],
)
def test_a_lost_process_makes_the_fault_of_a_gpu_of_the_run_certain(
    event: Row, expected: list[tuple[str, list[int]]]
) -> None:
    assert faults(HERE, ON_ANOTHER_HOST, exits=LOST, **event) == expected


def test_a_host_of_the_run_alone_counts_as_much_as_the_verdict_says_of_it() -> None:
    elsewhere = {"node": "gpu-a", "busid": THIRD_GPU}

    assert faults(HERE, ON_ANOTHER_HOST, verdict=BLAMED, **elsewhere) == [("likely", [])]
    assert faults(HERE, ON_ANOTHER_HOST, verdict=BLAMED, **{**elsewhere, "node": "gpu-b"}) == POSSIBLE
    assert faults(HERE, ON_ANOTHER_HOST, verdict=ENDED_WELL, **elsewhere) == []


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"xid": LINK_TRAINING}, CERTAIN),
        ({"form": "lost", "xid": None}, CERTAIN),
        ({"xid": UNDESCRIBED}, LIKELY),
        ({"xid": OF_A_PROGRAM}, []),
        ({"xid": 149, "severity": "Fatal"}, CERTAIN),
        ({"xid": 149, "severity": "Nonfatal"}, []),
        ({"form": "sxid"}, []),
    ],
)
def test_a_fault_is_one_of_hardware_that_did_not_recover(event: Row, expected: list[tuple[str, list[int]]]) -> None:
    assert faults(HERE, ON_ANOTHER_HOST, node="gpu-a", pid=PID, **event) == expected


def test_a_kernel_log_by_itself_shows_a_fault_of_no_rank() -> None:
    assert faults() == [("certain", [])]


SPINS = {"utilization": 100.0, "power": 120.0, "power_limit": 700.0, "memory": 70_000.0}
RESTS = {"utilization": 0.0, "power": 70.0, "power_limit": 700.0, "memory": 69_000.0}


def at_rest(*gpus: Row) -> list[tuple[str, str]]:
    rows = [{"host": "gpu-a", "gpu": number, **gpu} for number, gpu in enumerate(gpus)]
    return [(finding.certainty, finding.title) for finding in findings_of(gpu_at_rest_among_busy, gpu_use=rows)]


@pytest.mark.parametrize(
    "gpus",
    [
        [SPINS] * 3 + [RESTS],
        [SPINS] * 3 + [{**RESTS, "memory": 7_000.0}],
        [SPINS] * 3 + [{**RESTS, "power": 119.9}],
        [{**SPINS, "utilization": 95.0, "power": 419.0}] * 3 + [{**RESTS, "utilization": 0.9}],
    ],
)
def test_a_gpu_at_rest_among_those_that_spin_is_possible_at_most(gpus: list[Row]) -> None:
    assert at_rest(*gpus) == [("possible", "GPU 3 on gpu-a: no kernel runs there, and 3 other GPUs spin")]


@pytest.mark.parametrize(
    "gpus",
    [
        [SPINS] * 4,
        [RESTS] * 4,
        [SPINS] * 2 + [RESTS],
        [SPINS] * 6 + [RESTS] * 3,
        [SPINS] * 3 + [{**RESTS, "utilization": 1.0}],
        [SPINS] * 3 + [{**RESTS, "utilization": None}],
        [{**SPINS, "utilization": None}] * 3 + [RESTS],
        [{**SPINS, "utilization": 94.0}] * 3 + [RESTS],
        [{**SPINS, "power": None}] * 3 + [RESTS],
        # Of another job: its process uses next to no memory.
        [SPINS] * 3 + [{**RESTS, "memory": 6_999.0}],
        [SPINS] * 3 + [{**RESTS, "memory": None}],
        # It draws as much as those that spin, or one of them computes.
        [SPINS] * 3 + [{**RESTS, "power": 120.0}],
        [SPINS] * 2 + [{**SPINS, "power": 420.0}, RESTS],
    ],
    ids=str,
)
def test_gpus_that_are_alike_few_or_not_measured_say_nothing(gpus: list[Row]) -> None:
    assert at_rest(*gpus) == []


def test_a_gpu_that_ran_a_kernel_at_one_of_two_looks_is_not_at_rest() -> None:
    looks = [{"host": "gpu-a", "gpu": number, **SPINS} for number in range(3)]
    looks += [{"host": "gpu-a", "gpu": 3, **RESTS}]

    assert [finding.certainty for finding in findings_of(gpu_at_rest_among_busy, gpu_use=looks)] == ["possible"]
    assert findings_of(gpu_at_rest_among_busy, gpu_use=[*looks, {"host": "gpu-a", "gpu": 3, **SPINS}]) == []


@pytest.mark.parametrize(
    ("error", "says"),
    [("peer mapping resources exhausted", True), ("invalid argument", False)],
)
def test_the_limit_of_peers_is_named(error: str, says: bool) -> None:
    row = {"kind": "other", "error": error, "reporter": "NCCL", "file": "allocator", "host": "gpu-a", "pid": PID}

    (finding,) = findings_of(cuda_call_failed, cuda_error=[row], rank=[HERE])

    assert ("at most eight others" in finding.remedy) == says


@pytest.mark.parametrize(
    ("site", "rule"),
    [("transport/shm.cc:590", "cumem-host-no-numa"), ("transport/p2p.cc:238", "p2p-access-refused")],
)
def test_which_memory_the_gpus_cannot_share_is_told_by_the_place(tmp_path: Path, site: str, rule: str) -> None:
    version = "9b405963aa12:774:774 [0] NCCL INFO NCCL version 2.27.3+cuda12.8\n"
    refusal = f"9b405963aa12:774:854 [0] {site} NCCL WARN Cuda failure 217 'peer access is not supported between these "
    (tmp_path / "job.log").write_text(f"{version}{refusal}two devices'\n")

    errors = {f.rule for f in analyze([str(tmp_path)]).findings if f.severity == "error"}

    assert errors == {rule}


def test_a_fault_without_a_pid_is_one_with_those_that_have_one(tmp_path: Path) -> None:
    fault = "[{}.034512] NVRM: Xid (PCI:0000:41:00): 79, {}GPU has fallen off the bus.\n"
    without_pid = "".join(fault.format(number, "") for number in range(12_000, 12_150))
    (tmp_path / "dmesg.txt").write_text(without_pid + fault.format(12_150, "pid=41887, name=python3, "))
    report = analyze([str(tmp_path / "dmesg.txt")])

    assert not report.run.defects
    assert "cuda-gpu-fault" in {finding.rule for finding in report.findings}
