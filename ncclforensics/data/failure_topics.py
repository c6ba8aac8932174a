"""What the words of a failure are about, for statements of programs that no grammar knows: what failed, what to do."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """A kind of words: its category in the contract, what happened, and what to look at next."""

    category: str
    text: str
    remedy: str


# By the name of the part of grammars/unread.lark that holds its words, without `_about_`. The first that holds counts.
TOPICS = {
    "resources": Topic(
        "missing-rank",
        "a job asked for more than the cluster had for it",
        "compare what the line asks for with what the cluster has (ray status, ray list nodes; kubectl describe pod; "
        "sinfo): nodes that did not join, GPUs that another job or a dead actor holds, a host whose GPUs are not seen",
    ),
    "architecture": Topic(
        "version-mismatch",
        "code was to be compiled for a GPU that the compiler does not know",
        "compare nvidia-smi --query-gpu=name,compute_cap with what this CUDA can build for (nvcc --list-gpu-arch; "
        "torch.cuda.get_arch_list()): a GPU that is newer needs a release of PyTorch, CUDA or Triton that knows it",
    ),
    "build": Topic(
        "environment",
        "an extension could not be compiled",
        "read the first error of the compiler above it; nvcc --version must fit torch.version.cuda, and g++ must be "
        "one that nvcc takes; remove what an earlier build left (~/.cache/torch_extensions), which ranks of several "
        "hosts may share",
    ),
    "switches": Topic(
        "cuda-error",
        "the NVSwitches of a host are not set up",
        "look at systemctl status nvidia-fabricmanager on that host: it must run, and its version must be the "
        "driver's; nvidia-smi -q shows State: Completed below Fabric when it is done",
    ),
    "limits": Topic(
        "environment",
        "a process reached a limit of its host or container",
        "raise the limit that cat /proc/PID/limits shows for such a process: ulimit -n for open files; ulimit -u, and "
        "pids.max of the container, for processes and threads; LimitNOFILE of the service that started it",
    ),
    "symbol": Topic(
        "environment",
        "two libraries do not fit together",
        "a library was built against a newer version of another than the one that was loaded: see which file the "
        "dynamic linker takes (ldd of the library that is named, LD_LIBRARY_PATH, LD_PRELOAD), and whether packages "
        "hold it twice (pip list | grep -i nccl); for a symbol nccl... install the NCCL that PyTorch requires",
    ),
    "library": Topic(
        "environment",
        "a library or module could not be loaded",
        "on the host and in the container that printed it, look for the file that is named (ldd of the program, "
        "ldconfig -p), and compare LD_LIBRARY_PATH and PYTHONPATH with a process where it works; launchers do not pass "
        "these on by themselves (mpirun -x)",
    ),
    "command": Topic(
        "environment",
        "a program could not be started",
        "on the host and in the container that printed it, look whether the program is there and in PATH of a shell "
        "that is not interactive (ssh HOST which PROGRAM), and built for this processor",
    ),
    "name": Topic(
        "bootstrap",
        "the name of a host could not be looked up",
        "on the host that printed it, run getent hosts NAME; correct the name, /etc/hosts, or the DNS of the cluster",
    ),
    "rights": Topic(
        "environment",
        "access was refused",
        "as the user of the job and from the same host, try what is named: ssh -v HOST, ls -l of the path, id; for "
        "credentials of a scheduler compare the clocks of the hosts and their keys",
    ),
    "shm": Topic(
        "shm",
        "shared memory ran out",
        "run df -h /dev/shm on the host that printed it, in the container; start that with --shm-size or --ipc=host "
        "(docker gives 64 MB), in Kubernetes with an emptyDir of medium Memory at /dev/shm; fewer workers that load "
        "data, and less that each prepares in advance, take less",
    ),
    "space": Topic(
        "environment",
        "a file system took no more data",
        "run df -h and df -i on the path that is named, on the host that printed it, and look at the quota of the user",
    ),
    "storage": Topic(
        "environment",
        "a file system failed",
        "on the host that printed it, run ls and df on the path, and read dmesg -T for errors of the disk or of the "
        "network file system at that time",
    ),
    "resolution": Topic(
        "ib-error",
        "an RDMA device did not find its peer: the address was not resolved in time",
        "RoCE looks for the peer's address on the network when a queue pair is made ready (RTR): on both hosts compare "
        "show_gids with the GID index in use, ping the other address from that interface (ping -I), and look at ip "
        "neigh, routes and VLANs",
    ),
    "rdma": Topic(
        "ib-error",
        "an operation on an RDMA device failed",
        "on the host that printed it, look at ibv_devinfo (is the device there, is its port active), at ulimit -l and "
        "at dmesg -T; too little memory there often is a limit of locked memory, or of queue pairs or work requests",
    ),
    "host_memory": Topic(
        "oom",
        "memory of a host or container ran out",
        "on the host that printed it, look at free -h, the memory limit of the container or job (cgroup: memory.max) "
        "and dmesg -T (OOM killer), df -h /dev/shm, and ulimit -l for locked memory; with many processes on a host, "
        "data loaders and pinned buffers add up",
    ),
    "memory": Topic(
        "oom",
        "memory ran out",
        "find out which memory: nvidia-smi for that of the GPU; free -h, the limit of the cgroup and dmesg -T (OOM "
        "killer) for that of the host; df -h /dev/shm; ulimit -l for locked memory",
    ),
    "damage": Topic(
        "cuda-error",
        "memory, or an NVLink of a GPU, had errors that could not be corrected",
        "on the host that printed it, look at nvidia-smi -q -d ECC,ROW_REMAPPER, nvidia-smi nvlink -e and dmesg -T for "
        "Xid (48, 74, 94, 95); drain the host and reset the GPU, or replace the DIMM that the line names",
    ),
    "kernel": Topic(
        "cuda-error",
        "a kernel of a GPU failed",
        "the call that reports it is not the one that failed: run again with CUDA_LAUNCH_BLOCKING=1, or under "
        "compute-sanitizer; read dmesg -T of its host for Xid: 13 and 31 are the program's, 48, 74, 94, 95 the GPU's",
    ),
    "nccl": Topic(
        "init-failure",
        "a call of NCCL failed or did not end",
        "find NCCL's first warning on this rank and on its peers (NCCL_DEBUG=WARN at least, on all ranks): where it "
        "speaks of a remote process or of a completion from a peer, look at that one first",
    ),
    "intel": Topic(
        "cuda-error",
        "an error that names a GPU of Intel or what drives it",
        "read the line and what stands before it; run xpu-smi discovery and xpu-smi health -l on that host and in the "
        "container, and read dmesg -T there for i915 and xe",
    ),
    "gpu": Topic(
        "cuda-error",
        "an error that names CUDA, a GPU or its driver",
        "read the line and what stands before it; run nvidia-smi on that host and in the container: if it works on the "
        "host alone, the container was not "
        "started with the runtime of NVIDIA, or has another driver library; if it fails, read dmesg -T for Xid",
    ),
    "port": Topic(
        "environment",
        "a port was in use already",
        "on the host that printed it, run ss -ltnp for the port: end what an earlier run left there, or take another",
    ),
    "refusal": Topic(
        "peer-lost",
        "a connection was refused: nothing listened at its address",
        "on the host of the address that is named, look whether the program that should listen runs (ss -ltnp), and "
        "what it printed last; an address without a host means that its name was empty",
    ),
    "route": Topic(
        "peer-lost",
        "a host could not be reached",
        "from the host that printed it, run ip route get ADDRESS and ping; look at its interfaces and the firewall",
    ),
    "closing": Topic(
        "peer-lost",
        "the other end of a connection closed it",
        "it mostly follows from the end of the process at the other end: look there for the first error",
    ),
    "standing": Topic(
        "hang",
        "a program found that it makes no progress",
        "while it stands still, take the stacks of all ranks (py-spy dump --native --pid PID), and collect NCCL's log "
        "of each rank",
    ),
    "waiting": Topic(
        "timeout",
        "something did not come in time",
        "look at what was waited for: whether the host and port that are named can be reached from the host that "
        "printed it, and what the program there did at that time",
    ),
    "file": Topic(
        "environment",
        "a file was not there",
        "on the host and in the container that printed it, run ls -l on the path that is named: whether it is mounted "
        "there, and was written before it was read",
    ),
    "request": Topic(
        "application-error",
        "a process was told to end",
        "look for who sent the signal, and why: a scheduler at a limit, a script that ends the job, or a user; memory "
        "that runs out ends a process by SIGKILL",
    ),
    "worker": Topic(
        "application-error",
        "a process that loads data was killed or ended",
        "on the host that printed it, read dmesg -T (OOM killer) and df -h /dev/shm for that time: for a bus error "
        "start the container with --shm-size or --ipc=host (docker gives 64 MB); fewer workers that each prepare less "
        "data in advance take less of both",
    ),
    "crashed_worker": Topic(
        "application-error",
        "a process that loads data crashed",
        "read what that worker printed before it (what(), an assertion, a fatal error of Python), and its core file; "
        "mostly a library that was in use before the fork: CUDA, OpenMP, a client of storage; try "
        "multiprocessing_context='spawn', and num_workers=0, where the process raises the error itself",
    ),
    "crash": Topic(
        "application-error",
        "a process crashed or was killed",
        "look at the lines of that process before it, at its core file, and at dmesg -T of its host (segfault, OOM "
        "killer, Xid) at that time",
    ),
    "version": Topic(
        "version-mismatch",
        "versions do not fit",
        "compare the versions that are named on all hosts and containers of the job",
    ),
    "exit": Topic(
        "application-error",
        "a process ended with an error",
        "read what that process printed last, and dmesg -T of its host at that time",
    ),
    "call": Topic(
        "peer-lost",
        "a call to another process failed",
        "read the log of the process that was called, at that time: the first error stands there",
    ),
}
OTHER_TOPIC = Topic(
    "application-error",
    "a program reports an error",
    "read the cited lines and those around them as they stand, the first in time before all others",
)
# Topics of warnings that are quoted: others stand in logs of jobs that work, too, as of libraries that are optional.
OF_WARNINGS = (
    "space",
    "storage",
    "resolution",
    "rdma",
    "host_memory",
    "memory",
    "refusal",
    "route",
    "closing",
    "standing",
    "waiting",
    "call",
)
# Topics of the message of an exception: what the system refused, which the line of the program does not explain.
OF_EXCEPTIONS = (
    "resources", "architecture", "build", "switches", "limits", "symbol", "library", "name", "rights", "shm", "space",
    "storage", "host_memory", "memory", "port", "refusal", "route", "file", "request", "worker", "crashed_worker",
)  # fmt: skip
