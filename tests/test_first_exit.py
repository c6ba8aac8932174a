"""Which process ended first: clocks of hosts that differ, and process ids that stand for several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Plan, generate
from ncclforensics.views.json_report import as_object

TABLE = """\
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-03-02_{time}
  host      : {host}
  rank      : {rank} (local_rank: {local_rank})
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
KILLED = (
    "Memory cgroup out of memory: Killed process {pid} (python3) total-vm:923456kB, anon-rss:812345kB, file-rss:0kB,"
    " shmem-rss:0kB, UID:1000 pgtables:100kB oom_score_adj:0\n"
)
FAULT = Fault(FaultKind.LAGGING, (1,))


def logs(folder: Path, nodes: int = 2, **options: Any) -> list[tuple[str, int]]:
    """Write the logs of a job and return host and pid of each rank."""
    options = {"version": "2.27.7", "finish": Finish.KILLED, **options}
    generate(Plan(nodes=nodes, gpus_per_node=2, tp=1, layers=1, steps=2, **options), folder)
    heads = [(folder / f"nccl_rank{rank}.log").read_text().split(":", 2) for rank in range(2 * nodes)]
    return [(head[0].rpartition(" ")[2].rpartition("]")[2], int(head[1])) for head in heads]


def hang(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = as_object(analyze([str(folder)]))["hang"]
    return answer


@pytest.mark.parametrize(
    ("fault", "times", "expected"),
    [
        (FAULT, ("11:04:57", "11:05:02"), ("rank-died", [1])),  # the others wait for rank 1, whatever the clocks say
        (FAULT, ("11:04:57", "11:04:47"), ("rank-died", [1])),
        (None, ("11:04:57", "11:05:02"), ("undecidable", [])),
        (None, ("11:04:57", "11:04:57"), ("undecidable", [])),
        (None, ("11:04:57", "11:30:02"), ("rank-died", [1])),  # no clock is off by so much
        (None, ("11:30:02", "11:04:57"), ("rank-died", [2])),
    ],
)
def test_clocks_of_two_hosts_do_not_show_which_process_ended_first(
    fault: Fault | None, times: tuple[str, str], expected: tuple[str, list[int]], tmp_path: Path
) -> None:
    processes = logs(tmp_path, fault=fault)
    for rank, time in zip((1, 2), times, strict=True):
        host, pid = processes[rank]
        table = TABLE.format(time=time, host=host, rank=rank, local_rank=rank % 2, pid=pid)
        (tmp_path / f"agent{rank}.txt").write_text(table)

    found = hang(tmp_path)

    assert (found["verdict"], found["culprits"]) == expected
    if not expected[1]:
        assert "clocks of different hosts" in found["reason"]


@pytest.mark.parametrize(
    ("nodes", "stamp", "expected"),
    [
        (1, "[Mon Mar  2 11:04:58 2026] ", ("rank-died", "certain", [1])),
        (1, "[ 1234.567890] ", ("rank-died", "likely", [1])),  # of any day since the host was started
        (2, "[Mon Mar  2 11:04:58 2026] ", ("rank-died", "likely", [1])),  # of any host
        (2, "Mar  2 11:04:58 {host} kernel: ", ("rank-died", "certain", [1])),
        (2, "Mar  2 11:04:58 other kernel: ", ("no-hang", "possible", [])),
        (1, "[Fri Feb 27 11:04:58 2026] ", ("no-hang", "possible", [])),
    ],
)
def test_a_process_id_is_certain_only_with_its_host_and_day(
    nodes: int, stamp: str, expected: tuple[str, str, list[int]], tmp_path: Path
) -> None:
    processes = logs(tmp_path, nodes=nodes)
    for log in tmp_path.glob("nccl_rank*.log"):
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(f"[2026-03-02 11:04:57] {line}" for line in lines))
    host, pid = processes[1]
    (tmp_path / "dmesg.txt").write_text(stamp.format(host=host) + KILLED.format(pid=pid))

    found = hang(tmp_path)

    assert (found["verdict"], found["certainty"], found["culprits"]) == expected


@pytest.mark.parametrize(("address", "expected"), [("10.0.0.8", "rank-died"), ("10.0.0.9", "no-hang")])
def test_hosts_that_are_known_by_their_addresses_are_told_apart(address: str, expected: str, tmp_path: Path) -> None:
    processes = logs(tmp_path)
    hosts = {processes[0][0]: "10.0.0.7", processes[2][0]: "10.0.0.8"}
    for log in tmp_path.glob("nccl_rank*.log"):
        lines = log.read_text()
        for host, own in hosts.items():
            lines = lines.replace(host, own)
        log.write_text("".join(f"[2026-03-02 11:04:57] {line}" for line in lines.splitlines(keepends=True)))
    (tmp_path / "dmesg.txt").write_text(f"Mar  2 11:04:58 {address} kernel: " + KILLED.format(pid=processes[2][1]))

    assert hang(tmp_path)["verdict"] == expected


def killed_rank(folder: Path) -> None:
    """Write the logs of a job whose rank 9 was killed; of its host, no other rank has a connection to lose."""
    fault = Fault(FaultKind.KILLED, (9,), "tp")
    generate(Plan(nodes=4, gpus_per_node=4, tp=4, version="2.30.7", steps=2, seed=352322, finish=Finish.KILLED,
                  fault=fault), folder)  # fmt: skip


def test_a_log_cut_in_the_middle_does_not_hide_the_rank_that_died(tmp_path: Path) -> None:
    killed_rank(tmp_path)
    cut = tmp_path / "nccl_rank1.log"
    cut.write_bytes(cut.read_bytes()[:15_431])

    answer = hang(tmp_path)

    assert not cut.read_bytes().endswith(b"\n")
    assert (answer["verdict"], answer["culprits"]) == ("rank-died", [9])


def test_lost_connections_to_one_port_accuse_no_whole_host(tmp_path: Path) -> None:
    killed_rank(tmp_path)
    for path in tmp_path.glob("*.log"):
        path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(True) if b"opCount" not in line))

    answer = hang(tmp_path)

    assert (answer["verdict"], answer["culprits"]) == ("undecidable", [])


ABORTED = (
    "E1019 08:21:39.599000 3036 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6)"
    " local_rank: 0 (pid: 3042) of binary: /usr/bin/python\n"
)


@pytest.mark.parametrize(("crashes", "local_ranks"), [(1, [0, 0]), (2, [None, None, 0])])
def test_a_crash_without_a_name_is_that_of_the_process_that_the_launcher_names(
    crashes: int, local_ranks: list[int | None], tmp_path: Path
) -> None:
    """Not where several processes crashed, of which the launcher names the first."""
    (tmp_path / "job.log").write_text("double free or corruption (!prev)\n" * crashes + ABORTED)

    exits = analyze(tmp_path / "job.log").run["process_exit"]

    assert exits["local_rank"].to_list() == local_ranks
