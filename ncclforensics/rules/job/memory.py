"""Out of memory on hosts, GPUs and /dev/shm, and shared memory that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import BROKEN_MEMORY, GPU_MEMORY, HOST_MEMORY, OUT_OF_MEMORY, RAY, SIGNAL
from ncclforensics.data.cuda import HARDWARE, HIP, MEMORY, PEER, SELF_EXPLAINED
from ncclforensics.data.names import shown
from ncclforensics.data.processes import BUS_ERROR, KILL
from ncclforensics.data.versions import CUMEM_HOST, CUMEM_HOST_OPTIONAL, release
from ncclforensics.frames.columns import PLACE, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import (
    exit_finding,
    first_exits,
    is_kernel_log_alone,
    kernel_log_ends,
    unsettled_exits,
)
from ncclforensics.rules.shared.gpu_memory import allocator_of, memory_state
from ncclforensics.rules.shared.grouping import error_finding, evidence_lines, group_finding

# Where it was no call of NCCL that got no memory.
OF_PROGRAM = (
    "see with nvidia-smi on that host whether the GPU is full, and who fills it: another process (an earlier run, a "
    "rank on the wrong GPU), or this one (smaller batch, states of the optimizer on several ranks, vLLM: a lower "
    "gpu_memory_utilization); if it is not, raise the limit of locked memory (ulimit -l; in WSL2 that of .wslconfig)"
)
OUT_OF_VRAM = (
    "compare with rocm-smi --showmeminfo vram: if the GPU is full, leave some GiB to RCCL (vLLM: "
    "gpu_memory_utilization), or use fewer channels (NCCL_MAX_NCHANNELS); if it is not, raise the limit of locked "
    "memory (ulimit -l), and look at dmesg -T | grep amdgpu"
)
UNCORRECTABLE = "UE"  # as EDAC prints it
OF_SLURM = ["srun", "Slurm"]
SEARCHES = ["invoked", "control_group"]  # forms of the lines before the kernel kills a process
SHARED = ["transport/shm", "misc/shmutils", "include/shm"]
# Errors of the system -> what to do about them.
SEGMENT_REMEDIES = {
    "No such file or directory": (
        "let the processes of a host share /dev/shm (--ipc=host, or one container); look for a peer that ended before;"
        " to narrow it down, run once with NCCL_SHM_DISABLE=1"
    ),
    "Permission denied": "correct the access rights of /dev/shm (drwxrwxrwt), and remove segments of other users",
}


@rule(Category.OOM, Severity.ERROR, of=("process_exit",), hang=True)
def oom_host(process_exit: pl.DataFrame, kernel_kill: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The system killed a process because the host, the container or the job was out of memory.

    Means: SIGKILL ended the process without an error message of its own. Closed connections and time-outs of the other
    ranks follow.
    Not when: the kernel's line is about another program or another day: it counts only if it names a process of this
    run, if the run lost a process, or, as a possibility, if the kernel log was given by itself and the program is
    Python, Ray or a test of nccl-tests. Other programs of such a log are a note.
    Do: raise the memory limit of the job or container; check data loader workers, pinned buffers and checkpoints, which
    peak at the same time on all ranks of a node.
    Sources: NVRx; Slurm, cgroup.conf; kernel, mm/oom_kill.c.
    """
    killed = first_exits(process_exit, HOST_MEMORY)
    if killed.is_empty():
        if is_kernel_log_alone(rank, process_exit):
            searched = kernel_kill.filter(text_of("form").is_in(SEARCHES)).sort("source", "line")
            for finding in kernel_log_ends(process_exit.filter(how=HOST_MEMORY), _killed_text):
                finding.evidence += evidence_lines(searched)[:1]
                yield finding
        return
    # Slurm, and a kernel outside of the container, do not name the process: it is the one that SIGKILL ended.
    is_unknown = killed["rank_id"].is_null().any()
    rows = pl.concat([killed, first_exits(process_exit, SIGNAL).filter(signal=KILL)]) if is_unknown else killed
    reporters = ", ".join(sorted(set(killed["reporter"])))
    certainty = "certain" if not is_unknown else "likely"
    title = f"{{processes}} killed: {_what_ran_out(rows)}"
    used = next(iter(killed.filter(reporter=RAY)["message"]), "")
    yield exit_finding(rows, rank, title, f"reported by {reporters}" + f": {used}" * bool(used), certainty)


def _what_ran_out(rows: pl.DataFrame) -> str:
    """Say whose memory ran out, by the reports of ended processes that know."""
    known = rows["memory_of"].filter(rows["memory_of"] != "").unique()
    return OUT_OF_MEMORY[known[0] if len(known) == 1 else ""]


def _killed_text(rows: pl.DataFrame) -> str:
    return f"killed: {_what_ran_out(rows)}"


@rule(Category.OOM, Severity.ERROR, of=("process_exit",), hang=True)
def oom_gpu(
    process_exit: pl.DataFrame, gpu_exception: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame
) -> Iterator[Finding]:
    """The application ran out of GPU memory and ended.

    Means: one rank's model, batch or cache did not fit; the other ranks wait for it, or lose their connection.
    Not when: the application caught the error and tried again with less; therefore an error without a rank counts only
    if processes ended, or its log ends soon after it; elsewhere it is a possibility (info), unless the job
    ended well.
    Do: see with nvidia-smi whether another process holds memory of that GPU (the line tells capacity, what is free and
    what this process has); else compare memory over ranks at that step; smaller batch,
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    Sources: PyTorch, CUDA semantics (memory management); JAX, GPU memory allocation; XLA, tf_allocator_adapter.h;
    TensorFlow, core/framework/op_kernel.cc.
    """
    rows = first_exits(process_exit, GPU_MEMORY)
    if not rows.is_empty():
        state, remedy = memory_state(rows, gpu_exception)
        detail = f"{_asked_for(rows)}{state}reported by {allocator_of(rows, gpu_exception)}'s allocator"
        certainty = "certain" if rows["rank"].is_not_null().all() else "likely"
        finding = exit_finding(rows, rank, "out of GPU memory on {processes}", detail, certainty)
        finding.remedy = remedy
        yield finding
        return
    unsettled = unsettled_exits(process_exit, verdict, GPU_MEMORY)
    for (is_near_end,), rows in unsettled.group_by("is_near_end", maintain_order=True):
        state, remedy = memory_state(rows, gpu_exception)
        goes_on = "" if is_near_end else "the log goes on after it: "
        unsure = f"{goes_on}the program may have caught it"
        detail = f"{_asked_for(rows)}{state}reported by {allocator_of(rows, gpu_exception)}'s allocator; {unsure}"
        certainty = "likely" if is_near_end else "possible"
        finding = exit_finding(rows, rank, "out of GPU memory on {processes}", detail, certainty)
        if not is_near_end:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        finding.remedy = remedy
        yield finding


def _asked_for(rows: pl.DataFrame) -> str:
    """Say what the allocator was asked for, where all processes tell the same; each numbers the GPUs that it sees."""
    asked = rows["message"].unique()
    return f"{asked[0]}; " if len(asked) == 1 and asked[0] else ""


@rule(Category.OOM, Severity.ERROR, of=("cuda_error", "failure"), hang=True)
def cuda_oom_in_nccl(cuda_error: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """CUDA, or the host, had no memory left for NCCL's buffers.

    Means: mostly the framework had allocated all memory of the GPU before; NCCL's buffers grow with channels and peers.
    CUDA says the same where pinned memory of the host ran out, which WSL2 and containers limit, while the GPU has
    memory. On the host, malloc failed.
    Not when: the limit on locked memory was reached (`Cannot allocate memory` of a verbs call); the process had an
    error of the GPU itself before, from which this follows.
    Do: compare with nvidia-smi: if the GPU is full, leave some GiB to NCCL (vLLM: gpu_memory_utilization), fewer
    channels (NCCL_MAX_CTAS), smaller NCCL_BUFFSIZE; if it is not, raise the limit of locked memory (ulimit -l; in WSL2
    that of .wslconfig), or try NCCL_SHM_DISABLE=1 once.
    Sources: openxla/xla#7201; nccl: src/include/alloc.h; CUDA on WSL user guide, limitations (pinned memory).
    """
    errors = cuda_error.filter(kind=MEMORY)
    if not errors.is_empty():
        runtime = errors["runtime"][0]
        library = "RCCL" if runtime == HIP else "NCCL"
        for_whom = f"for {library} " if "NCCL" in set(errors["reporter"]) else ""
        finding = error_finding(
            errors,
            rank,
            f"{runtime} had no memory left {for_whom}on {{processes}}",
            f"{runtime} returned: out of memory; of the GPU, or of pinned host memory: the line does not show which",
            "certain",
        )
        finding.remedy = OUT_OF_VRAM if runtime == HIP else "" if for_whom else OF_PROGRAM
        if (
            not cuda_error.filter(kind=HARDWARE)
            .join(errors, on=["host", "pid"], how="semi", nulls_equal=True)
            .is_empty()
        ):
            finding.role = Role.CONSEQUENCE  # of a GPU that failed
        yield finding
        return
    refused = failure.filter(form="out_of_memory")
    if not refused.is_empty():
        what = "GPU" if refused["allocation"].is_not_null().any() else "host"
        size = refused["received"].max()
        detail = f"an allocation of {shown(size)} bytes failed"
        yield group_finding(refused, rank, f"no {what} memory left for NCCL on {{processes}}", detail, "certain")


@rule(Category.SHM, Severity.ERROR, of=("failure", "shared_memory", "process_exit"), hang=True)
def shm_too_small(
    failure: pl.DataFrame, shared_memory: pl.DataFrame, process_exit: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """/dev/shm is full, or smaller than NCCL needs.

    Means: Docker gives a container 64 MiB by default, and NCCL needs about 10 MiB for each connection between GPUs
    through host memory. Versions before 2.19 may crash with SIGBUS instead.
    Not when: the error has another reason than space (registration with CUDA, permissions); the kernel
    ended the process because its memory is damaged.
    Do: start the container with --shm-size=1g --ulimit memlock=-1, or an emptyDir of medium Memory in Kubernetes;
    remove stale /dev/shm/nccl-*.
    Sources: nccl#290, nccl#342, nccl#983, nccl-tests#143, nccl-tests#166, vllm#1710.
    """
    has_no_space = pl.col("error").fill_null("").str.contains("No space left", literal=True)
    is_size = text_of("operation").str.contains("fallocate", literal=True)
    calls = pl.col("form").eq("system_call") & is_size & has_no_space
    rows = pl.concat(
        [
            failure.filter(pl.col("form").eq("shared_memory_full") | calls.fill_null(False)).select(PLACE),
            shared_memory.filter(has_no_space & (pl.col("form") != "again")).select(PLACE),
        ]
    )
    if not rows.is_empty():
        yield group_finding(
            rows, rank, "/dev/shm is too small on {processes}", "a segment could not be extended to its size", "certain"
        )
        return
    broken = process_exit.filter(message=BROKEN_MEMORY)["rank_id"]
    crashed = first_exits(process_exit, SIGNAL).filter(
        pl.col("signal").eq(BUS_ERROR) & ~pl.col("rank_id").is_in(broken.to_list()).fill_null(value=False)
    )
    # Slurm starts processes of the host, whose /dev/shm has half of its memory; others start containers, too.
    of_host = crashed.filter(pl.col("reporter").is_in(OF_SLURM))
    of_container = crashed.filter(~pl.col("reporter").is_in(OF_SLURM))
    if not of_container.is_empty():
        detail = "writing to a shared memory segment on a full /dev/shm raises SIGBUS"
        places = [where for where in of_container["where"].drop_nulls() if where]
        detail += "".join(f"; it crashed inside {where}" for where in places[:1])
        yield exit_finding(
            of_container, rank, "{processes} crashed with SIGBUS: /dev/shm may be too small", detail, "likely"
        )
    elif not of_host.is_empty():
        detail = (
            "a page of memory could not be had: /dev/shm is full, a file that the program maps was cut or its file"
            " system failed, or the memory of the host is damaged"
        )
        finding = exit_finding(of_host, rank, "{processes} crashed with SIGBUS", detail, "certain")
        finding.remedy = (
            "on that host df -h /dev/shm and the file system of the data; dmesg -T | grep -iE 'i/o error|edac|mce';"
            " in a container --shm-size=1g"
        )
        yield finding


@rule(Category.PEER_LOST, Severity.ERROR, of=("process_exit",), hang=True)
def host_memory_broken(process_exit: pl.DataFrame, kernel_event: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The kernel ended a process because the memory of its host is damaged.

    Means: a memory module reported an uncorrectable error, and the process read the damaged page; the other ranks wait
    for it.
    Not when: errors were corrected (EDAC CE, mce events alone), which end no process.
    Do: drain the host; dmesg -T | grep -e EDAC -e "Memory failure"; replace the module that EDAC names.
    Sources: Linux, mm/memory-failure.c and Documentation/driver-api/edac.rst.
    """
    ended = process_exit.filter((pl.col("message") == BROKEN_MEMORY) & pl.col("rank_id").is_not_null())
    if ended.is_empty():
        return
    errors = kernel_event.filter((pl.col("form") == "memory") & (text_of("memory_error") == UNCORRECTABLE))
    detail = "the kernel ended it with SIGBUS when it read a damaged page"
    if not errors.is_empty():
        detail += f"; it logged: {errors['memory_fault'][0]}"
    finding = exit_finding(ended, rank, "{processes} read damaged memory of the host", detail, "certain")
    finding.evidence += evidence_lines(errors.select("source", "line"), "memory")[:1]
    yield finding


@rule(Category.SHM, Severity.WARNING, of=("shared_memory",))
def shm_unlinked_by_systemd(shared_memory: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Shared memory was removed while NCCL used it.

    Means: systemd removes a user's files in /dev/shm when the user's last session ends, even while jobs run.
    Not when: the process was being ended, or the segment was removed manually.
    Do: set RemoveIPC=no in /etc/systemd/logind.conf of every node, or loginctl enable-linger for the user.
    Sources: NCCL user guide, troubleshooting/runtime_and_mpi_issues.
    """
    removed = shared_memory.filter(form="unlink").filter(pl.col("error").str.starts_with("No such file"))
    if not removed.is_empty():
        title = "the shared memory of {processes} was removed while it was in use"
        yield group_finding(removed, rank, title, "NCCL's own segment no longer exists", "likely")


@rule(Category.SHM, Severity.ERROR, of=("failure",), hang=True, fallback=True)
def shm_segment_failed(failure: pl.DataFrame, nccl_warning: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A shared memory segment of NCCL could not be created or attached.

    Means: the error of the system says why: `No space left` a /dev/shm that is too small, as in containers; `No such
    file` processes that do not share /dev/shm, or a peer that has ended; `Permission denied` its access rights. Without
    an error it is mostly too small; else CUDA refused to register the memory (WSL, the limit of locked memory).
    Not when: the warning before it gives the reason, which has a finding of its own; NCCL went on.
    Do: run df -h /dev/shm in the context of the job; start the container with --shm-size=1g --ulimit memlock=-1 or
    --ipc=host; to narrow it down, run once with NCCL_SHM_DISABLE=1.
    Sources: nccl: src/misc/shmutils.cc; WSL#12467, vllm#18831, nccl#328, nccl#1589.
    """
    rows = failure.filter(form="shared_memory").sort("source", "line")
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    before = nccl_warning.filter(
        (pl.col("source") == first["source"]) & pl.col("line").is_between(first["line"] - 3, first["line"] - 1)
    )
    reasons = [str(text) for text in (first["error"], *before["text"]) if text]
    detail = "; ".join([f"the segment is {first['path']}", *reasons[:1]])
    known = (text for words, text in SEGMENT_REMEDIES.items() if any(words in reason for reason in reasons))
    title = "{processes} could not create or attach shared memory"
    yield group_finding(rows, rank, title, detail, "likely", remedy=next(known, ""))


@rule(Category.SHM, Severity.ERROR, of=("cuda_error",), hang=True)
def shm_cuda_invalid_argument(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """CUDA refused to register a shared memory segment.

    Means: the registration fails, not the size of /dev/shm: the limit on locked memory, NUMA, or the driver.
    Not when: the version allocates host memory by cuMem (2.24 to 2.26.4), and CUDA refuses that: a separate finding.
    Do: set ulimit -l unlimited in the job's environment; try NCCL_CUMEM_HOST_ENABLE=0, then 1, on all ranks.
    Sources: nccl#1518, horovod#893, nccl#846.
    """
    rows = cuda_error.filter(pl.col("file").is_in(SHARED) & ~pl.col("kind").is_in(SELF_EXPLAINED) & ~_is_cumem())
    title = "shared memory could not be registered with CUDA on {processes}"
    for (error,), error_rows in rows.group_by("error", maintain_order=True):
        # The two other files make no other call that CUDA can refuse so.
        certainty = "likely" if (error_rows["file"] != "transport/shm").all() else "possible"
        yield error_finding(error_rows, rank, title, f"CUDA error: {error}", certainty)


@rule(Category.SHM, Severity.ERROR, of=("cuda_error",), hang=True)
def cumem_host_no_numa(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL cannot allocate host memory by cuMem in this container.

    Means: NCCL 2.24 to 2.26.4 allocate host memory by cuMem, which needs visible NUMA nodes; or the GPUs have no P2P
    and the driver is older than 13.0 (error 217).
    Not when: the version is 2.26.5 or later, which falls back automatically, unless the error is 217.
    Do: set NCCL_CUMEM_HOST_ENABLE=0 on all ranks; against other errors than 217, docker --cap-add SYS_NICE or NCCL
    2.26.5 helps, too.
    Sources: NCCL user guide, troubleshooting (cuMem host allocations); nccl#1838, nccl#2106.
    """
    rows = cuda_error.filter((pl.col("file") == "transport/shm") & _is_cumem())
    for (error,), error_rows in rows.group_by("error", maintain_order=True):
        title = "cuMem host memory does not work on {processes}"
        yield error_finding(error_rows, rank, title, f"CUDA error: {error}", "likely")


def _is_cumem() -> pl.Expr:
    """Whether the version allocates shared host memory by cuMem without a fallback, or there is none from this error.

    2.27.3 fails with error 217, too, and NCCL_CUMEM_HOST_ENABLE=0 helps (nccl#1838); src/transport/shm.cc makes no
    other call that needs access between GPUs.
    """

    def needs_cumem(version: str) -> bool:
        return CUMEM_HOST <= release(version) < CUMEM_HOST_OPTIONAL

    is_of_version = pl.col("version").map_elements(needs_cumem, return_dtype=pl.Boolean).fill_null(False)
    return is_of_version | ((pl.col("file") == "transport/shm") & (pl.col("kind") == PEER))


@rule(Category.SHM, Severity.ERROR, of=("failure",), hang=True)
def cumem_host_asymmetric(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """One rank shares host memory by cuMem, its peer by /dev/shm.

    Means: each rank probes separately whether cuMem works for host memory, and sees other NUMA nodes or CPUs than its
    peer; a rank cannot open what the other exports.
    Not when: the path is one of NCCL's and the segment has a size.
    Do: set NCCL_CUMEM_HOST_ENABLE=0 on all ranks; give all containers of a node the same NUMA view.
    Sources: nccl#2190.
    """
    rows = failure.filter(form="shared_memory").filter(
        (pl.col("bytes") == 0) & ~text_of("path").str.contains("nccl", literal=True)
    )
    if not rows.is_empty():
        detail = "the segment has an invalid name and size 0: it is a handle of another kind"
        yield group_finding(rows, rank, "{processes} cannot open the shared memory of a peer", detail, "likely")
