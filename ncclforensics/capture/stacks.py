"""Take the stacks of ranks with py-spy."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ncclforensics.archive.atomic_write import write_file
from ncclforensics.capture.external_programs import run_program

AT_ONCE = 8  # programs that read the memory of ranks
LIMIT = 10.0  # seconds for one rank


def stack_command(pid: int) -> tuple[str, ...]:
    """Return the command that prints the stack of a process."""
    return ("py-spy", "dump", "--pid", str(pid))


def stack_heading(rank: int, host: str, pid: int) -> str:
    """Return the line above a stack that says whose it is."""
    return f"=== rank {rank} on {host} pid {pid} ===\n"


def take_stacks(folder: Path, pid_of_rank: Mapping[int, int], host: str) -> None:
    """Write the stack of each rank into the folder; without py-spy, or the right to use it, nothing."""

    def take(rank: int, pid: int) -> None:
        printed, problem = run_program(stack_command(pid), LIMIT)
        if not problem:
            write_file(folder / f"pyspy.rank{rank}.txt", stack_heading(rank, host, pid).encode() + printed)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for rank, pid in pid_of_rank.items():
            threads.submit(take, rank, pid)
