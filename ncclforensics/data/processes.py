"""How processes end: signals, launchers' words for them, exceptions that pass on another's failure, faults of GPUs."""

from __future__ import annotations

# POSIX numbers, and what shells, Slurm, Open MPI and Python call them (signal(7), strsignal(3)).
SIGNALS = {
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    15: "SIGTERM",
}
REASONS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Terminated": 15,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Interrupt": 2,
}
OUT_OF_MEMORY = ("Out Of Memory", "OOMKilled", "Out of memory")
ABORT = 6
KILL = 9
BUS_ERROR = 7
TOLD = (2, 10, 12, 15)  # sent by a launcher, a scheduler or a person: the receiver did nothing wrong
SHELL = 128  # a shell's exit code for a command that ended by signal n is 128 + n

# Exceptions that tell of another process's end, or sum up one that stands elsewhere: class (last part of its name,
# without Error), and beginnings of the message. torch.distributed (exceptions.html), multiprocessing, Ray, vLLM.
SECOND_HAND_CLASSES = frozenset(
    [
        "ChildFailed",
        "DistNetwork",
        "DistStore",
        "DistBackend",
        "ConnectionReset",
        "ConnectionRefused",
        "ConnectionAborted",
        "BrokenPipe",
        "EOF",
        "CalledProcess",
        "Cancelled",
        "RayTask",
        "RayActor",
        "ActorDied",
        "ActorUnavailable",
        "WorkerCrashed",
        "EngineDead",
        "AsyncEngineDead",
    ]
)
SECOND_HAND_MESSAGES = (
    "NCCL error in",
    "NCCL Error",
    "NCCL communicator was aborted",
    "NCCL communicator encountered error",
    "[../third_party/gloo",
    "[/pytorch/third_party/gloo",
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "Engine core initialization failed",
    "Engine process failed to start",
    "Socket Timeout",
    "wait timeout after",
    "Timed out after",
)
STORE = "store->get("  # a rank that waits for another's id through PyTorch's store

# Xid numbers (docs.nvidia.com/deploy/xid-errors) of faults that no program can cause; others may be the program's.
XIDS = {
    48: "uncorrectable ECC error of its memory",
    61: "internal micro-controller halt",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement after a memory error",
    64: "row remapping failed",
    74: "NVLink error",
    79: "it fell off the bus",
    92: "high rate of memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP time-out",
    120: "GSP error",
    140: "unrecovered ECC error",
    145: "NVLink error",
    149: "NVLink error",
}
MOSTLY_OF_PROGRAMS = {
    13: "graphics engine exception: an illegal access by a kernel",
    31: "MMU fault: an illegal address in a kernel",
    43: "the GPU stopped processing after a fault of a program",
    45: "channels were torn down after an earlier fault, or when a process was killed",
    68: "video processor exception",
    69: "graphics engine class error",
}


def signal_name(number: int) -> str:
    """The name of a signal.

    >>> signal_name(9), signal_name(34)
    ('SIGKILL', 'signal 34')
    """
    return SIGNALS.get(number, f"signal {number}")
