"""What a process does, by the functions on its stack; each entry names the place and why it is in that class.

Read in the sources of PyTorch 2.0 to 2.15, CPython 3.8 to 3.14, Triton 3, vLLM 0.6 to 0.11 and SGLang 0.4 to 0.5.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

COLLECTIVE = "collective"
BACKWARD = "backward pass"
GPU = "GPU"
DATA = "data loader"
CHECKPOINT = "checkpoint or file system"
LOCK = "lock, queue or other thread"
COMPILE = "compiler"
STORE = "store or rendezvous"
TEARDOWN = "exception handler or teardown"
CHILD = "child process"
IMPORT, NETWORK, SLEEP = "import of modules", "network", "sleep"
PROMPT = "waits for somebody to type"
REQUESTS = "wait for requests"
PYTHON = "own code"
THREAD = "a thread beside the main one, whose stack is not shown"
THREAD_OF_NCCL = "a thread that NCCL started beside the main one, whose stack is not shown"
CUT = "its innermost calls are not shown"
TRACEBACK = "traceback"  # as a tool that shows a stack: Python itself
UNSHOWN = (THREAD, THREAD_OF_NCCL, CUT)  # where the main thread stands is not known

# A rank in one of these may wait for other ranks: a GPU runs collectives, and the backward pass reduces gradients.
WAITING = (COLLECTIVE, BACKWARD, GPU, *UNSHOWN)
# The stack shows a call that waits: the rank does not compute.
BLOCKED = (DATA, CHECKPOINT, LOCK, STORE, TEARDOWN, CHILD, NETWORK, SLEEP, PROMPT)


class Place(NamedTuple):
    """A part of a file's path, functions in it (none: all), and the class of a stack that holds one of them.

    `is_general`: many parts of a program call it; another place further out on the stack says more.
    """

    path: str
    functions: frozenset[str]
    kind: str
    reason: str
    is_general: bool = False


def _place(path: str, functions: str, kind: str, reason: str, *, is_general: bool = False) -> Place:
    return Place(path, frozenset(functions.split()), kind, reason, is_general)


# The calls of torch.distributed in which a rank waits for others.
COLLECTIVES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list "
    "gather gather_object irecv isend monitored_barrier recv recv_object_list reduce reduce_scatter "
    "reduce_scatter_single reduce_scatter_tensor scatter scatter_object_list send send_object_list _all_gather_base "
    "_reduce_scatter_base _coalescing_manager"
)
POINT_TO_POINT = frozenset(
    {"batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list"}
)

# The calls in which all ranks meet at the store; a rank in one of them waits for the others.
MEETINGS = frozenset(
    {"init_process_group", "new_group", "split_group", "new_subgroups", "new_subgroups_by_enumeration"}
)

PLACES = (
    _place("torch/distributed/distributed_c10d.py", COLLECTIVES, COLLECTIVE, "waits in Work.wait for the other ranks"),
    _place(
        "torch/distributed/distributed_c10d.py",
        "init_process_group new_group split_group new_subgroups new_subgroups_by_enumeration _new_group_with_tag "
        "_new_process_group_helper _store_based_barrier",
        STORE,
        "a new group exchanges addresses and ids through the store",
    ),
    _place(
        "torch/distributed/distributed_c10d.py",
        "destroy_process_group _shutdown_backend _abort_process_group",
        TEARDOWN,
        "ends the process group",
    ),
    _place(
        "torch/distributed/_functional_collectives.py", "", COLLECTIVE, "wait_tensor and the functional collectives"
    ),
    _place("torch/distributed/nn/functional.py", "", COLLECTIVE, "collectives with gradients"),
    _place("torch/distributed/utils.py", "_verify_param_shape_across_processes", COLLECTIVE, "DDP compares the models"),
    _place("deepspeed/comm/", "", COLLECTIVE, "DeepSpeed's calls of torch.distributed"),
    _place("horovod/torch/mpi_ops.py", "", COLLECTIVE, "Horovod's collectives"),
    _place("mpi4py/", "", COLLECTIVE, "MPI's collectives"),
    _place("device_communicators/pynccl.py", "", COLLECTIVE, "vLLM's and SGLang's own calls of NCCL"),
    _place("device_communicators/custom_all_reduce.py", "", COLLECTIVE, "all_reduce over peer memory"),
    _place(
        "device_communicators/shm_broadcast.py",
        "acquire_read acquire_write dequeue enqueue broadcast_object wait_until_ready",
        COLLECTIVE,
        "a worker waits for the work that rank 0 broadcasts",
    ),
    _place("sglang/srt/utils", "broadcast_pyobj point_to_point_pyobj", COLLECTIVE, "requests sent from rank 0"),
    _place("torch/autograd/graph.py", "_engine_run_backward", BACKWARD, "gradients are reduced in its hooks"),
    _place("torch/autograd/__init__.py", "backward grad", BACKWARD, "gradients are reduced in its hooks"),
    _place(
        "torch/cuda/", "synchronize current_stream_synchronize wait wait_event query replay", GPU, "waits for a GPU"
    ),
    _place("torch/utils/data/", "", DATA, "DataLoader waits for its workers, or reads a sample itself"),
    _place("torchdata/", "", DATA, "data pipes"),
    _place("webdataset/", "", DATA, "reads samples from archives"),
    _place("nvidia/dali/", "", DATA, "DALI's pipelines"),
    _place("streaming/base/", "", DATA, "MosaicML Streaming fetches shards"),
    _place("datasets/", "__iter__ __getitem__ _getitem map load_dataset", DATA, "Hugging Face datasets"),
    _place("torch/serialization.py", "", CHECKPOINT, "torch.save and torch.load"),
    _place("torch/distributed/checkpoint/", "", CHECKPOINT, "distributed checkpoints"),
    _place("checkpoint_engine/", "", CHECKPOINT, "DeepSpeed's checkpoint engines"),
    _place("dist_checkpointing/", "", CHECKPOINT, "Megatron Core's distributed checkpoints"),
    _place("safetensors/", "", CHECKPOINT, "reads or writes weights"),
    _place("fsspec/", "", CHECKPOINT, "remote file systems"),
    _place("s3fs/", "", CHECKPOINT, "objects in S3"),
    _place("gcsfs/", "", CHECKPOINT, "objects in Google Cloud Storage"),
    _place("botocore/", "", CHECKPOINT, "objects in S3"),
    _place("shutil.py", "", CHECKPOINT, "copies or moves files", is_general=True),
    _place("zipfile.py", "", CHECKPOINT, "writes an archive", is_general=True),
    _place("os.py", "makedirs walk scandir replace fsync", CHECKPOINT, "works on folders", is_general=True),
    _place("torch/_inductor/", "", COMPILE, "Inductor generates and compiles kernels"),
    _place("torch/_dynamo/convert_frame.py", "", COMPILE, "on the stack only while Dynamo traces a function"),
    _place("torch/_dynamo/symbolic_convert.py", "", COMPILE, "on the stack only while Dynamo traces a function"),
    _place("triton/compiler/", "", COMPILE, "Triton compiles a kernel"),
    _place("triton/runtime/autotuner.py", "", COMPILE, "Triton measures variants of a kernel"),
    _place(
        "torch/utils/cpp_extension.py", "", COMPILE, "builds an extension, under a lock that all ranks of a host share"
    ),
    _place("torch/utils/file_baton.py", "", COMPILE, "waits for the process that builds an extension"),
    _place("torch/distributed/rendezvous.py", "", STORE, "connects to the store"),
    _place("torch/distributed/elastic/rendezvous/", "", STORE, "elastic rendezvous"),
    _place("torch/distributed/elastic/utils/store.py", "", STORE, "barrier over the store"),
    _place("sglang/srt/managers/scheduler.py", "recv_requests", REQUESTS, "rank 0 polls for requests"),
    _place("vllm/v1/engine/core.py", "_process_input_queue", REQUESTS, "the engine has no request to run"),
    _place("zmq/", "", REQUESTS, "waits for a message of another process", is_general=True),
    _place("asyncio/base_events.py", "_run_once run_forever", REQUESTS, "an event loop without work", is_general=True),
    _place("threading.py", "_shutdown", TEARDOWN, "the interpreter ends and joins its threads"),
    _place("concurrent/futures/thread.py", "_python_exit", TEARDOWN, "the interpreter ends and joins its threads"),
    _place("multiprocessing/util.py", "_exit_function _run_finalizers", TEARDOWN, "the interpreter ends its children"),
    _place("logging/__init__.py", "shutdown", TEARDOWN, "the interpreter ends and flushes logs"),
    _place("traceback.py", "", TEARDOWN, "formats an exception"),
    _place("linecache.py", "", TEARDOWN, "reads source lines for a traceback"),
    _place("elastic/multiprocessing/errors/", "record_exception _write_error_file", TEARDOWN, "records an exception"),
    _place("pdb.py", "", PROMPT, "Python's debugger"),
    _place("getpass.py", "", PROMPT, "asks for a password or a token"),
    _place("wandb/sdk/lib/apikey.py", "prompt_api_key", PROMPT, "asks which account to use"),
    _place("subprocess.py", "", CHILD, "waits for a program that it started", is_general=True),
    _place("multiprocessing/popen_fork.py", "poll wait", CHILD, "waits for a process that it started", is_general=True),
    _place("jax/_src/array.py", "_value block_until_ready", GPU, "waits for the value of an array"),
    _place("importlib._bootstrap", "", IMPORT, "modules on a file system that all hosts read at once", is_general=True),
    _place(
        "threading.py",
        "acquire wait wait_for join _wait_for_tstate_lock __enter__",
        LOCK,
        "waits for a thread",
        is_general=True,
    ),
    _place("queue.py", "get put join", LOCK, "waits for another thread", is_general=True),
    _place("multiprocessing/queues.py", "get put", LOCK, "waits for another process", is_general=True),
    _place("multiprocessing/synchronize.py", "", LOCK, "a lock of several processes", is_general=True),
    _place("concurrent/futures/_base.py", "result wait", LOCK, "waits for another thread", is_general=True),
    _place("filelock/", "", LOCK, "a lock on a file, which processes of several hosts may share", is_general=True),
    _place("fasteners/", "", LOCK, "a lock on a file", is_general=True),
    _place("socket.py", "", NETWORK, "waits for a peer", is_general=True),
    _place("ssl.py", "", NETWORK, "waits for a peer", is_general=True),
    _place("http/client.py", "", NETWORK, "waits for a server", is_general=True),
    _place("urllib3/", "", NETWORK, "waits for a server", is_general=True),
    _place("requests/", "", NETWORK, "waits for a server", is_general=True),
    _place("aiohttp/", "", NETWORK, "waits for a server", is_general=True),
    _place("wandb/", "", NETWORK, "reports metrics", is_general=True),
    _place("mlflow/", "", NETWORK, "reports metrics", is_general=True),
    _place("huggingface_hub/", "", NETWORK, "downloads from the hub", is_general=True),
)

PROFILED = "pnccl"  # the names under which a profiler's library reaches NCCL's functions, which debuggers may show

# Functions of C and C++ by the beginning of their names, for stacks without Python's frames; the first that fits.
NATIVE = (
    ("c10d::Work::wait", COLLECTIVE, "waits for a collective"),
    ("c10d::ProcessGroupNCCL::WorkNCCL::", COLLECTIVE, "waits for a collective"),
    ("c10d::ops::", COLLECTIVE, "calls a collective"),
    ("gloo::", COLLECTIVE, "gloo's collectives"),
    ("ncclCommInit", COLLECTIVE, "all ranks of a new communicator meet"),
    ("ncclGroupEnd", COLLECTIVE, "launches a collective; the first one connects to peers"),
    ("ncclAll", COLLECTIVE, "launches a collective"),
    ("ncclReduce", COLLECTIVE, "launches a collective"),
    ("ncclBroadcast", COLLECTIVE, "launches a collective"),
    ("ncclCommDestroy", TEARDOWN, "waits for the work of a communicator"),
    ("ncclCommAbort", TEARDOWN, "aborts a communicator"),
    ("c10d::ProcessGroupNCCL::abort", TEARDOWN, "waits for the thread that aborts its communicators"),
    ("c10d::ProcessGroupNCCL::shutdown", TEARDOWN, "waits for its work, then for the end of its communicators"),
    ("PMPI_", COLLECTIVE, "MPI"),
    ("MPI_", COLLECTIVE, "MPI"),
    ("c10d::TCPStore", STORE, "waits for the store"),
    ("c10d::PrefixStore", STORE, "waits for the store"),
    ("torch::autograd::Engine::execute", BACKWARD, "gradients are reduced in its hooks"),
    ("cudaStreamSynchronize", GPU, "waits for a GPU"),
    ("cudaDeviceSynchronize", GPU, "waits for a GPU"),
    ("cudaEventSynchronize", GPU, "waits for a GPU"),
    ("cudaMemcpy", GPU, "copies after earlier work of the GPU"),
    ("cudaLaunchKernel", GPU, "the queue of the GPU is full"),
    ("cuStreamSynchronize", GPU, "waits for a GPU"),
    ("cuCtxSynchronize", GPU, "waits for a GPU"),
    ("cuEventSynchronize", GPU, "waits for a GPU"),
    ("cuLaunchKernel", GPU, "the queue of the GPU is full"),
    *((name, GPU, "memory, for which it may wait") for name in ("cudaFree", "cudaHost", "cudaMalloc", "cuMem")),
    ("libcuda", GPU, "in the CUDA driver, whose functions have no names"),
    ("caffe2::serialize::", CHECKPOINT, "reads or writes an archive of torch.save"),
    ("take_gil", LOCK, "waits for the interpreter's lock"),
    ("PyThread_acquire_lock", LOCK, "waits for a lock"),
    ("lock_PyThread_acquire_lock", LOCK, "waits for a lock"),
    ("Py_FinalizeEx", TEARDOWN, "the interpreter ends"),
    ("pysleep", SLEEP, "time.sleep"),
    ("time_sleep", SLEEP, "time.sleep"),
    ("clock_nanosleep", SLEEP, "sleeps"),
    ("__GI___clock_nanosleep", SLEEP, "sleeps"),
    ("nanosleep", SLEEP, "sleeps"),
    ("sock_recv", NETWORK, "waits for a peer"),
    ("wait4", CHILD, "waits for a process that it started"),
    ("waitpid", CHILD, "waits for a process that it started"),
)

# The outermost functions of a thread that is not the main one: of the C library, of threading.py, and of NCCL.
STARTS_OF_LIBRARIES = ("clone", "clone3", "start_thread", "std::execute_native_thread_routine", "_bootstrap")
THREAD_STARTS = (
    *STARTS_OF_LIBRARIES,
    *("ncclProxyProgress", "ncclProxyService", "ncclProxyServiceUDS", "ncclIbAsyncThreadMain", "ncclRasThreadMain"),
    *("persistentSocketThread", "bootstrapRoot"),
)

# Functions in which a thread waits for a lock of its own process, and the library whose lock it is.
LOCK_FUNCTIONS = ("pthread_mutex_lock", "pthread_rwlock_", "lll_lock_wait", "futex_wait")
DRIVER = "libcuda"

NATIVE_MEANS = (SLEEP,)  # how a function waits, not what it waits for: a call further out says more

# Processes that are no ranks: launchers, and the helpers of a rank (py-spy --subprocesses shows them, too).
NO_RANK = (
    _place("torch/utils/data/_utils/worker.py", "_worker_loop", DATA, "a worker of a DataLoader"),
    _place("torch/_inductor/compile_worker/", "", COMPILE, "a worker that compiles kernels"),
    _place("torch/distributed/elastic/agent/", "", PYTHON, "torchrun's agent"),
    _place("torch/distributed/launcher/", "", PYTHON, "torchrun's agent"),
    _place("torch/multiprocessing/spawn.py", "join spawn start_processes", PYTHON, "the parent of spawned ranks"),
    _place("multiprocessing/resource_tracker.py", "main", PYTHON, "a helper of multiprocessing"),
    _place("multiprocessing/semaphore_tracker.py", "main", PYTHON, "a helper of multiprocessing"),
    _place("multiprocessing/forkserver.py", "main", PYTHON, "a helper of multiprocessing"),
    _place("deepspeed/launcher/", "", PYTHON, "DeepSpeed's launcher"),
    _place("accelerate/commands/launch.py", "", PYTHON, "the launcher of accelerate"),
    _place(
        "data_parallel_controller.py",
        "run_data_parallel_controller_process",
        PYTHON,
        "SGLang's dispatcher, which waits for the schedulers that it started on all nodes but the first",
    ),
    _place("detokenizer_manager.py", "run_detokenizer_process", PYTHON, "SGLang's process that turns tokens into text"),
)

# torchrun starts its ranks one after the other: SubprocessContext._start in torch/distributed/elastic/multiprocessing.
IN_ORDER = tuple(place for place in NO_RANK if place.path.startswith("torch/distributed/"))

# Packages whose frames are not the user's own code; py-spy prints paths below site-packages and the standard library.
LIBRARIES = frozenset(
    {
        "torch", "torchvision", "torchaudio", "torchdata", "triton", "numpy", "pandas", "PIL", "deepspeed",
        "transformers", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "peft", "trl",
        "datasets", "ray", "vllm", "sglang", "flashinfer", "xformers", "apex", "transformer_engine", "horovod",
        "mpi4py", "streaming", "webdataset", "nvidia", "safetensors", "fsspec", "s3fs", "gcsfs", "botocore", "boto3",
        "urllib3", "requests", "aiohttp", "wandb", "mlflow", "huggingface_hub", "filelock", "fasteners", "tqdm",
        "psutil", "zmq", "uvloop", "pydantic", "fire", "hydra", "omegaconf", "click", "typer",
    }
)  # fmt: skip
LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/", "/lib/python")
# Of packages that are mostly run from a checkout.
CHECKOUTS = (
    *("/megatron/core/", "/megatron/training/", "/sglang/srt/", "/nemo/core/", "/nemo/lightning/"),
    *("/vllm/v1/", "/vllm/engine/", "/vllm/executor/", "/vllm/worker/"),
)
# Of launchers, whose own tracebacks tell only that a process that they started failed.
OF_LAUNCHERS = (
    *("torch/distributed/run.py", "torch/distributed/launch.py", "torch/distributed/launcher/"),
    *("torch/distributed/elastic/", "accelerate/commands/", "deepspeed/launcher/", "/bin/torchrun", "/bin/accelerate"),
)
# Of blocks of `with`, which raise what happened in the block: a time-out, or what a generator met.
OF_BLOCKS = ("contextlib.py", "async_timeout.py", "timeouts.py", "runners.py")
TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "tensorboard", "tensorboardX", "trackio")
_STANDARD = sys.stdlib_module_names - {"__main__", "test"}


def is_library(file: str) -> bool:
    """Whether a file belongs to Python or to a known package, not to the user's own program.

    >>> is_library("torch/distributed/distributed_c10d.py"), is_library("selectors.py"), is_library("/mnt/job/train.py")
    (True, True, False)
    """
    return is_installed(file) or any(folder in file for folder in CHECKOUTS)


def is_of_launcher(file: str) -> bool:
    """Whether a file belongs to a launcher.

    >>> is_of_launcher("/opt/site-packages/torch/distributed/run.py"), is_of_launcher("/opt/train.py")
    (True, False)
    """
    return any(part in file for part in OF_LAUNCHERS)


def is_of_tracker(file: str) -> bool:
    """Whether a file belongs to a tracker of experiments.

    >>> is_of_tracker("/opt/site-packages/wandb/sdk/wandb_run.py"), is_of_tracker("/mnt/wandb.py")
    (True, False)
    """
    return any(f"/{package}/" in f"/{file}" for package in TRACKERS)


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to a package that is installed; a checkout of one may be changed."""
    if file.startswith("<"):
        return True
    if any(folder in file for folder in LIBRARY_FOLDERS) or ("/bin/" in file and not file.endswith(".py")):
        return True
    first = file.partition("/")[0].removesuffix(".py")
    return first in LIBRARIES or first in _STANDARD


def own_files(files: Iterable[str]) -> list[str]:
    """Return the files of Python that are the user's own program, sorted."""
    return sorted(file for file in files if file.endswith(".py") and not is_library(file))


def short_name(function: str) -> str:
    """Return the name of a function without its class and what encloses it.

    >>> short_name("_exception_logger.<locals>.wrapper"), short_name("Condition.wait"), short_name("<module>")
    ('wrapper', 'wait', '<module>')
    """
    return function.rpartition(".")[2]


def system_call(function: str) -> str:
    """Return the name by which programs know a function of the C library, whose symbols carry other names.

    >>> system_call("__GI___libc_read"), system_call("___pthread_cond_wait"), system_call("c10d::Work::wait")
    ('read', 'pthread_cond_wait', 'c10d::Work::wait')
    """
    return function.removeprefix("__GI_").lstrip("_").removeprefix("libc_") if function.startswith("__") else function


def is_of_driver_lock(frames: Iterable[tuple[str, str]]) -> bool:
    """Whether a stack, given as functions and their libraries from the deepest on, waits for a lock of the CUDA driver.

    >>> is_of_driver_lock([("__lll_lock_wait", "/lib/libc.so.6"), ("??", "/lib/libcuda.so.1"), ("ncclGroupEnd", "")])
    True
    """
    is_lock = False
    for function, library in frames:
        if system_call(function).startswith(LOCK_FUNCTIONS):
            is_lock = True
        else:
            return is_lock and (function.startswith(DRIVER) or library.rpartition("/")[2].startswith(DRIVER))
    return False


def is_c_library(file: str) -> bool:
    """Whether a file is a source of the C library, as debuggers print it.

    >>> is_c_library("../sysdeps/unix/sysv/linux/read.c"), is_c_library("./nptl/futex-internal.c")
    (True, True)
    """
    return file.startswith(("../sysdeps/", "./nptl/", "../nptl/", "./io/", "./socket/", "./posix/"))


def place_of(places: tuple[Place, ...], function: str, file: str) -> Place | None:
    """Return the first place that a frame of Python is at."""
    name, path = short_name(function), f"/{file.replace('<frozen ', '')}"
    for place in places:
        if f"/{place.path}" in path and (not place.functions or name in place.functions):
            return place
    return None


def native_kind(function: str) -> str | None:
    """Return the class of a function of C or C++, or None.

    >>> native_kind("c10d::Work::wait"), native_kind("pncclCommInitRankConfig"), native_kind("epoll_wait")
    ('collective', 'collective', None)
    """
    name = function.removeprefix("p") if function.startswith(PROFILED) else function
    return next((kind for beginning, kind, _ in NATIVE if name.startswith(beginning)), None)


# Names of folders for stacks that were taken at one moment, without the number or date behind: `stacks-2`, `t1`.
MOMENTS = ("", "stack", "stacks", "dump", "dumps", "pyspy", "py-spy", "gdb", "round", "look", "sample", "time", "t")
