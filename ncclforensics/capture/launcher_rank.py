"""Detect the rank of this process in a job that srun, mpirun, torchrun, PALS or Flux started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclforensics.errors import UsageError

LOOPBACK = "127.0.0.1"
LOOPBACK_IPV6 = "::1"
LOOPBACKS = (LOOPBACK, LOOPBACK_IPV6, "localhost")
PORTS, FIRST_PORT = 20_000, 30_000
# Variables: rank, number of ranks, rank on its host, ranks on its host, name of the job.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_JOB_ID"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    # HPE's PALS sets the number of ranks as PMI does; Flux sets its own variables.
    "mpiexec of PALS": ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_APID"),
    "flux run": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", "FLUX_JOB_ID"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_ID"),
}  # fmt: skip


NUMBERS_OF_HOSTS = ("SLURM_STEP_NUM_NODES", "FLUX_JOB_NNODES")


@dataclass(frozen=True, slots=True)
class LauncherRank:
    """The rank that a launcher assigned to this process."""

    launcher: str
    rank: int
    nranks: int
    local: int
    job: str
    address: str
    port: int


def detect_launcher_rank(environment: Mapping[str, str]) -> LauncherRank | None:
    """Return the rank that a launcher assigned to this process; None without a launcher or with a single rank.

    Raises UsageError if the address of rank 0 is unknown.
    """
    for launcher, (rank, size, local, local_size, job) in LAUNCHERS.items():
        values = [environment.get(name, "") for name in (rank, size, local)]
        if not all(value.isdigit() for value in values) or int(values[1]) < 2:
            continue
        name = environment.get(job, "")
        is_one_host = environment.get(local_size, "") == values[1] or "1" in {
            environment.get(nodes) for nodes in NUMBERS_OF_HOSTS
        }
        address = environment.get("MASTER_ADDR") or (
            LOOPBACK if is_one_host else _first_host(environment.get("SLURM_STEP_NODELIST", ""))
        )
        if not address:
            raise UsageError(f"started by {launcher} on several hosts; set MASTER_ADDR to the host of rank 0")
        port = environment.get("MASTER_PORT", "")
        number = int(port) if port.isdigit() else FIRST_PORT + sum(name.encode()) % PORTS
        rank_number, nranks, local_rank = map(int, values)
        return LauncherRank(launcher, rank_number, nranks, local_rank, name, address, number)
    return None


def _first_host(names: str) -> str:
    """Return the first host of a Slurm node list.

    >>> _first_host("gpu[003-005,009],login1"), _first_host("a,b[1-2]"), _first_host("")
    ('gpu003', 'a', '')
    """
    stem, bracket, rest = names.partition("[")
    if not bracket or "," in stem:
        return stem.partition(",")[0]
    return stem + rest.partition("]")[0].partition(",")[0].partition("-")[0]
