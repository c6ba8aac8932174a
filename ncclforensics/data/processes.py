"""Ends of processes: signals and their names, and exceptions that follow from another failure."""

from __future__ import annotations

# POSIX numbers, and the names that shells, Slurm, Open MPI and Python print (signal(7), strsignal(3)).
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
SIGNAL_NUMBERS = {name: number for number, name in SIGNALS.items()}
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
# What the kernel prints where a control group, such as a container, reached its limit, not the host (mm/oom_kill.c).
OF_CONTROL_GROUP = ("Memory cgroup out of memory", "CONSTRAINT_MEMCG")
# In the stacks that handlers of crashes print: the handler itself, the C library, and Python's interpreter.
FILES_OF_HANDLERS = (
    *(
        "libucs",
        "libc.so",
        "libc-",
        "libpthread",
        "linux-vdso",
        "ld-linux",
        "libstdc++",
        "libgcc",
        "libopen-",
        "debug.c",
    ),
    *("libpython", "python"),
)
FUNCTIONS_OF_HANDLERS = (
    *(
        "killpg",
        "__sigaction",
        "__restore_rt",
        "gsignal",
        "abort",
        "raise",
        "__pthread_kill",
        "pthread_kill",
        "__kernel_rt_sigreturn",
    ),
    *("ucs_handle_error", "ucs_error_", "ucs_debug_", "ucs_fatal_", "ucs_log_"),  # of UCX
    *("__libc_start", "__GI_", "_Py", "Py", "start_thread", "clone", "__assert_fail", "absl::"),
)
OF_UCX = "ucs_"  # begins functions of the library that holds UCX's handler, too
ABORT = 6
KILL = 9
BUS_ERROR = 7
SEGMENTATION_FAULT = 11
CRASHES = (4, 6, 7, 8, 11)  # signals of a fault in the process itself
# Why std::terminate was called without an exception, of an end by ABORT (libstdc++: the destructor of std::thread).
THREADS_LEFT = "a thread still ran"
HANG_UP = 1
INTERRUPT = 2
TERMINATE = 15
LIMITS = {24: "its limit of CPU time (ulimit -t)", 25: "its limit of the size of a file (ulimit -f)"}  # by signal
# Signals of a launcher, a scheduler or a user, not of a fault.
REQUESTED_ENDS = (HANG_UP, INTERRUPT, 3, 10, 12, TERMINATE)
SHELL = 128  # a shell's exit code for a command that ended by signal n is 128 + n

# Python raises these where a socket or a pipe of a library was closed at its other end, mostly by the end of a process.
SOCKET_CLASSES = ("ConnectionReset", "ConnectionRefused", "ConnectionAborted", "BrokenPipe")
# Exceptions that follow from the end of another process, or repeat another exception: class (last part of its name,
# without Error), and beginnings of the message. torch.distributed (exceptions.html), multiprocessing, Ray, vLLM.
SECOND_HAND_CLASSES = frozenset(
    [
        *SOCKET_CLASSES,
        "ChildFailed",
        "DistNetwork",
        "DistStore",
        "DistBackend",
        "CalledProcess",
        "Cancelled",
        "RayTask",
        "RayGet",
        "RayWorker",
        "RayCluster",
        "WorkerGroup",  # of Ray Train
        "UnreconstructableObject",
        "TrainingFailed",
        "RayActor",
        "ActorDied",
        "ActorUnavailable",
        "WorkerCrashed",
        "EngineDead",
        "RendezvousConnection",
        "RendezvousTimeout",
        "RendezvousClosed",
        "AsyncEngineDead",
        "MQEngineDead",
        "Actor",  # of Monarch
        "Supervision",
    ]
)
# Those by which a launcher says that it ended the ranks, so that what one of them raised was not caught.
ENDED_RANKS_CLASSES = frozenset(["ChildFailed", "TrainingFailed", "WorkerGroup"])
# What some of them mean, by the names that Python prints.
SECOND_HAND_MEANINGS = {
    "RendezvousClosedError": "torchrun's rendezvous was closed: the job had ended, or ended as this node came to it",
    "RendezvousConnectionError": "the agent that serves torchrun's rendezvous ended, or could not be reached",
    "EngineDeadError": "the engine core of vLLM had ended",
    "AsyncEngineDeadError": "the engine of vLLM had ended",
    "MQEngineDeadError": "the engine process of vLLM had ended",
}
# Beginnings of names of programs that run ranks: that one of these failed is passed on. Others fail by themselves, such
# as the compiler of an extension, and ssh to a host.
RUNNERS = (
    *("python", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "prterun", "srun", "horovodrun", "ray"),
    *("bash", "sh", "env", "sudo", "nsys", "numactl", "uv", "conda", "docker", "podman", "singularity", "apptainer"),
)
COMMAND = "Command "  # how the message of subprocess.CalledProcessError begins
# The same, but for one with a message: of a pipe or of a wait it has none, of a file that is cut short or of a prompt
# it has.
SECOND_HAND_WITHOUT_MESSAGE = frozenset(["EOF", "Timeout"])
SECOND_HAND_MESSAGES = (
    "NCCL error in",
    "NCCL error: ",
    "NCCL_ERROR: ",
    "NCCL error(",
    "(External) NCCL error(",
    "NCCL communicator was aborted",
    "NCCL communicator encountered error",
    "[../third_party/gloo",
    "[/pytorch/third_party/gloo",
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "handle is closed",  # a pipe of multiprocessing, whose process ends
    "Operation not supported",  # of ZeroMQ: the process closed this socket itself (pyzmq, _future.py)
    *("Engine core initializ", "WorkerProc initializ"),  # behind these words of vLLM the text is often cut
    "Engine process failed to start",
    "Worker failed with error",
    "Socket Timeout",
    "wait timeout after",
    "Timed out after",
    "The wandb backend process has shutdown",
    "The client socket has timed out",
    "[RayletClient] Raylet connection closed",
    "unhandled errors in a TaskGroup",  # an ExceptionGroup of anyio, which lists them above
    # A server of the job does not answer; what is asked for over HTTPS is outside of it.
    *("HTTPConnectionPool(host=", "<urllib3.connection.HTTPConnection object"),
)
# The same, anywhere in the message: what engines, XLA and Horovod pass on.
SECOND_HAND_PARTS = (
    *("NCCL operation nccl", "ncclCommInit", "NCCL error: ", "NCCL error in: ", "NCCL Error ", "== ncclSuccess"),
    "/gloo/transport/",
    "Watchdog caught collective operation timeout",
    "could finish the model loading, but there are other ranks",
    "Server process terminated unexpectedly",  # who started a server of SGLang
    "root error(s) found",  # TensorFlow, which lists them below
    *("root cause above", "for root cause", "for the root cause"),
    *("custom call 'xla.gpu.all_", "custom call 'xla.gpu.reduce_scatter", "custom call 'xla.gpu.collective_"),
)
OWN_PARTS = ("bind: Address already in use",)  # of gloo, the same: an address of this process
# Classes of exceptions of which the message may list the errors below it, and each is one of this process (TensorFlow).
OWN_CLASSES = frozenset(["InvalidArgument", "ResourceExhausted"])
# What is said of such an exception, and of one that states a difference between ranks.
OF_OTHERS = "it follows from something else: another process that ended or did not answer, or an earlier error"
OF_RANKS = "it states a difference between ranks: the one that raised it need not be the odd one"
READ_BELOW = "read the last line of the traceback below the cited line: it names the error; if it is cut, get the rest"
READ_ALL = "collect the output of all processes; the first traceback in time says what failed"
COMPARE_RANKS = (
    "compare what the line names on all ranks: arguments, data, code that depends on the rank, versions; the call that "
    "raised it says what is compared"
)
# Forms of `job_end` -> how a scheduler ended the job.
JOB_ENDS = {
    "time_limit": "at its time limit",
    "lsf_killed": "by its owner or an administrator (bhist -l: by whom)",
    "pbs_deleted": "as its owner or an administrator asked for it (qdel)",
}
ENDS_AT_A_LIMIT = ("time_limit", "pbs_memory")  # Moab asks PBS for the end of a job that exceeds a limit
STORE = "store->get("  # a rank that waits for another rank's id in PyTorch's store

# Names, as the kernel cuts them to 15 characters, of programs that are ranks or their workers in most jobs.
PROGRAMS_OF_RANKS = ("python", "pt_main_thread", "pt_data_worker", "ray::")
TESTS = "_perf"  # how those of nccl-tests end
# Libraries that a rank, more than a program of the machine, crashes in (of NVIDIA and AMD, MPI and the network).
LIBRARIES_OF_RANKS = (
    *("libnccl", "librccl", "libcud", "libcublas", "libnvshmem", "libtorch", "libc10", "libamdhip", "libhsa"),
    *("libmpi", "libmlx", "libibverbs", "librdmacm", "libfabric", "libucp", "libuct", "libucs", "libucc"),
)


def with_first_reason(end: str, detail: str | None) -> str:
    """Say that a process died, with the first two sentences of what is known of its end: the first one may say no more.

    >>> with_first_reason("a worker died", "It exits. Its exit code is 5. See its log.")
    'a worker died: It exits. Its exit code is 5'
    """
    sentences = ". ".join((detail or "").split(". ")[:2]).removesuffix(".")
    return f"{end}: {sentences}" if sentences else end


def signal_name(number: int) -> str:
    """Return the name of a signal.

    >>> signal_name(9), signal_name(34)
    ('SIGKILL', 'signal 34')
    """
    return SIGNALS.get(number, f"signal {number}")


def second_hand_text(name: str, *, is_of_ranks: bool) -> str:
    """Say what an exception of this class follows from.

    >>> second_hand_text("EngineDeadError", is_of_ranks=False).partition(";")[0]
    'the engine core of vLLM had ended'
    """
    meaning = SECOND_HAND_MEANINGS.get(name, "")
    return OF_RANKS if is_of_ranks else f"{meaning}; {OF_OTHERS}".removeprefix("; ")
