"""The plan of a capture: ranks, variables, sizes, limits and the output folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from ncclforensics.capture import fault_injection
from ncclforensics.capture.fault_injection import InjectedFault
from ncclforensics.capture.inventory import Gpu, interface_to, networks
from ncclforensics.capture.journal import host
from ncclforensics.capture.launcher_rank import LOOPBACK, LOOPBACKS, LauncherRank
from ncclforensics.errors import UsageError

SUBSYSTEMS = "INIT,ENV,NET,GRAPH,COLL,TUNING"
ALGORITHMS = (
    "Ring",
    "Tree",
    "NVLS",
    "NVLSTree",
    "CollnetDirect",
    "CollnetChain",
)  # values of NCCL_ALGO for all_reduce
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv")
SMALLEST, FACTOR = 8, 4  # first size in bytes, and the ratio of sizes
REHEARSAL_MAX_BYTES = 1 << 20  # over sockets, larger messages only take longer
BUFFERS_PER_RANK = 6  # of the largest size: input, output and the expected result
WARMUP, ITERATIONS = 3, 10
SWEEP_SHARE, PAIRS_SHARE = 0.5, 0.2  # of the time limit; the rest is for start, steps, split messages and shutdown
MOST_PAIR_BYTES = 256 << 20  # between two ranks; larger messages only take longer
SPLITS, REHEARSAL_SPLITS = (1, 250, 1000), (1, 16, 64)  # calls that transfer the same bytes
SPLIT_BYTES = 4_000_000_000  # 1 x 4 GB, 250 x 16 MB, 1000 x 4 MB
FEWEST_SPLIT_BYTES = 32_000  # every number of calls divides it into whole elements
SPLIT_MEMORY = 15 / 16  # of --memory, which the largest call may take
GRACE_PERIOD = 5.0  # seconds that other ranks get after a call has failed on one
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The last ones: the first calls on a communicator take longer. Twenty are judged; those at
# the ends of a trace are cut, and some may be far longer.
PROFILED_STEPS = 26
TRACE_CALLS = "2000"  # capacity of the Flight Recorder, in calls
DUMP_MS = "1000"  # 15,000 by default, which keeps a hung process for a minute
RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
OLD_RECORDER = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
FR_NAMES = (2, 8)


def torch_release() -> tuple[int, ...]:
    """Return major and minor release of the installed PyTorch, without importing it; nothing if there is none."""
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2] if part.isdigit())
    except PackageNotFoundError:
        return ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines one capture."""

    folder: Path
    backend: str  # nccl or gloo
    nranks: int
    gpus: Sequence[Gpu]  # empty for gloo
    ranks_per_gpu: int
    steps: int
    profiled: int  # the last of the steps, which PyTorch's profiler records
    faults: Sequence[InjectedFault]
    collectives: Sequence[str]
    sizes: Sequence[int]
    memory_bytes: int  # GPU memory for the buffers of each rank
    stall_s: float
    limit_s: float
    subsystems: str
    program: str | None  # an nccl-tests program to run instead of PyTorch
    launcher_rank: LauncherRank | None  # None: this process starts all ranks
    algorithm: str | None = None  # the only algorithm that NCCL may use

    def with_algorithm(self, algorithm: str) -> Plan:
        """Return a plan that measures only all_reduce with one algorithm, in a subfolder."""
        folder = self.folder / algorithm.lower()
        return replace(
            self, folder=folder, algorithm=algorithm, collectives=("all_reduce",), faults=(), steps=1, profiled=0
        )

    @property
    def communicator_id(self) -> str:
        """Return an id of the communicator that is equal on all ranks."""
        job = self.launcher_rank.job if self.launcher_rank else ""
        return "0x" + hashlib.sha256(f"{job} {self.folder.absolute()}".encode()).hexdigest()[:16]

    @property
    def sweep(self) -> list[tuple[str, int]]:
        """Return (collective, size) in the order of measurement: small sizes first, because time may run out."""
        if any(fault.is_in_steps for fault in self.faults):
            return []
        return [(name, size) for size in self.sizes for name in self.collectives]

    @property
    def local_ranks(self) -> list[tuple[int, int]]:
        """Return (rank, local rank) of the ranks that this process starts."""
        if self.launcher_rank is not None:
            numbers = [(self.launcher_rank.rank, self.launcher_rank.local)]
        else:
            numbers = [(rank, rank) for rank in range(self.nranks)]
        absent = {fault.rank for fault in self.faults if fault.kind is fault_injection.FaultKind.ABSENT}
        return [(rank, local) for rank, local in numbers if rank not in absent]

    @property
    def is_leader(self) -> bool:
        """Whether this process writes the results: that of rank 0."""
        return self.launcher_rank is None or self.launcher_rank.rank == 0

    @property
    def is_first_of_host(self) -> bool:
        """Whether this process collects the counters of its host."""
        return self.launcher_rank is None or self.launcher_rank.local == 0

    @property
    def is_rehearsal(self) -> bool:
        """Whether the measurements do not reflect the machine's links."""
        return self.backend == "gloo" or self.ranks_per_gpu > 1

    @property
    def _split_bytes(self) -> int:
        """Return the bytes that are transferred in few and in many calls."""
        most = max(self.sizes) if self.is_rehearsal else min(SPLIT_BYTES, int(self.memory_bytes * SPLIT_MEMORY))
        return most // FEWEST_SPLIT_BYTES * FEWEST_SPLIT_BYTES or FEWEST_SPLIT_BYTES

    def gpu_of(self, local: int) -> Gpu | None:
        """Return the GPU of a local rank, or None for gloo."""
        return self.gpus[local // self.ranks_per_gpu % len(self.gpus)] if self.gpus else None

    def record(self) -> dict[str, Any]:
        """Return the plan as an entry of `capture.json`, which the ranks read."""
        most = max((self.nranks, *(local + 1 for _, local in self.local_ranks)))
        return {
            "run": self.communicator_id, "backend": self.backend, "nranks": self.nranks, "rehearsal": self.is_rehearsal,
            "gpus": [gpu.ordinal for local in range(most) if (gpu := self.gpu_of(local)) is not None],
            "ranks_per_gpu": self.ranks_per_gpu, "steps": self.steps, "profiled": self.profiled,
            "drills": [fault.record() for fault in self.faults],
            "sweep": self.sweep, "sweep_s": self.limit_s * SWEEP_SHARE, "warmup": WARMUP, "iterations": ITERATIONS,
            "pairs_s": self.limit_s * PAIRS_SHARE, "pair_bytes": min(max(self.sizes), MOST_PAIR_BYTES),
            "splits": REHEARSAL_SPLITS if self.is_rehearsal else SPLITS, "split_bytes": self._split_bytes,
            "memory_bytes": self.memory_bytes, "stall_s": self.stall_s, "limit_s": self.limit_s,
            "program": self.program, "launcher": self.launcher_rank.launcher if self.launcher_rank else None,
        }  # fmt: skip

    def variables(self, rank: int) -> dict[str, str]:
        """Return the variables that a rank gets in addition to the environment of this process."""
        variables = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": str(self.folder)}
        # The profiler and the watchdog load PyTorch's compiler, which makes a folder in TMPDIR.
        variables |= {"TORCHINDUCTOR_CACHE_DIR": str(Path(gettempdir()) / "torchinductor")}
        if self.launcher_rank is None:
            variables |= {"MASTER_ADDR": LOOPBACK}
        else:
            variables |= {"MASTER_ADDR": self.launcher_rank.address, "MASTER_PORT": str(self.launcher_rank.port)}
        if self.backend == "gloo":
            interface = "lo" if variables["MASTER_ADDR"] in LOOPBACKS else interface_to(variables["MASTER_ADDR"])
            is_chosen = "GLOO_SOCKET_IFNAME" in os.environ or not interface
            variables |= {"TORCH_FR_BUFFER_SIZE": TRACE_CALLS}
            return variables | ({} if is_chosen else {"GLOO_SOCKET_IFNAME": interface})
        return variables | self._nccl_variables(rank) | fault_injection.environment(self.faults)

    def _nccl_variables(self, rank: int) -> dict[str, str]:
        variables = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of nvidia-smi
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": self.subsystems,
            "NCCL_DEBUG_FILE": str(self.folder / "nccl.%h.%p.log"),
            "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",  # from 2.26 on
            "NCCL_DEBUG_TIMESTAMP_FORMAT": "[%F %T.%6f] ",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",  # the watchdog ends a process whose call does not return,
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": DUMP_MS,  # four times that after its dump
        }
        # PyTorch warns of the older names.
        names = OLD_RECORDER if () < torch_release() < FR_NAMES else RECORDER
        variables |= dict(zip(names, (TRACE_CALLS, str(self.folder / "flight.rank")), strict=True))
        if rank == 0:
            variables["NCCL_TOPO_DUMP_FILE"] = str(self.folder / "topology.xml")
            variables["NCCL_GRAPH_DUMP_FILE"] = str(self.folder / "graph.xml")
        if self.launcher_rank is None:
            variables["NCCL_SOCKET_IFNAME"] = "lo"
        if self.algorithm:
            variables["NCCL_ALGO"] = self.algorithm
        if self.ranks_per_gpu > 1:
            # NCCL refuses two ranks of one host on one GPU, so every rank gets its own host id and uses sockets.
            variables |= {"NCCL_HOSTID": f"{host()}-{rank}", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
            variables |= {"NCCL_MNNVL_ENABLE": "0"}
        return variables

    def command(self) -> list[str]:
        """Return the command line of nccl-tests over all GPUs of this process."""
        sizes = ["-b", str(min(self.sizes)), "-e", str(max(self.sizes)), "-f", str(FACTOR)]
        count = 1 if self.launcher_rank else min(len(self.gpus), self.nranks)
        return [str(self.program), *sizes, "-g", str(count), "-n", str(ITERATIONS), "-w", str(WARMUP)]

    def describe(self) -> Iterator[str]:
        """Yield lines that describe the capture to the user."""
        where = "on CPUs, without NCCL" if self.backend == "gloo" else "with NCCL"
        if self.launcher_rank:
            started_by = f"; this process is rank {self.launcher_rank.rank}, started by {self.launcher_rank.launcher}"
        else:
            started_by = " on this host"
        yield f"{self.nranks} ranks {where}{started_by}"
        if self.is_rehearsal:
            yield "Rehearsal: traffic goes over sockets; the measurements do not reflect the machine's links."
        for local in range(len(self.gpus) * self.ranks_per_gpu if self.launcher_rank is None else 0):
            if local < self.nranks and (gpu := self.gpu_of(local)) is not None:
                yield f"  rank {local}: GPU {gpu.ordinal}, {gpu.name}, {gpu.mib} MiB, driver {gpu.driver}"
        if self.program:
            yield f"Program: {' '.join(self.command())}"
        else:
            recorded = f"; the profiler records the last {self.profiled}" if self.profiled else ""
            yield f"Steps: {self.steps} AllReduce of 1 MiB{recorded}"
            yield self._measurement_text()
        if self.faults:
            yield f"Injected faults: {', '.join(fault.text for fault in self.faults)}"
        yield f"Ends after {self.limit_s:.0f} s at the latest; a call is treated as hung after {self.stall_s:.0f} s"
        if self.backend != "gloo":
            yield f"Network devices: {'; '.join(networks()) or 'none'}"
        if self.gpus:
            yield f"Buffers: at most {_size_text(self.memory_bytes)} of GPU memory per rank, plus the buffers of NCCL"
        yield f"Folder: {self.folder}"
        for name, value in sorted(self.variables(0).items()):
            yield f"  {name}={value}"

    @property
    def stages(self) -> list[str]:
        """What runs while rank 0 has written 0, 1, 2, … results."""
        if self.program:
            return [str(self.program)]
        stages = ["start", *(f"step {step + 1}" for step in range(self.steps))]
        if self.sweep:
            stages += [f"{name} of {_size_text(size)}" for name, size in self.sweep]
            stages += ["pairs of ranks"] * self.nranks
            stages += ["few and many messages"] * len(REHEARSAL_SPLITS if self.is_rehearsal else SPLITS)
        return [*stages, "end"]

    def _measurement_text(self) -> str:
        if not self.sweep:
            return "Measurements: none, because of the injected faults"
        names = ", ".join(self.collectives)
        size_range = f"{_size_text(min(self.sizes))} to {_size_text(max(self.sizes))}"
        return f"Measurements: {names}; {size_range}, {ITERATIONS} times each; each two ranks; few and many messages"


def parse_size(text: str) -> int:
    """Parse a size in bytes. Raises UsageError if it is not one.

    >>> parse_size("8"), parse_size("64M"), parse_size("2g")
    (8, 67108864, 2147483648)
    """
    number, unit = text.upper().removesuffix("B"), 1
    if number[-1:] in UNITS:
        number, unit = number[:-1], UNITS[number[-1]]
    if not (number.isascii() and number.isdigit()) or int(number) == 0:
        raise UsageError(f"{text}: not a size; write 8, 64K, 16M or 1G")
    return int(number) * unit


def sizes(smallest: int, largest: int) -> list[int]:
    """Return the sizes from `smallest` to `largest` in steps of FACTOR."""
    steps = [smallest]
    while steps[-1] * FACTOR <= largest:
        steps.append(steps[-1] * FACTOR)
    return steps


def _size_text(number: int) -> str:
    for unit, unit_bytes in reversed(UNITS.items()):
        if number >= unit_bytes and number % unit_bytes == 0:
            return f"{number // unit_bytes} {unit}iB"
    return f"{number} B"
