"""Two sources on one job: which is believed where they disagree, and how sure the verdict then is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.report.chain import chain
from ncclforensics.rules.finding import Role
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views.json_report import as_object
from tests.budget import sample
from tests.incidents import HANGS, INCIDENTS, Incident, answer

STATUS = (
    "[rank{rank}]:[E1121 03:38:46.100000000 ProcessGroupNCCL.cpp:2100] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "failure detected by watchdog at work sequence id: {work} PG status: last enqueued work: {work}, last completed "
    "work: 15\n"
)
TIMED_OUT = (
    "[rank0]:[E1121 03:38:46.100000000 ProcessGroupNCCL.cpp:682] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=60000) ran for 60029 "
    "milliseconds before timing out.\n"
)

# Files beside the logs that say nothing of the job.
BESIDE = {
    "config.json": '{\n  "rank": 0,\n  "size": 8,\n  "AllReduce": 7,\n  "hash": "0x12",\n  "state": "exited rc=5"\n}\n',
    "storage.log": (
        "Nov 21 03:38:45 storage-17 kernel: NVRM: Xid (PCI:0000:65:00): 79, pid=4242, name=python3, GPU has fallen "
        "off the bus.\n"
        "Nov 21 03:38:46 storage-17 kernel: mlx5_core 0000:3b:00.0 mlx5_2: Port: 1 Link DOWN\n"
        "Nov 21 03:38:47 storage-17 kernel: Out of memory: Killed process 99321 (java) total-vm:1000kB, "
        "anon-rss:900kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n"
    ),
    "notes.txt": "We saw a timeout last week. The error was a bad cable.\nAsk about rank 3 and the hang of Tuesday.\n",
    "ras.txt": "Failed to connect to the NCCL RAS service!\n",
    "steps.log": "step 100 loss 2.31 time 0.51\nstep 101 loss 2.30 time 0.52\nstep 102 loss 2.29 time 0.50\n",
}


def hang(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = as_object(analyze([str(folder)]))["hang"]
    return answer


@pytest.mark.parametrize(
    ("watchdog", "finish", "verdict", "certainty"),
    [
        # The job may run on, and its collector delivered a line twice.
        ("", Finish.KILLED, "collective-mismatch", "possible"),
        ("", Finish.CLEAN, "no-hang", "likely"),  # it did run on
        (TIMED_OUT, Finish.KILLED, "collective-mismatch", "likely"),  # a line that came twice stops no job
    ],
)
def test_a_call_equal_to_the_one_before_it_may_be_a_line_that_came_twice(
    watchdog: str, finish: Finish, verdict: str, certainty: str, tmp_path: Path
) -> None:
    generate(Plan(nodes=1, gpus_per_node=4, tp=2, layers=1, steps=3, version="2.27.7", finish=finish), tmp_path)
    log = tmp_path / "nccl_rank3.log"
    lines = log.read_text().splitlines(keepends=True)
    third_last = [number for number, line in enumerate(lines) if "opCount" in line][-3]
    log.write_text("".join([*lines[: third_last + 1], lines[third_last], *lines[third_last + 1 :]]))
    if watchdog:
        (tmp_path / "stderr.txt").write_text(watchdog)

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"]) == (verdict, certainty)
    assert found["culprits"] == ([3] if verdict == "collective-mismatch" else [])
    assert "twice" in found["reason"]


@pytest.mark.parametrize(
    ("lagging", "expected", "phrase"),
    [
        (1, ("undecidable", []), "the watchdogs' messages show the others waiting for rank 1"),  # of another run
        (2, ("lagging-ranks", [2]), ""),
    ],
)
def test_dumps_and_watchdogs_that_exclude_each_other_name_no_rank(
    lagging: int, expected: tuple[str, list[int]], phrase: str, tmp_path: Path
) -> None:
    for dump in (INCIDENTS / "flight-recorders-show-a-rank-that-stopped").glob("comm_lib_trace_rank_*"):
        shutil.copy(dump, tmp_path)
    text = "".join(STATUS.format(rank=rank, work=15 if rank == lagging else 16) for rank in range(4))
    (tmp_path / "stderr.txt").write_text(text)

    found = hang(tmp_path)

    assert (found["verdict"], found["culprits"], found["certainty"]) == (*expected, "likely")
    assert phrase in found["reason"]
    assert ("contradict each other" in found["reason"]) is bool(phrase)


def write_job(folder: Path) -> list[int]:
    """Write the logs of eight ranks of which the third lags; return their pids."""
    fault = Fault(FaultKind.LAGGING, (2,))
    generate(Plan(gpus_per_node=4, version="2.27.7", layers=1, steps=2, finish=Finish.KILLED, fault=fault), folder)
    return [int((folder / f"nccl_rank{rank}.log").read_text().split(":", 2)[1]) for rank in range(8)]


@pytest.mark.parametrize(
    ("lagging", "reporting", "expected", "phrase"),
    [
        (2, range(8), ("certain", [2]), ""),
        (5, range(8), ("likely", []), "but the watchdogs' messages show the others waiting for rank 5"),
        (5, (0, 1, 2, 3), ("likely", []), "but the watchdogs' messages show it waiting in a call itself"),
        (5, (0, 1, 3), ("certain", [2]), ""),  # these say nothing of ranks 2 and 5
    ],
)
def test_watchdogs_that_contradict_the_lines_make_a_verdict_doubtful(
    lagging: int, reporting: Sequence[int], expected: tuple[str, list[int]], phrase: str, tmp_path: Path
) -> None:
    write_job(tmp_path)
    text = "".join(STATUS.format(rank=rank, work=15 if rank == lagging else 16) for rank in reporting)
    (tmp_path / "stderr.txt").write_text(TIMED_OUT.replace("SeqNum=17", "SeqNum=16") + text)

    found = hang(tmp_path)

    assert (found["certainty"], found["culprits"]) == expected
    assert phrase in found["reason"]


def test_a_status_of_a_failure_alone_proves_no_standstill(tmp_path: Path) -> None:
    """PyTorch prints it for an error, too; a time-out says so itself."""
    write_job(tmp_path)
    text = "".join(STATUS.format(rank=rank, work=15 if rank == 2 else 16) for rank in range(8))
    (tmp_path / "stderr.txt").write_text(text)

    found = hang(tmp_path)

    assert (found["certainty"], found["culprits"]) == ("likely", [2])


@pytest.mark.parametrize(
    ("lagging", "outside", "expected"),
    [
        (5, 2, ("likely", [2])),  # NCCL's lines and the stacks outweigh the watchdogs, which are of another run
        (5, 5, ("possible", [5])),  # the watchdogs and the stacks outweigh the lines
        (2, 2, ("certain", [2])),
    ],
)
def test_two_sources_that_agree_outweigh_one(
    lagging: int, outside: int, expected: tuple[str, list[int]], tmp_path: Path
) -> None:
    pids = write_job(tmp_path)
    text = "".join(STATUS.format(rank=rank, work=15 if rank == lagging else 16) for rank in range(8))
    (tmp_path / "stderr.txt").write_text(text)
    for rank in range(8):
        (tmp_path / f"stack-{rank}.txt").write_text(stack_of(pids[rank], is_outside=rank == outside))

    found = hang(tmp_path)

    assert (found["certainty"], found["culprits"]) == expected
    assert ("; but " in found["reason"]) is (lagging != 2 or outside != 2)


@pytest.mark.parametrize("later", ["03:38:46", "04:38:46"])
def test_only_the_latest_attempts_time_outs_count(later: str, tmp_path: Path) -> None:
    """Rank 1 lagged in the first attempt and rank 2 in the second; reports of one hang are within minutes."""
    texts = [
        "".join(STATUS.format(rank=rank, work=15 if rank == lagging else 16) for rank in range(4)) for lagging in (1, 2)
    ]
    (tmp_path / "stderr.txt").write_text(texts[0] + texts[1].replace("03:38:46", later))

    found = hang(tmp_path)

    assert found["culprits"] == ([2] if later > "04" else [1])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(FaultKind.OTHER_COUNT, ("collective-mismatch", [2])), (FaultKind.LAGGING, ("undecidable", []))],
)
def test_watchdogs_that_show_another_call_than_nccls_lines_accuse_no_rank(
    kind: FaultKind, expected: tuple[str, list[int]], tmp_path: Path
) -> None:
    """By the watchdogs rank 5 made another call, and by the lines it made the same one and waits for rank 2."""
    generate(Plan(gpus_per_node=4, version="2.27.7", layers=1, steps=2, fault=Fault(kind, (2,))), tmp_path)
    text = "".join(
        TIMED_OUT.replace("rank0", f"rank{rank}")
        .replace("Rank 0", f"Rank {rank}")
        .replace("In=1024", "In=4096" if rank == 5 else "In=1024")
        for rank in range(8)
    )
    (tmp_path / "stderr.txt").write_text(text)

    found = hang(tmp_path)

    assert (found["verdict"], found["culprits"]) == expected


@pytest.mark.parametrize(
    ("outside", "dumped", "certainty"),
    [(2, range(8), "certain"), (None, (0, 5), "certain"), (0, (0, 5, 6), "likely"), (0, range(8), "possible")],
)
def test_a_rank_outside_of_collectives_that_no_line_names_makes_a_verdict_less_sure(
    outside: int | None, dumped: Sequence[int], certainty: str, tmp_path: Path
) -> None:
    pids = write_job(tmp_path)
    for look in (1, 2):
        folder = tmp_path / f"stacks-{look}"
        folder.mkdir()
        for rank in dumped:
            (folder / f"rank{rank}.txt").write_text(stack_of(pids[rank], is_outside=rank == outside))

    found = hang(tmp_path)

    assert (found["certainty"], found["culprits"]) == (certainty, [2])


@pytest.mark.parametrize(
    ("kind", "rank", "reports", "certainty"),
    [
        (FaultKind.LAGGING, 13, 2, "certain"),  # two reports name the same rank, and no count has changed
        (FaultKind.LAGGING, 5, 2, "possible"),  # they name rank 13
        (FaultKind.LAGGING, 5, 1, "likely"),  # one report shows no more than that ranks differ
        (FaultKind.OTHER_COUNT, 5, 2, "likely"),  # the lines prove the difference, whichever rank is behind
    ],
)
def test_ras_reports_that_name_another_rank_make_a_verdict_doubtful(
    kind: FaultKind, rank: int, reports: int, certainty: str, tmp_path: Path
) -> None:
    generate(Plan(version="2.27.7", layers=1, steps=2, finish=Finish.KILLED, fault=Fault(kind, (rank,))), tmp_path)
    world = (tmp_path / "nccl_rank0.log").read_text().partition(" commId 0x")[2].partition(" ")[0]
    for number in range(reports):
        report = INCIDENTS / "ras-shows-a-rank-that-stands-still" / f"ras-{number + 1}.log"
        (tmp_path / report.name).write_text(report.read_text().replace("1f3bd2a4c1e07755", world))

    found = hang(tmp_path)

    assert (found["certainty"], found["culprits"]) == (certainty, [rank])
    assert ("rank 13" in found["reason"]) is (rank != 13)


def test_ras_reports_on_other_communicators_are_of_another_job(tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (5,))
    generate(Plan(version="2.27.7", layers=1, steps=2, finish=Finish.KILLED, fault=fault), tmp_path)
    without = hang(tmp_path)
    for number in (1, 2):
        shutil.copy(INCIDENTS / "ras-shows-a-rank-that-stands-still" / f"ras-{number}.log", tmp_path)

    found = hang(tmp_path)

    assert {name: found[name] for name in ("verdict", "certainty", "culprits", "reason")} == {
        name: without[name] for name in ("verdict", "certainty", "culprits", "reason")
    }


TABLE = (
    "NCCL version 2.27.7 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12090\n\n"
    "Communicators... (0.002s)\n=============\n\n"
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    "    #  in group  per comm  per node  per comm  in group\n"
    "    0         1         1  {ranks:8}  {ranks:8}  {ranks:8}   RUNNING  {status}\n\n"
)
KILLED = (
    "[Mon Mar  2 11:04:52 2026] Memory cgroup out of memory: Killed process 60513 (python3) total-vm:923456kB,"
    " anon-rss:812345kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:100kB oom_score_adj:0\n"
)


def write_reports(folder: Path, report: str) -> None:
    for number in (1, 2):
        (folder / f"ras-{number}.txt").write_text(report)


def test_ranks_that_wait_elsewhere_do_not_contradict_another_order(tmp_path: Path) -> None:
    """Ranks 0, 4 and 6 wait for rank 2 on another communicator: that they are behind on the world follows from it."""
    fault = Fault(FaultKind.SWAPPED_ORDER, (2,), communicator="dp")
    plan = Plan(gpus_per_node=4, tp=2, layers=1, steps=2, version="2.27.7", blocking=True, fault=fault)
    generate(plan, tmp_path)
    without = hang(tmp_path)
    logs = [(tmp_path / f"nccl_rank{rank}.log").read_text() for rank in range(8)]
    world = logs[0].partition(" commId 0x")[2].partition(" ")[0]
    places = [log.split(":", 2)[:2] for log in logs]
    behind = "".join(
        f"  Rank {rank} has launched up to operation 2 -- GPU {rank % 4} managed by process {places[rank][1]} on node"
        f" {places[rank][0]}\n"
        for rank in (0, 4, 6)
    )
    write_reports(
        tmp_path,
        f"{TABLE.format(ranks=8, status='MISMATCH')}Warnings\n========\n\n#0-0 ({world}) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n  5 ranks have launched up to operation 3\n"
        f"{behind}\n",
    )

    found = hang(tmp_path)

    assert (found["verdict"], found["culprits"]) == ("cross-communicator-deadlock", [2])
    assert (found["certainty"], "but RAS" in found["reason"]) == (without["certainty"], False)


@pytest.mark.parametrize(
    ("kernel", "certainty", "phrase"),
    [
        ("", "likely", "did not answer the RAS query"),
        (KILLED, "certain", "was killed because its container or job reached its memory limit (cgroup), as the kernel"),
        (KILLED.replace("60513", "60514"), "likely", "did not answer the RAS query"),  # not this process
    ],
)
def test_a_rank_without_a_dump_whose_process_is_gone_died(
    kernel: str, certainty: str, phrase: str, tmp_path: Path
) -> None:
    for dump in (INCIDENTS / "flight-recorders-show-a-rank-that-stopped").glob("comm_lib_trace_rank_[013]"):
        shutil.copy(dump, tmp_path)
    place = "GPU {gpu} managed by process 60513 on node gpu-a012"
    write_reports(
        tmp_path,
        f"{TABLE.format(ranks=4, status='INCOMPLETE')}Errors\n======\n\n#0-0 (1f3bd2a4c1e07755) INCOMPLETE\n"
        f"  Missing communicator data from 1 rank\n  Rank 2 -- {place.format(gpu=2)}\n\nWarnings\n========\n\n",
    )
    if kernel:
        (tmp_path / "dmesg.txt").write_text(kernel)

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("rank-died", certainty, [2])
    assert phrase in found["reason"]


def test_the_cause_of_a_call_that_all_ranks_are_in_begins_the_chain(tmp_path: Path) -> None:
    """No rank is a culprit there; what failed is the network, by the lines of two ranks on two hosts."""
    fault = Fault(FaultKind.NETWORK_LOST, (4,))
    generate(Plan(gpus_per_node=4, layers=1, steps=2, version="2.27.7", fault=fault), tmp_path)
    processes = [(tmp_path / f"nccl_rank{rank}.log").read_text().split(":", 2)[1] for rank in range(8)]
    (tmp_path / "stacks.txt").write_text("\n".join(stack_in_all_reduce(int(pid)) for pid in processes))

    report = analyze([str(tmp_path)])

    (row,) = report.verdicts
    first, *then = chain(report, row)
    assert (row.verdict, first.role, first.kind) == ("stuck-together", Role.CAUSE, "nccl-log")
    assert "got no answer over InfiniBand" in first.text
    assert any(link.kind == "stacks" and link.role is Role.CONSEQUENCE for link in then)


def stack_of(pid: int, *, is_outside: bool) -> str:
    text = stack_in_all_reduce(pid)
    own = "    get (queue.py:171)\n    read_next (dataset.py:212)\n    train_step (train.py:29)\n"
    return f"{text.partition('    all_reduce')[0]}{own}" if is_outside else text


def stack_in_all_reduce(pid: int) -> str:
    return (
        f'Process {pid}: python3 train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n'
        "    all_reduce (torch/distributed/distributed_c10d.py:2900)\n    train_step (train.py:88)\n"
    )


@pytest.mark.parametrize("incident", sample(HANGS, 12), ids=lambda incident: incident.name)
def test_files_that_say_nothing_of_the_job_change_no_answer(incident: Incident, tmp_path: Path) -> None:
    for name, text in BESIDE.items():
        (tmp_path / name).write_text(text)

    found = as_object(analyze([*(str(incident.folder / log) for log in incident.logs), str(tmp_path)]))

    jobs = found.get("jobs") or [found["hang"]]
    named = ("verdict", "certainty", "culprits")
    assert [[job[name] for name in named] for job in jobs] == [
        [job[name] for name in named] for job in answer(incident).jobs
    ]


@pytest.mark.parametrize("communicator", ["world", "tp", "pp"])
def test_an_empty_report_makes_no_lost_process_one_that_skips_a_call(communicator: str, tmp_path: Path) -> None:
    fault = Fault(FaultKind.KILLED, (5,), communicator)
    generate(Plan(gpus_per_node=4, tp=2, pp=2, layers=1, steps=3, version="2.27.7", fault=fault), tmp_path)
    (tmp_path / "ras.txt").write_text("NCCL version 2.27.7 compiled with CUDA 12.9\n")

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("rank-died", "likely", [5])


def test_a_rank_that_failed_before_the_time_out_stands_before_those_that_made_fewer_calls(tmp_path: Path) -> None:
    """Of ranks 1 and 2 the watchdogs count less than of ranks 0 and 4; rank 3 ended above all of them."""
    raised = (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/srv/job/data.py", line 495, in build\n[rank3]:     table = load(path)\n'
        "[rank3]: FileNotFoundError: [Errno 2] No such file or directory: '/srv/job/index.npy'\n"
    )
    status = (
        "[rank{0}]:[E1121 03:38:46.100000000 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
        "Received a dump signal due to a collective timeout from {1} rank and we will try our best to dump the debug "
        "info. Last enqueued NCCL work: {2}, last completed NCCL work: {3}.\n"
    )
    asked = "".join(status.format(rank, " rank 0", 16, 16) for rank in (1, 2))
    reports = "".join(TIMED_OUT.replace("ank0", f"ank{n}").replace("Rank 0", f"Rank {n}") for n in (0, 4))
    reports += "".join(STATUS.format(rank=rank, work=17) for rank in (0, 4))
    verdicts = []
    for text in (reports + asked, raised + reports + asked, reports + asked + raised):
        (tmp_path / "job.log").write_text(text.replace("from  rank 0 rank", "from  rank 0"))
        answer = hang(tmp_path)
        verdicts.append((answer["verdict"], answer["culprits"]))

    assert verdicts == [("lagging-ranks", [1, 2]), ("rank-died", [3]), ("lagging-ranks", [1, 2])]
