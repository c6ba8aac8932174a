"""List the GPUs and the network devices of this machine."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclforensics.capture.external_programs import run_program
from ncclforensics.errors import UsageError

SYSTEM = Path("/sys/class")
FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version")
SIOCGIFADDR = 0x8915
BEYOND_ROUTER = "192.0.2.1"  # reserved for documentation (RFC 5737): its route is the default one
MIB_IN_USE = 1024  # a GPU with so much memory in use is busy; the driver itself uses a few hundred MiB


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that this process can see. `ordinal` is its number in CUDA."""

    ordinal: int
    index: int  # its number in nvidia-smi
    uuid: str
    name: str
    mib: int
    mib_used: int
    driver: str
    programs: tuple[int, ...] = ()  # pids of its compute processes

    @property
    def is_in_use(self) -> bool:
        """Whether other processes use it. Containers hide the processes of others, but not their memory."""
        return bool(self.programs) or self.mib_used >= MIB_IN_USE


def gpus(environment: Mapping[str, str]) -> tuple[list[Gpu], str]:
    """Return the GPUs in the order of CUDA, and the reason if there are none."""
    listed, problem = run_program(["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"])
    if problem:
        return [], f"nvidia-smi: {problem}" if "nvidia-smi" not in problem else problem
    found = [gpu for row in _rows(listed) if (gpu := _gpu(row)) is not None]
    programs = run_program(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"])[0]
    pids: dict[str, list[int]] = {}
    for uuid, pid in (row for row in _rows(programs) if len(row) == 2 and row[1].isdigit()):
        pids.setdefault(uuid, []).append(int(pid))
    found = [replace(gpu, programs=tuple(pids.get(gpu.uuid, []))) for gpu in found]
    visible = _visible(found, environment.get("CUDA_VISIBLE_DEVICES"))
    return visible, "" if visible else "nvidia-smi lists no GPU that CUDA_VISIBLE_DEVICES includes"


def _rows(table: bytes) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in table.decode("utf-8", "replace").splitlines()]


def _gpu(row: list[str]) -> Gpu | None:
    if len(row) != len(FIELDS) or not row[0].isdigit():
        return None
    total, used = (int(cell) if cell.isdigit() else 0 for cell in row[3:5])
    return Gpu(int(row[0]), int(row[0]), row[1], row[2], total, used, row[5])


def _visible(found: Sequence[Gpu], names: str | None) -> list[Gpu]:
    """Renumber the visible GPUs as CUDA does, which ignores everything after an unknown name."""
    if names is None:
        return list(found)
    visible: list[Gpu] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        match = [gpu for gpu in found if name == str(gpu.index) or gpu.uuid.startswith(name)]
        if not match:
            break
        visible.append(replace(match[0], ordinal=len(visible)))
    return visible


def choose_gpus(found: Sequence[Gpu], wanted: str | None) -> list[Gpu]:
    """Return the GPUs to use. Raises UsageError if one does not exist, or is named twice."""
    numbers = [part.strip() for part in wanted.split(",")] if wanted else [str(gpu.ordinal) for gpu in found]
    by_number = {str(gpu.ordinal): gpu for gpu in found}
    if unknown := [number for number in numbers if number not in by_number]:
        raise UsageError(f"--gpus {wanted}: no GPU {unknown[0]}; the GPUs are {', '.join(by_number)}")
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--gpus {wanted}: a GPU is named twice; --ranks-per-gpu puts several ranks on one GPU")
    return [by_number[number] for number in numbers]


def check_unused(gpus: Sequence[Gpu]) -> None:
    """Raise UsageError if other processes use one of the GPUs."""
    if busy := [gpu for gpu in gpus if gpu.is_in_use]:
        used = ", ".join(f"GPU {gpu.ordinal} ({gpu.mib_used} MiB, {len(gpu.programs)} processes)" for gpu in busy)
        raise UsageError(f"in use by others: {used}; choose other GPUs with --gpus, or use these with --share")


def networks(root: Path = SYSTEM) -> list[str]:
    """List the RDMA ports with state, rate and link layer, and the network interfaces that are up."""
    devices = []
    for port in sorted(root.glob("infiniband/*/ports/*")):
        attributes = [_read(port / name) for name in ("state", "rate", "link_layer")]
        devices.append(f"{port.parts[-3]} port {port.name}: {', '.join(filter(None, attributes))}")
    for interface in sorted(root.glob("net/*")):
        if interface.name != "lo" and _read(interface / "operstate") == "up":
            devices.append(interface.name)
    return devices


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the file system of a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def interface_to(address: str) -> str:
    """Return the network interface by which this host reaches an address, or an empty text if that is unknown.

    Without it gloo takes the address that the name of the host has, which /etc/hosts often maps to 127.0.1.1. If the
    address is one of this host's loopback, the interface of the default route is taken.
    """
    for target in (address, BEYOND_ROUTER):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # sends nothing
                own = probe.getsockname()[0]
                names = [name for _, name in socket.if_nameindex()]
                if not own.startswith("127.") and (found := [name for name in names if _address(probe, name) == own]):
                    return found[0]
        except OSError:
            continue
    return ""


def _address(probe: socket.socket, interface: str) -> str:
    """Return the IPv4 address of an interface, or an empty text (netdevice(7))."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
    except OSError:
        return ""
