"""Find the ranks that run on this host, and what /proc shows of them.

Reading /proc of a process that hangs in the kernel can block; the caller runs these functions with a limit.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
# The rank as launchers pass it: torchrun and DeepSpeed, Open MPI, PMI and MPICH, PALS, Flux, Slurm.
RANK_VARIABLES = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
)
WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS")
# Variables that are kept, and beginnings of such; others may hold secrets.
KEPT_VARIABLES = (*RANK_VARIABLES, *WORLD_VARIABLES, "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")
KEPT_BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "GLOO_")
STDOUT, STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A process of a job on this host."""

    pid: int
    rank: int | None
    command: str
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)  # those that are kept
    outputs: tuple[Path, ...] = ()  # the files that its output goes to

    @property
    def name(self) -> str:
        """The name of its files: `rank3.41887`, or `pid41887` without a rank."""
        return f"pid{self.pid}" if self.rank is None else f"rank{self.rank}.{self.pid}"


def find_ranks(proc: Path = PROC) -> list[RankProcess]:
    """Return the processes of this host that have a rank: the programs, not what starts them or what they start.

    A launcher has variables of a rank, too, where Slurm or Kubernetes started it: those of its children differ. Other
    children inherit them: below a shell, `timeout` or a profiler stands the program, below the program its workers.
    """
    found: dict[int, RankProcess] = {}
    parents: dict[int, int | None] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (process := read_process(int(folder.name), proc)) and process.rank is not None:
            found[process.pid] = process
            parents[process.pid] = _parent(folder)
    found.pop(os.getpid(), None)
    launchers: set[int] = set()
    children: dict[int | None, list[int]] = defaultdict(list)
    for pid, process in sorted(found.items()):
        parent = parents[pid]
        if parent in found and _is_launched(process, found[parent]):
            while parent in found and parent not in launchers:
                launchers.add(parent)
                parent = parents[parent]
        children[parents[pid]].append(pid)
    first = [pid for pid in found if pid not in launchers and (parents[pid] not in found or parents[pid] in launchers)]
    return [found[pid] for top in sorted(first) for pid in _programs(top, children, proc)]


def _is_launched(process: RankProcess, parent: RankProcess) -> bool:
    """Whether a process got its rank from its parent, rather than inheriting that of its parent."""
    places = {name: process.variables.get(name) for name in (*RANK_VARIABLES, "LOCAL_RANK")}
    return any(value is not None and value != parent.variables.get(name) for name, value in places.items())


def _programs(pid: int, children: Mapping[int | None, list[int]], proc: Path) -> list[int]:
    """The first processes of Python from this one down; the process itself if there is none."""
    pending, found = [pid], []
    while pending:
        process = pending.pop()
        if _is_python(proc / str(process)):
            found.append(process)
        else:
            pending += children.get(process, [])
    return sorted(found) or [pid]


def _is_python(folder: Path) -> bool:
    """Whether a process runs Python, which can change its command, but not its program."""
    try:
        return (folder / "exe").readlink().name.startswith("python")
    except OSError:
        return False


def read_process(pid: int, proc: Path = PROC) -> RankProcess | None:
    """Return what /proc shows of a process; None if it has ended or belongs to another user."""
    folder = proc / str(pid)
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        pairs = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    rank = next((variables[name] for name in RANK_VARIABLES if variables.get(name, "").isdecimal()), None)
    kept = {
        name: value for name, value in variables.items() if name in KEPT_VARIABLES or name.startswith(KEPT_BEGINNINGS)
    }
    home = Path(variables.get("HOME", "/nonexistent"))
    return RankProcess(pid, None if rank is None else int(rank), command, home, kept, tuple(_outputs(folder, kept)))


def _parent(folder: Path) -> int | None:
    """Return the parent: the second field behind the name of the program, which may hold blanks and brackets."""
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]) if len(fields) > 1 else None


def _outputs(folder: Path, variables: Mapping[str, str]) -> list[Path]:
    """Return the regular files that stdout and stderr go to, and the file of NCCL_DEBUG_FILE."""
    paths = []
    for number in (STDOUT, STDERR):
        try:
            paths.append((folder / "fd" / str(number)).readlink())
        except OSError:
            continue
    if pattern := variables.get("NCCL_DEBUG_FILE"):
        name = pattern.replace("%h", os.uname().nodename).replace("%p", folder.name)
        paths.append(Path(name))
    return [path for path in dict.fromkeys(paths) if path.is_file()]
