"""What will run: ranks, variables, sizes, limits, and where everything goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ncclforensics.capture import fault_injection
from ncclforensics.capture.fault_injection import Drill
from ncclforensics.capture.inventory import Gpu
from ncclforensics.capture.journal import host
from ncclforensics.capture.launcher_rank import LOOPBACK, Place
from ncclforensics.errors import UsageError

SUBSYSTEMS = "INIT,ENV,NET,GRAPH,COLL,TUNING"
ALGORITHMS = (
    "Ring",
    "Tree",
    "NVLS",
    "NVLSTree",
    "CollnetDirect",
    "CollnetChain",
)  # of all_reduce, as NCCL_ALGO has them
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv")
SMALLEST, FACTOR = 8, 4  # bytes, and from one size to the next
REHEARSED = 1 << 20  # bytes: over sockets larger messages only take longer
COPIES = 6  # buffers of the largest size at once: in, out, and what a result is compared with
WARMUP, ITERATIONS = 3, 10
SHARE = 0.6  # of the time limit, for the sweep: the rest is for start, steps, and the way out
GRACE = 5.0  # seconds between a call that failed and the end of those that did not notice
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TRACED = "2000"  # calls that the Flight Recorder remembers


@dataclass(frozen=True, slots=True)
class Plan:
    """One capture."""

    folder: Path
    backend: str  # nccl or gloo
    nranks: int
    gpus: Sequence[Gpu]  # none for gloo
    ranks_per_gpu: int
    steps: int
    drills: Sequence[Drill]
    collectives: Sequence[str]
    sizes: Sequence[int]
    memory_bytes: int  # of a GPU, for the buffers of each rank
    stall_s: float
    limit_s: float
    subsystems: str
    program: str | None  # of nccl-tests, in place of our own ranks
    place: Place | None  # in a job that a launcher started; None: every rank is started here
    algorithm: str | None = None  # the only one that NCCL may use

    def only(self, algorithm: str) -> Plan:
        """The same with all_reduce alone and one algorithm, in a folder below."""
        folder = self.folder / algorithm.lower()
        return replace(self, folder=folder, algorithm=algorithm, collectives=("all_reduce",), drills=(), steps=1)

    @property
    def run(self) -> str:
        """A name of the communicator that all ranks come to alike."""
        job = self.place.job if self.place else ""
        return "0x" + hashlib.sha256(f"{job} {self.folder.absolute()}".encode()).hexdigest()[:16]

    @property
    def sweep(self) -> list[tuple[str, int]]:
        """What is measured, in order: small sizes of everything first, for time may run out."""
        if any(drill.is_in_steps for drill in self.drills):
            return []
        return [(name, size) for size in self.sizes for name in self.collectives]

    @property
    def started_here(self) -> list[tuple[int, int]]:
        """Rank and rank on this host of all that this process starts."""
        if self.place is not None:
            numbers = [(self.place.rank, self.place.local)]
        else:
            numbers = [(rank, rank) for rank in range(self.nranks)]
        absent = {drill.rank for drill in self.drills if drill.kind is fault_injection.Kind.ABSENT}
        return [(rank, local) for rank, local in numbers if rank not in absent]

    @property
    def leads(self) -> bool:
        """Whether this process puts the results together: the one of rank 0."""
        return self.place is None or self.place.rank == 0

    @property
    def is_rehearsal(self) -> bool:
        """Whether the figures say nothing about the machine's links."""
        return self.backend == "gloo" or self.ranks_per_gpu > 1

    def gpu_of(self, local: int) -> Gpu | None:
        """The GPU of a rank, by its number on this host."""
        return self.gpus[local // self.ranks_per_gpu % len(self.gpus)] if self.gpus else None

    def record(self) -> dict[str, Any]:
        """As it is written down; the ranks read it."""
        most = max((self.nranks, *(local + 1 for _, local in self.started_here)))
        return {
            "run": self.run, "backend": self.backend, "nranks": self.nranks, "rehearsal": self.is_rehearsal,
            "gpus": [gpu.ordinal for local in range(most) if (gpu := self.gpu_of(local)) is not None],
            "ranks_per_gpu": self.ranks_per_gpu, "steps": self.steps, "drills": [one.record() for one in self.drills],
            "sweep": self.sweep, "sweep_s": self.limit_s * SHARE, "warmup": WARMUP, "iterations": ITERATIONS,
            "memory_bytes": self.memory_bytes, "stall_s": self.stall_s, "limit_s": self.limit_s,
            "program": self.program, "launcher": self.place.launcher if self.place else None,
        }  # fmt: skip

    def variables(self, rank: int) -> dict[str, str]:
        """What the environment of a rank says beyond this process's own."""
        own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": str(self.folder)}
        if self.place is None:
            own |= {"MASTER_ADDR": LOOPBACK}
        else:
            own |= {"MASTER_ADDR": self.place.address, "MASTER_PORT": str(self.place.port)}
        if self.backend == "gloo":
            return own | ({"GLOO_SOCKET_IFNAME": "lo"} if own["MASTER_ADDR"] == LOOPBACK else {})
        return own | self._of_nccl(rank) | fault_injection.environment(self.drills)

    def _of_nccl(self, rank: int) -> dict[str, str]:
        told = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA's numbers are nvidia-smi's
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": self.subsystems,
            "NCCL_DEBUG_FILE": str(self.folder / "nccl.%h.%p.log"),
            "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",  # from 2.26 on
            "NCCL_DEBUG_TIMESTAMP_FORMAT": "[%F %T.%6f] ",
            # NCCL's communicator is made at the first call, where nobody times it: who never came is missed before.
            "TORCH_DIST_INIT_BARRIER": "1",
            "TORCH_FR_BUFFER_SIZE": TRACED,
            "TORCH_NCCL_TRACE_BUFFER_SIZE": TRACED,  # up to 2.7
            "TORCH_FR_DUMP_TEMP_FILE": str(self.folder / "flight.rank"),
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self.folder / "flight.rank"),  # up to 2.7
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # the watchdog ends a process whose call does not come back
        }
        if rank == 0:
            told["NCCL_TOPO_DUMP_FILE"] = str(self.folder / "topology.xml")
            told["NCCL_GRAPH_DUMP_FILE"] = str(self.folder / "graph.xml")
        if self.place is None:
            told["NCCL_SOCKET_IFNAME"] = "lo"
        if self.algorithm:
            told["NCCL_ALGO"] = self.algorithm
        if self.ranks_per_gpu > 1:
            # Two ranks of one host may not share a GPU; of two hosts they may. Hosts of one rank have only sockets.
            told |= {"NCCL_HOSTID": f"{host()}-{rank}", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
            told |= {"NCCL_MNNVL_ENABLE": "0"}
        return told

    def command(self) -> list[str]:
        """nccl-tests, over all GPUs of this process."""
        sizes = ["-b", str(min(self.sizes)), "-e", str(max(self.sizes)), "-f", str(FACTOR)]
        count = 1 if self.place else len(self.gpus)
        return [str(self.program), *sizes, "-g", str(count), "-n", str(ITERATIONS), "-w", str(WARMUP)]

    def described(self) -> Iterator[str]:
        """What will run, for a person."""
        where = "on CPUs, without NCCL" if self.backend == "gloo" else "with NCCL"
        yield f"{self.nranks} ranks {where}" + (
            f"; this process is rank {self.place.rank} of {self.place.launcher}" if self.place else " on this host"
        )
        if self.is_rehearsal:
            yield "A rehearsal: traffic goes over sockets, and the figures say nothing about the machine's links."
        for local in range(len(self.gpus) * self.ranks_per_gpu if self.place is None else 0):
            if local < self.nranks and (gpu := self.gpu_of(local)) is not None:
                yield f"  rank {local}: GPU {gpu.ordinal}, {gpu.name}, {gpu.mib} MiB, driver {gpu.driver}"
        if self.program:
            yield f"Program: {' '.join(self.command())}"
        else:
            yield f"Steps: {self.steps} AllReduce of 1 MiB"
            yield self._measured()
        if self.drills:
            yield f"Drills: {', '.join(each.text for each in self.drills)}"
        yield f"Ends after {self.limit_s:.0f} s at the latest; a call counts as hung after {self.stall_s:.0f} s"
        if self.gpus:
            yield f"Buffers: no more than {_human(self.memory_bytes)} of a GPU for each rank; NCCL's own come on top"
        yield f"Folder: {self.folder}"
        for name, value in sorted(self.variables(0).items()):
            yield f"  {name}={value}"

    def _measured(self) -> str:
        if not self.sweep:
            return "Measured: nothing, for a drill disturbs the steps"
        names = ", ".join(self.collectives)
        return f"Measured: {names}; {_human(min(self.sizes))} to {_human(max(self.sizes))}, {ITERATIONS} times each"


def size(text: str) -> int:
    """Bytes as people write them. Raises UsageError.

    >>> size("8"), size("64M"), size("2g")
    (8, 67108864, 2147483648)
    """
    number, unit = text.upper().removesuffix("B"), 1
    if number[-1:] in UNITS:
        number, unit = number[:-1], UNITS[number[-1]]
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise UsageError(f"{text}: no size; write 8, 64K, 16M or 1G")
    return int(number) * unit


def sizes(smallest: int, largest: int) -> list[int]:
    """From one to the other, each FACTOR times the one before."""
    found = [smallest]
    while found[-1] * FACTOR <= largest:
        found.append(found[-1] * FACTOR)
    return found


def _human(number: int) -> str:
    for unit, one in reversed(UNITS.items()):
        if number >= one and number % one == 0:
            return f"{number // one} {unit}iB"
    return f"{number} B"
