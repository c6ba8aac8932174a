"""Collect the environment of a capture: counters, topology, modules, versions and variables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from ncclforensics.archive.atomic_write import write_file
from ncclforensics.capture.external_programs import run_program
from ncclforensics.capture.journal import host
from ncclforensics.data import redaction_rules

COMMANDS = {
    "nvidia-smi": ["nvidia-smi"],
    "nvidia-smi-topo": ["nvidia-smi", "topo", "-m"],
    "nvidia-smi-nvlink": ["nvidia-smi", "nvlink", "--status"],
    "lsmod": ["lsmod"],
    "ibstat": ["ibstat"],
    "lspci": ["lspci", "-tv"],
}
# Only variables of launchers and of NCCL: the rest of the environment may hold secrets.
VARIABLE_PREFIXES = (
    "NCCL_", "RCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH", "FI_", "UCX_", "SLURM_JOB_ID", "SLURM_NODELIST", "SLURM_NTASKS", "OMPI_COMM_WORLD_",
)  # fmt: skip
KEPT = ("NCCL_IB_PKEY",)  # the index of a partition, not a secret
COUNTERS = ("counters", "hw_counters")
PORT_FILES = ("state", "phys_state", "rate", "link_layer")
INFINIBAND = Path("/sys/class/infiniband")


def collect(folder: Path, *, only_counters: bool = False) -> dict[str, str]:
    """Write what is available into the folder; return the reason for each part that is absent.

    Counters are those of this host, in a file of its own below a line with its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    absent = {}
    counters = list(_counters(INFINIBAND))
    if counters:
        heading = f"===== {host()} =====\n"
        write_file(folder / f"infiniband.{host()}.txt", "".join([heading, *counters]).encode())
    else:
        absent["infiniband"] = f"{INFINIBAND} has no device"
    if only_counters:
        return absent
    for name, command in COMMANDS.items():
        printed, problem = run_program(command)
        if problem:
            absent[name] = problem
        if printed:
            write_file(folder / f"{name}.txt", printed)
    write_file(folder / "variables.txt", "".join(_variables()).encode())
    return absent


def _counters(root: Path) -> Iterator[str]:
    """Yield every counter of every port as `path:value`, as `grep -r .` prints them."""
    for port in sorted(root.glob("*/ports/*")):
        files = [port / fact for fact in PORT_FILES] + [
            file for kind in COUNTERS for file in sorted((port / kind).glob("*"))
        ]
        for file in files:
            try:
                yield f"{file}:{file.read_text(encoding='utf-8', errors='replace').strip()}\n"
            except OSError:
                continue  # the device does not support this counter


def _variables() -> Iterator[str]:
    for name, value in sorted(os.environ.items()):
        is_secret = name not in KEPT and any(word in name.upper() for word in redaction_rules.UNWRITTEN_PARTS)
        if name.startswith(VARIABLE_PREFIXES) and not is_secret and value.isprintable():
            yield f"{name}={value}\n"


def system() -> dict[str, str]:
    """Return the versions of the kernel, the machine and Python."""
    return {"kernel": platform.release(), "machine": platform.machine(), "python": platform.python_version()}
