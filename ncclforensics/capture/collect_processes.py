"""Find the ranks that run on this host, and what /proc shows of them.

Reading /proc of a process that hangs in the kernel can block; the caller runs these functions with a limit.
"""

from __future__ import annotations

import os
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
    """Return the processes of this host that have a rank; a rank's children inherit it and are left out."""
    found: dict[int, RankProcess] = {}
    parents: dict[int, int | None] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (process := read_process(int(folder.name), proc)) and process.rank is not None:
            found[process.pid] = process
            parents[process.pid] = _parent(folder)
    own = os.getpid()
    return [
        process
        for pid, process in sorted(found.items())
        if pid != own and not ((parent := found.get(parents[pid] or 0)) and parent.rank == process.rank)
    ]


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
