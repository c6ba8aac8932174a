"""Collect the evidence of a job that is stuck on this host into a folder that every command accepts.

Nothing is changed on the host: no process is ended, no counter cleared. Every program has a time limit, and so has the
whole; what could not be had is listed with the reason.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import which
from time import monotonic, sleep, strftime
from typing import TypeVar

from ncclforensics.archive.atomic_write import write_file
from ncclforensics.capture.collect_processes import RankProcess, find_ranks, read_process
from ncclforensics.capture.external_programs import run_program
from ncclforensics.capture.stacks import AT_ONCE, stack_command, stack_heading
from ncclforensics.errors import UsageError

Result = TypeVar("Result")
PROGRAM_LIMIT = 20.0  # seconds for one program
BETWEEN_LOOKS = 10.0  # seconds between two looks at the same state, to see whether it moves
END_BYTES, BEGIN_BYTES = 4 << 20, 64 << 10  # of a log
MOST_DUMP_BYTES = 64 << 20  # of a Flight Recorder dump
LAST_KERNEL_LINES = 5000
COUNTERS = Path("/sys/class/infiniband")
# Prefixes of Flight Recorder dumps, to which PyTorch adds the rank: 2.9 and later, 2.7 and 2.8, 2.2 to 2.6.
RECORDER_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
RECORDER_PREFIXES = (".cache/torch/comm_lib_trace_rank_", ".cache/torch/nccl_trace_rank_", "/tmp/nccl_trace_rank_")
WITHOUT_PY_SPY = (
    "py-spy is not installed: pip install py-spy here, or in programs that called faulthandler.register(SIGUSR1): "
    "kill -USR1 of each rank, which prints its stack to stderr"
)
HOST_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nvidia-smi.txt", ("nvidia-smi",)),
    ("nvidia-smi-q.txt", ("nvidia-smi", "-q")),
    ("topology.txt", ("nvidia-smi", "topo", "-m")),
    ("nvlink.txt", ("nvidia-smi", "nvlink", "-s")),
    ("ibstat.txt", ("ibstat",)),
    ("rdma-link.txt", ("rdma", "link")),
    ("rdma-statistic.txt", ("rdma", "statistic")),
    ("processes.txt", ("ps", "-eo", "pid,stat,wchan:32,comm")),
)
# Tools of machines that are not of the usual kind: run where they are installed.
OTHER_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("dcgm-health.txt", ("dcgmi", "health", "-c")),
    ("amd-smi.txt", ("amd-smi", "metric", "--ecc", "--xgmi-err", "--throttle")),
    ("rocm-smi.txt", ("rocm-smi", "--showuse", "--showpower", "--showmaxpower", "--showrasinfo", "all")),
    ("opainfo.txt", ("opainfo",)),
    ("opainfo-stats.txt", ("opainfo", "-o", "stats")),
)


@dataclass(slots=True)
class Collection:
    """A folder that is being filled, until a moment that is not passed."""

    folder: Path
    deadline: float  # of `monotonic`
    collected: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # what -> why

    @property
    def remaining(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.deadline - monotonic())

    def write(self, name: str, data: bytes) -> None:
        """Write one file of the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
        self.collected.append(name)

    def run(self, name: str, command: Sequence[str], heading: str = "") -> None:
        """Write the output of a program below a heading, or note why there is none."""
        if self.remaining < 1:
            self.missing[name] = "no time was left"
            return
        output, problem = run_program(command, min(PROGRAM_LIMIT, self.remaining))
        if problem:
            reason = output.decode("utf-8", "replace").strip().splitlines()[:1]  # py-spy prints a backtrace after it
            self.missing[name] = ": ".join([problem, *reason])
        else:
            self.write(name, heading.encode() + output)

    def within(self, limit: float, work: Callable[[], Result], otherwise: Result) -> tuple[Result, bool]:
        """Call `work` in a thread that is left behind where it blocks; return its result and whether it ended."""
        results: list[Result] = []
        thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
        thread.start()
        thread.join(min(limit, self.remaining))
        return (results[0], True) if results else (otherwise, False)


def collect(folder: Path, pids: Sequence[int], limit: float) -> Collection:
    """Fill the folder within `limit` seconds. Raises UsageError if it has files in it, or a process does not exist."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is not an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    collection = Collection(folder, monotonic() + limit)
    ranks = _ranks(collection, pids)
    started = monotonic()
    _stacks(collection, ranks, 1)
    collection.run("ras/ncclras.1.txt", ("ncclras", "-v"))
    _host(collection)
    for rank in ranks:
        _, has_ended = collection.within(PROGRAM_LIMIT, partial(_files, collection, rank), None)
        if not has_ended:
            collection.missing[f"logs of {rank.name}"] = "reading them did not end in time"
    sleep(min(max(0.0, BETWEEN_LOOKS - (monotonic() - started)), collection.remaining))
    if ranks and "stacks" not in collection.missing:
        _stacks(collection, ranks, 2)
    if "ras/ncclras.1.txt" not in collection.missing:
        collection.run("ras/ncclras.2.txt", ("ncclras", "-v"))
    _describe(collection, ranks, monotonic() - (collection.deadline - limit))
    return collection


def _ranks(collection: Collection, pids: Sequence[int]) -> list[RankProcess]:
    if not pids:
        none: list[RankProcess] = []
        ranks, has_ended = collection.within(PROGRAM_LIMIT, find_ranks, none)
        if not has_ended:
            collection.missing["ranks"] = "reading /proc did not end in time; give the pids"
        elif not ranks:
            collection.missing["ranks"] = "no process of yours on this host has a rank; give the pids"
        return ranks
    found = [(pid, collection.within(PROGRAM_LIMIT, partial(read_process, pid), None)[0]) for pid in pids]
    if absent := [pid for pid, process in found if process is None]:
        raise UsageError(f"process {absent[0]}: does not exist, or belongs to another user")
    return [process for _, process in found if process is not None]


def _stacks(collection: Collection, ranks: Sequence[RankProcess], look: int) -> None:
    """Take the stack of each rank with py-spy, and what it waits for in the kernel."""
    if not ranks:
        return
    if "not found" in run_program(("py-spy", "--version"), PROGRAM_LIMIT)[1]:
        collection.missing["stacks"] = WITHOUT_PY_SPY
        return
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for rank in ranks:
            host = os.uname().nodename
            heading = f"===== {host} =====\n" if rank.rank is None else stack_heading(rank.rank, host, rank.pid)
            name = f"stacks-{look}/pyspy.{rank.name}.txt"
            threads.submit(collection.run, name, stack_command(rank.pid), heading)


def _host(collection: Collection) -> None:
    """Collect what the kernel, the GPUs and the network devices of the host show."""
    kernel, problem = run_program(("dmesg", "-T"), min(PROGRAM_LIMIT, max(1.0, collection.remaining)))
    if problem:
        collection.missing["host/dmesg.txt"] = f"{problem}; run dmesg -T as root"
    else:
        collection.write("host/dmesg.txt", b"\n".join(kernel.splitlines()[-LAST_KERNEL_LINES:]) + b"\n")
    installed = [(name, command) for name, command in OTHER_COMMANDS if which(command[0])]
    for name, command in (*HOST_COMMANDS, *installed):
        collection.run(f"host/{name}", command)
    counters, _ = collection.within(PROGRAM_LIMIT, _counters, b"")
    if counters:
        collection.write("host/counters.txt", counters)
    else:
        collection.missing["host/counters.txt"] = f"no counters below {COUNTERS}"


def _counters() -> bytes:
    """Return the counters of RDMA ports as `grep -r .` prints them."""
    lines = []
    for path in sorted([*COUNTERS.glob("*/ports/*/*counters/*"), *COUNTERS.glob("*/hw_counters/*")]):
        try:
            lines.append(f"{path}:{path.read_text(errors='replace').strip()}\n")
        except OSError:
            continue
    return "".join(lines).encode()


def _files(collection: Collection, rank: RankProcess) -> None:
    """Copy the ends of a rank's logs, and its Flight Recorder dump."""
    for path in rank.outputs:
        try:
            collection.write(f"logs/{rank.name}.{path.name}", _ends_of(path))
        except OSError as error:
            collection.missing[str(path)] = str(error.strerror)
    for path in _recorder_files(rank):
        try:
            if path.stat().st_size <= MOST_DUMP_BYTES:
                collection.write(f"fr/{path.name}", path.read_bytes())
                return
        except OSError:
            continue
    places = ", ".join(str(path) for path in _recorder_files(rank)[:2])
    collection.missing[f"Flight Recorder dump of {rank.name}"] = f"not there: {places}"


def _recorder_files(rank: RankProcess) -> list[Path]:
    prefixes = [rank.variables[name] for name in RECORDER_VARIABLES if name in rank.variables]
    prefixes += [str(rank.home / prefix) for prefix in RECORDER_PREFIXES]
    return [] if rank.rank is None else [Path(f"{prefix}{rank.rank}") for prefix in prefixes]


def _ends_of(path: Path) -> bytes:
    """Return a log, of a long one the beginning and the end."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= BEGIN_BYTES + END_BYTES:
            return stream.read()
        begin = stream.read(BEGIN_BYTES)
        stream.seek(size - END_BYTES)
        end = stream.read(END_BYTES)
    return begin[: begin.rfind(b"\n") + 1] + end[end.find(b"\n") + 1 :]


def _describe(collection: Collection, ranks: Sequence[RankProcess], seconds: float) -> None:
    """Write what was collected when and where, and what could not be had."""
    described = [
        {"pid": rank.pid, "rank": rank.rank, "command": rank.command, "variables": dict(rank.variables)}
        for rank in ranks
    ]
    record = {
        "tool": "ncclforensics collect",
        "began": strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": os.uname().nodename,
        "seconds": round(seconds, 1),
        "ranks": described,
        "collected": sorted(collection.collected),
        "missing": collection.missing,
        "complete": True,
    }
    write_file(collection.folder / "collect.json", f"{json.dumps(record, indent=1)}\n".encode())
