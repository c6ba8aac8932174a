"""Verdicts by logs beside the numbers of calls that the Inspector, a profiler's trace and RAS show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views import json_report

LOGS = Path(__file__).parents[1] / "fixtures/incidents/the-inspector-counts-calls-that-a-log-lacks"
HASH = 0x9F15035BC9F0868E  # of all four ranks, who made two AllReduce; the log of rank 2 shows one
RAS_TABLE = """NCCL version 2.30.7 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING      OK
"""


def inspector(number: int, ranks: tuple[int, ...]) -> dict[str, str]:
    """Files of the Inspector in which the last AllReduce of these ranks has this number."""
    return {
        f"inspector-{rank}.log": json.dumps(
            {
                "header": {"id": hex(HASH), "comm_name": "", "rank": rank, "n_ranks": 4, "nnodes": 1},
                "metadata": {"inspector_output_format_version": "v4.0", "hostname": "gpu-d000", "pid": 1 + rank},
                "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 4, "coll_exec_time_us": 9},
            }
        )
        for rank in ranks
    }


def trace(numbers: dict[int, int]) -> dict[str, str]:
    """Traces of the example profiler that begin an AllReduce of this number, by rank."""
    arguments = '"Count": 1, "Datatype": "ncclFloat32", "Algorithm": "RING", "Protocol": "LL", "nChannels": 1'
    return {
        f"trace-{HASH}-{rank}.json": "\n".join(
            f'{{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": {n}, "pid": {1 + rank}, "tid": 1, "ts": 91240.5, '
            f'"args": {{"SeqNum": {n}, "CommHash": {HASH}, "Rank": {rank}, {arguments}}}}},'
            for n in range(number + 1)
        )
        for rank, number in numbers.items()
    }


def ras(counts: list[int]) -> dict[str, str]:
    """A report of RAS with these numbers of AllReduce, by rank."""
    ranks = [
        {"rank": rank, "host": "10.0.0.1", "pid": 1 + rank, "cuda_dev": rank, "nvml_dev": rank}
        | {"collective_counts": {"AllReduce": calls}}
        for rank, calls in enumerate(counts)
    ]
    communicator = {"hash": hex(HASH), "size": 4, "ranks_count": 4, "missing_ranks_count": 0, "ranks": ranks}
    document = {"nccl_version": "2.30.7", "timestamp": "2026-03-02 11:04:57", "communicators_count": 1}
    return {"ras.json": json.dumps({**document, "communicators": [communicator]}, indent=2)}


@pytest.mark.parametrize(
    ("files", "expected", "reason"),
    [
        (
            inspector(0, (0, 1, 2, 3)),
            ("lagging-ranks", [2], "likely"),
            "completed, and not this one",
        ),
        (inspector(1, (3,)), ("undecidable", [], "likely"), "shows that rank 2 completed 2 collectives"),
        (
            inspector(7, (3,)),
            ("lagging-ranks", [2], "likely"),
            "waited for no other rank; that the job stands still is assumed",
        ),
        (trace({0: 1, 2: 0}), ("lagging-ranks", [2], "likely"), "shows this call on rank 0, too, and not on rank 2"),
        (trace({0: 1, 2: 1}), ("undecidable", [], "likely"), "shows that rank 2 launched 2 collectives"),
        (ras([2, 2, 2, 2]), ("undecidable", [], "likely"), "show that rank 2 launched 2 collectives"),
        (ras([2, 2, 1, 2]), ("lagging-ranks", [2], "likely"), "show this call on ranks 0, 1, 3, too"),
        ({"ras.txt": RAS_TABLE}, ("lagging-ranks", [2], "possible"), "the RAS report shows no mismatch"),
    ],
    ids=[
        "none completed it",
        "it completed",
        "other numbers",
        "not launched",
        "launched",
        "RAS",
        "lags",
        "no mismatch",
    ],
)
def test_counts_support_or_contradict_the_log_of_a_rank(
    tmp_path: Path, files: dict[str, str], expected: tuple[str, list[int], str], reason: str
) -> None:
    for log in LOGS.glob("nccl_rank*.log"):
        (tmp_path / log.name).write_bytes(log.read_bytes())
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    report: dict[str, Any] = json_report.as_object(analyze([str(tmp_path)]))

    hang = report["hang"]
    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == expected
    assert reason in " ".join(finding["detail"] for finding in report["findings"])


def record(communicator: int, calls: int, pid: int, nranks: int) -> str:
    """A file of the Inspector in which the process, rank 1 of this communicator, completed so many AllGather."""
    return json.dumps(
        {
            "header": {"id": hex(communicator), "comm_name": "", "rank": 1, "n_ranks": nranks, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "hostname": "gpu-d000", "pid": pid},
            "coll_perf": {"coll": "AllGather", "coll_sn": calls - 1, "coll_msg_size_bytes": 4, "coll_exec_time_us": 9},
        }
    )


@pytest.mark.parametrize(
    ("gpus", "hashes", "nranks", "verdict"),
    [
        (8, (), 2, "lagging-ranks"),
        (8, (0xABC,), 2, "undecidable"),  # process, rank and size fit one communicator of the logs
        (8, (0xABC,), 3, "lagging-ranks"),  # no communicator has this size
        (8, (0xABC, 0xDEF), 2, "lagging-ranks"),  # which of the two is meant is not known
        (4, (0xABC,), 2, "lagging-ranks"),  # the process is rank 1 of two communicators of two
    ],
)
def test_a_split_communicator_without_commid_is_found_by_its_processes(
    gpus: int, hashes: tuple[int, ...], nranks: int, verdict: str, tmp_path: Path
) -> None:
    fault = Fault(FaultKind.LAGGING, (3,), communicator="tp")
    shape = {"nodes": 1, "gpus_per_node": gpus, "tp": 2, "layers": 1, "steps": 2}
    generate(Plan(**shape, version="2.27.7", finish=Finish.KILLED, fault=fault), tmp_path)
    log, other = (tmp_path / "nccl_rank3.log").read_text(), (tmp_path / "nccl_rank2.log").read_text()
    split = next(line for line in other.splitlines() if "ncclCommSplit" in line and "splitCount 1" in line)
    calls = sum(
        f"comm {split.split(' comm ')[1].split()[0]} " in line for line in other.splitlines() if "opCount" in line
    )
    for number in hashes:
        (tmp_path / f"inspector-{number}.log").write_text(record(number, calls, int(log.split(":")[1]), nranks))

    report: dict[str, Any] = json_report.as_object(analyze([str(tmp_path)]))

    assert report["hang"]["verdict"] == verdict


@pytest.mark.parametrize("kind", [FaultKind.RANK_MISSING, FaultKind.INIT_STOPPED])
@pytest.mark.parametrize(
    ("files", "is_over"),
    [
        ({}, False),
        (inspector(0, (0, 1)), True),
        (trace({1: 0}), True),
        (inspector(0, (0, 1)) | trace({1: 0}), True),
    ],
    ids=["logs alone", "Inspector", "profiler", "both"],
)
def test_no_init_stands_still_on_a_communicator_whose_calls_were_counted(
    kind: FaultKind, files: dict[str, str], is_over: bool, tmp_path: Path
) -> None:
    plan = Plan(nodes=1, gpus_per_node=4, tp=2, layers=1, steps=2, version="2.27.7", finish=Finish.KILLED)
    generate(replace(plan, fault=Fault(kind, (2,))), tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    hang = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    expected = ("init-incomplete", []) if kind is FaultKind.INIT_STOPPED else ("rank-missing", [2])
    assert (hang["verdict"], hang["culprits"]) == (("undecidable", []) if is_over else expected)


@pytest.mark.parametrize("shown_by", ["inspector", "trace", "stack", ""])
def test_no_rank_is_missing_of_which_another_file_is_here(shown_by: str, tmp_path: Path) -> None:
    """The log of rank 3 was not given, and the other logs end in the init that they began with it."""
    plan = Plan(nodes=1, gpus_per_node=4, tp=1, layers=1, steps=2, version="2.27.7", finish=Finish.KILLED)
    generate(plan, tmp_path)
    lines = (tmp_path / "nccl_rank3.log").read_text().splitlines()
    started = next(line for line in lines if "Init START" in line)
    communicator, pid = int(started.partition("commId ")[2].split()[0], 16), int(lines[0].split(":")[1])
    (tmp_path / "nccl_rank3.log").unlink()
    for log in tmp_path.glob("*.log"):
        head, start, rest = log.read_text().partition("Init START")
        log.write_text(f"{head}{start}{rest.partition(chr(10))[0]}\n")
    files = {
        "inspector": record(communicator, 3, pid, 4).replace('"rank": 1', '"rank": 3'),
        "trace": trace({3: 2})[f"trace-{HASH}-3.json"].replace(str(HASH), str(communicator)),
        "stack": f"Process {pid}: python3 train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "
        '"MainThread"\n    read_next (dataset.py:212)\n',
    }
    if shown_by:
        (tmp_path / "rank3.txt").write_text(files[shown_by])

    hang = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["culprits"]) == (("undecidable", []) if shown_by else ("rank-missing", [3]))
