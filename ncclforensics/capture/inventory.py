"""The GPUs and NICs of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclforensics.capture.external_programs import said
from ncclforensics.errors import UsageError

SYSTEM = Path("/sys/class")
FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version")
IDLE = 1024  # MiB in use from which on a GPU is somebody's; the driver itself takes a few hundred


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that a process of ours can see. `ordinal`: its number in CUDA."""

    ordinal: int
    index: int  # in nvidia-smi
    uuid: str
    name: str
    mib: int
    mib_used: int
    driver: str
    programs: tuple[int, ...] = ()  # that compute on it

    @property
    def is_in_use(self) -> bool:
        """Whether somebody else is on it. Containers hide the processes of others, but not their memory."""
        return bool(self.programs) or self.mib_used >= IDLE


def gpus(environment: Mapping[str, str]) -> tuple[list[Gpu], str]:
    """The GPUs in the order of CUDA's numbers, and why there are none."""
    listed, problem = said(["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"])
    if problem:
        return [], f"nvidia-smi: {problem}" if "nvidia-smi" not in problem else problem
    found = [gpu for row in _rows(listed) if (gpu := _gpu(row)) is not None]
    programs = said(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"])[0]
    on: dict[str, list[int]] = {}
    for uuid, pid in (row for row in _rows(programs) if len(row) == 2 and row[1].isdigit()):
        on.setdefault(uuid, []).append(int(pid))
    found = [replace(gpu, programs=tuple(on.get(gpu.uuid, []))) for gpu in found]
    visibility = _visible(found, environment.get("CUDA_VISIBLE_DEVICES"))
    return visibility, "" if visibility else "nvidia-smi lists no GPU that CUDA_VISIBLE_DEVICES lets through"


def _rows(table: bytes) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in table.decode("utf-8", "replace").splitlines()]


def _gpu(row: list[str]) -> Gpu | None:
    if len(row) != len(FIELDS) or not row[0].isdigit():
        return None
    total, used = (int(cell) if cell.isdigit() else 0 for cell in row[3:5])
    return Gpu(int(row[0]), int(row[0]), row[1], row[2], total, used, row[5])


def _visible(found: Sequence[Gpu], wanted: str | None) -> list[Gpu]:
    """CUDA numbers anew what it is allowed to see; behind a name it does not know it sees nothing."""
    if wanted is None:
        return list(found)
    seen: list[Gpu] = []
    for name in filter(None, (part.strip() for part in wanted.split(","))):
        match = [gpu for gpu in found if name == str(gpu.index) or gpu.uuid.startswith(name)]
        if not match:
            break
        seen.append(replace(match[0], ordinal=len(seen)))
    return seen


def chosen(found: Sequence[Gpu], wanted: str | None, *, share: bool) -> list[Gpu]:
    """The GPUs to use. Raises UsageError if one is not there, or is in use by others and `share` is not set."""
    numbers = [part.strip() for part in wanted.split(",")] if wanted else [str(gpu.ordinal) for gpu in found]
    by_number = {str(gpu.ordinal): gpu for gpu in found}
    if unknown := [number for number in numbers if number not in by_number]:
        raise UsageError(f"--gpus {wanted}: no GPU {unknown[0]}; there are {', '.join(by_number)}")
    taken = [by_number[number] for number in numbers]
    if not share and (busy := [gpu for gpu in taken if gpu.is_in_use]):
        used = ", ".join(f"GPU {gpu.ordinal} ({gpu.mib_used} MiB, {len(gpu.programs)} processes)" for gpu in busy)
        raise UsageError(f"in use by others: {used}; --gpus chooses others, --share uses them all the same")
    return taken


def networks(root: Path = SYSTEM) -> list[str]:
    """RDMA devices with what their ports say, and network interfaces that are up."""
    told = []
    for port in sorted(root.glob("infiniband/*/ports/*")):
        facts = [_read(port / name) for name in ("state", "rate", "link_layer")]
        told.append(f"{port.parts[-3]} port {port.name}: {', '.join(filter(None, facts))}")
    for interface in sorted(root.glob("net/*")):
        if interface.name != "lo" and _read(interface / "operstate") == "up":
            told.append(interface.name)
    return told


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def free_bytes(folder: Path) -> int:
    """Room for what is written under a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
