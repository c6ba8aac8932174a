"""True evidence of other kinds on a generated run: stacks, watchdogs, RAS, a launcher, the log of the kernel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ncclforensics.simulate.generate import FaultKind, Truth

TORCH_NAMES = {"AllReduce": "ALLREDUCE", "AllGather": "_ALLGATHER_BASE", "ReduceScatter": "_REDUCE_SCATTER_BASE"}
WORLD = "world"
Files = dict[str, str]


class Process(NamedTuple):
    host: str
    pid: int
    gpu: int


class Seen(NamedTuple):
    """A run: its truth, and the process of every rank that has a log."""

    truth: Truth
    processes: dict[int, Process]

    @property
    def dead(self) -> set[int]:
        return set(self.truth.at_fault) if self.truth.fault == FaultKind.KILLED else set()


def see(truth: Truth, folder: Path) -> Seen:
    """Find the process of every rank by the first line of its log."""
    processes = {}
    for log in folder.glob("nccl_rank*.log"):
        prefix, is_printed, _ = log.read_text().partition("] NCCL ")
        if is_printed:
            host, pid, _ = prefix.split(":")
            processes[int(log.stem.removeprefix("nccl_rank"))] = Process(host, int(pid), int(prefix[-1]))
    return Seen(truth, processes)


def stacks(seen: Seen) -> Files:
    """py-spy on every host: who stopped reads its data, and who waits waits for its GPU."""
    by_host: dict[str, list[str]] = defaultdict(list)
    for rank, process in sorted(seen.processes.items()):
        is_stopped = seen.truth.states[rank] == "stopped"
        frames = ["read (fsspec/spec.py:1846)", "load (data.py:31)"] if is_stopped else []
        frames += ["train (train.py:80)" if is_stopped else "synchronize (torch/cuda/__init__.py:1040)"]
        lines = [
            f"Process {process.pid}: /usr/bin/python3 -u train.py",
            "Python v3.11.9 (/usr/bin/python3.11)",
            "",
            f'Thread {process.pid} (active): "MainThread"',
            *(f"    {frame}" for frame in (*frames, "main (train.py:120)", "<module> (train.py:130)")),
            "",
        ]
        if rank not in seen.dead:
            by_host[process.host] += lines
    return {f"stacks-{host}.txt": "\n".join(lines) + "\n" for host, lines in by_host.items()}


def watchdogs(seen: Seen) -> Files:
    """PyTorch's watchdogs time out in the call of the world communicator that a rank lacks."""
    truth = seen.truth
    if truth.fault != FaultKind.LAGGING or truth.communicator != WORLD or truth.operation is None:
        return {}
    work, name = truth.operation.ordinal + 1, TORCH_NAMES.get(truth.operation.name, truth.operation.name.upper())
    lines = []
    for rank, calls in truth.calls.items():
        made, done = calls.get(WORLD, 0), work - 1
        if truth.states[rank] != "stopped":
            lines.append(
                f"[rank{rank}]:[E302 11:24:5{rank}.948355712 ProcessGroupNCCL.cpp:633] [Rank {rank}] Watchdog caught "
                f"collective operation timeout: WorkNCCL(SeqNum={work}, OpType={name}, NumelIn=1, NumelOut=1, "
                "Timeout(ms)=600000) ran for 600030 milliseconds before timing out.\n"
            )
        lines.append(
            f"[rank{rank}]:[E302 11:24:5{rank}.948455712 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) "
            f"Rank {rank}]  failure detected by watchdog at work sequence id: {min(made, work)} PG status: last "
            f"enqueued work: {made}, last completed work: {done}\n"
        )
    return {"stderr.txt": "".join(lines)}


def ras_report(seen: Seen) -> Files:
    """What ncclras prints: processes that are dead, and different counts; it counts no Send and Recv."""
    truth, processes, dead = seen.truth, seen.processes, seen.dead
    if truth.fault not in (FaultKind.KILLED, FaultKind.LAGGING) or len(processes) < truth.world_size:
        return {}
    addresses = {host: f"10.0.4.{12 + number}" for number, host in enumerate(sorted({*truth.hosts.values()}))}
    per_host, ranks = truth.world_size // len(addresses), truth.world_size
    places = {
        rank: f"GPU {process.gpu} managed by process {process.pid} on node {addresses[process.host]}"
        for rank, process in processes.items()
    }
    counts = Counter(calls.get(WORLD, 0) for calls in truth.calls.values())
    differs = not dead and truth.communicator == WORLD
    on_node = f"{per_host - 1}-{per_host}" if dead else str(per_host)
    errors = "INCOMPLETE" if dead else "MISMATCH" if differs else "OK"
    community = truth.communicator_ids[WORLD]
    lines = [
        f"NCCL version {truth.version} compiled with CUDA 12.9",
        "Communicators... (0.00s)",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
        f"    0         1 {len(addresses):9} {on_node:>9} {ranks:9} {ranks - len(dead):9}   RUNNING  {errors}",
    ]
    if dead:
        is_one = len(dead) == 1
        subject = "1 job process is" if is_one else f"{len(dead)} job processes are"
        lines += [
            f"  {subject} considered dead (unreachable via the RAS network)",
            *(
                f"  Process {processes[rank].pid} on node {addresses[processes[rank].host]} managing GPU "
                f"{processes[rank].gpu}"
                for rank in dead
            ),
            f"#0-0 ({community}) INCOMPLETE",
            f"  Missing communicator data from {len(dead)} rank{'' if is_one else 's'}",
            *(f"  Rank {rank} -- {places[rank]}" for rank in dead),
        ]
    elif differs:
        most, others = counts.most_common(1)[0]
        lines += [
            f"#0-0 ({community}) MISMATCH",
            f"  Communicator ranks have different {truth.operation.name if truth.operation else ''} operation counts",
            f"  {others} ranks have launched up to operation {most}",
            *(
                f"  Rank {rank} has launched up to operation {calls.get(WORLD, 0)} -- {places[rank]}"
                for rank, calls in truth.calls.items()
                if calls.get(WORLD, 0) != most
            ),
        ]
    return {"ras.txt": "\n".join(lines) + "\n"}


def kernel_log(seen: Seen) -> Files:
    """The kernel killed the processes that died, of which every host tells its own."""
    return {
        f"dmesg-{seen.processes[rank].host}.txt": (
            f"Mar  2 11:04:56 {seen.processes[rank].host} kernel: Out of memory: Killed process "
            f"{seen.processes[rank].pid} (python3) total-vm:91234kB, anon-rss:81234kB, file-rss:0kB, shmem-rss:0kB, "
            "UID:1000 pgtables:900kB oom_score_adj:0\n"
        )
        for rank in seen.dead & seen.processes.keys()
    }


SOURCES: tuple[Callable[[Seen], Files], ...] = (stacks, watchdogs, ras_report, kernel_log)
