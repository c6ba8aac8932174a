"""NCCL's result codes, and what the source files that print a warning are about.

Sources: nccl.h (ncclResult_t; 6 from 2.13 on, 7 from 2.14 on, 8 in the newest), src/init.cc (ncclGetErrorString), and
the folders of src/ in releases 2.4 to 2.32.
"""

from __future__ import annotations

from ncclforensics.data.names import known

RESULTS = {
    1: "unhandled CUDA error",
    2: "system error: a system call or another library failed",
    3: "internal error: a check inside NCCL failed",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error: another process ended, or the network failed",
    7: "in progress: a call of a non-blocking communicator has not finished",
    8: "timeout",
}
RESULT_NAMES = {
    "ncclUnhandledCudaError": 1,
    "ncclSystemError": 2,
    "ncclInternalError": 3,
    "ncclInvalidArgument": 4,
    "ncclInvalidUsage": 5,
    "ncclRemoteError": 6,
    "ncclInProgress": 7,
    "ncclTimeout": 8,
}
SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS = 2, 3, 4, 5, 6, 7

# Part of a path in NCCL's sources -> a category of the contract; the first that occurs in the path holds.
TOPICS = {
    "net_ib": "ib-error",
    "ibvwrap": "ib-error",
    "ibvsymbols": "ib-error",
    "mlx5": "ib-error",
    "net_socket": "bootstrap",
    "bootstrap": "bootstrap",
    "socket": "bootstrap",
    "os/linux": "bootstrap",
    "shm": "shm",
    "transport/p2p": "p2p",
    "nvls": "nvls",
    "mnnvl": "nvls",
    "coll_net": "net-plugin",
    "plugin": "net-plugin",
    "ofi": "net-plugin",
    "gdrwrap": "net-plugin",
    "gin": "net-plugin",
    "graph/": "topology",
    "topo": "topology",
    "xml": "topology",
    "nvml": "topology",
    "rsmi": "topology",
    "alloc": "oom",
    "cudawrap": "cuda-error",
    "strongstream": "cuda-error",
    "enqueue": "cuda-error",
    "checks": "cuda-error",
    "register": "memory-registration",
    "argcheck": "application-error",
    "group": "application-error",
    "param": "environment",
}
# How a warning begins whose place is not in the text.
BEGINNINGS = {
    "NET/IB": "ib-error",
    "NET/Socket": "bootstrap",
    "NET/": "net-plugin",
    "Bootstrap": "bootstrap",
    "Allocation failed": "oom",
}
OTHER = "init-failure"
# Files of src/ in which an error reaches the call of the application; deeper callers may ignore it.
BOOTSTRAP_FILE = "bootstrap.cc"
TOP_FILES = ("init.cc", "group.cc", "enqueue.cc", "proxy.cc", "transport.cc", BOOTSTRAP_FILE, "collectives.cc")


def topic(site: str | None, text: str | None = None) -> str:
    """Return the category of a source location, or of how a warning begins.

    >>> topic("transport/net_ib/p2p.cc:688"), topic("src/misc/shmutils.cc:71"), topic(None, "NET/OFI failed")
    ('ib-error', 'shm', 'net-plugin')
    """
    if site is None:
        return next((category for part, category in BEGINNINGS.items() if (text or "").startswith(part)), OTHER)
    return next((category for part, category in TOPICS.items() if part in site), OTHER)


def result_text(code: int | None) -> str:
    """Return what a result code means.

    >>> result_text(2)
    '2 (system error: a system call or another library failed)'
    """
    if code is not None and code > max(RESULTS):
        return f"{code} (no result of NCCL: what it was read from is no valid communicator)"
    return f"{code} ({RESULTS[code]})" if code in RESULTS else known(code)


SET_UP_IN = {  # file of NCCL -> what is set up there
    "transport/net.cc": "a connection over the network",
    "transport/p2p.cc": "a direct connection between GPUs",
    "transport/shm.cc": "a connection over shared memory",
    "transport/nvls.cc": "NVLink SHARP",
    "bootstrap.cc": "the connections of the bootstrap",
}


def set_up_at(place: str) -> str:
    """Return what NCCL sets up at this place of its code; empty where it is not known.

    >>> set_up_at("transport/net.cc:450"), set_up_at("group.cc:460")
    ('a connection over the network', '')
    """
    return SET_UP_IN.get(place.partition(":")[0], "")


def is_call_file(place: str | None) -> bool:
    """Whether only calls on a communicator that exists return errors through this place: `src/collectives`.

    >>> is_call_file("collectives/sendrecv.cc:37"), is_call_file("collectives.cc:120"), is_call_file("group.cc:96")
    (True, True, False)
    """
    folder, _, file = (place or "").rpartition("/")
    return folder.endswith("collectives") or file.startswith("collectives.cc:")


def is_of_abort(step: str) -> bool:
    """Whether NCCL returns this only where its communicator is being aborted: 3 from its sockets, without a warning.

    src/misc/socket.cc and src/os/linux.cc, up to 2.30: socketProgressOpt prints `abort called` with the subsystem NET.

    >>> is_of_abort("misc/socket.cc:64 -> 3"), is_of_abort("misc/socket.cc:64 -> 6")
    (True, False)
    """
    return step.endswith(" -> 3") and any(file in step for file in ("misc/socket.cc:", "os/linux.cc:"))


def is_top_file(place: str | None, files: tuple[str, ...] = TOP_FILES) -> bool:
    """Whether an error that reached this place was returned to the application, as far as a place shows it.

    The files are named `.cu` to 2.4.

    >>> is_top_file("hipify/src/init.cc:1598"), is_top_file("transport/net_ib/init.cc:526"), is_top_file("init.cu:563")
    (True, False, True)
    """
    folder, _, file = (place or "").rpartition("/")
    name = file.partition(":")[0]
    is_named = name in files or (name.endswith(".cu") and f"{name.removesuffix('.cu')}.cc" in files)
    return is_named and (not folder or folder.endswith("src"))
