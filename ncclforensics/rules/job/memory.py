"""Memory that ran out or could not be shared: of hosts, of GPUs, of /dev/shm."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.exit_reports import GPU_MEMORY, HOST_MEMORY, SIGNAL
from ncclforensics.data.cuda import MEMORY
from ncclforensics.data.processes import BUS_ERROR, KILL
from ncclforensics.data.versions import CUMEM_HOST, CUMEM_HOST_OPTIONAL, release
from ncclforensics.frames.columns import PLACE, text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import exit_finding, first_exits
from ncclforensics.rules.shared.grouping import error_finding, together

SHARED = ["transport/shm", "misc/shmutils", "include/shm"]


@rule(Category.OOM, Severity.ERROR, of=("process_exit",), hang=True)
def oom_host(process_exit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The system killed a process because the host, the container or the job had no memory left.

    Means: the process died by SIGKILL without a word of its own. The others' closed connections and time-outs follow.
    Not when: the kernel's line is about another program or another day: it counts only if it names a process of this
    run, or if the run lost a process.
    Do: raise the memory of the job or container; look at data loader workers, pinned buffers and checkpoints, which
    peak at the same time on all ranks of a node.
    Sources: NVRx; Slurm, cgroup.conf; kernel, mm/oom_kill.c.
    """
    killed = first_exits(process_exit, HOST_MEMORY)
    if killed.is_empty():
        return
    # Slurm and a kernel outside of the container do not say which process it was: the one that was killed.
    unknown = killed["rank_id"].is_null().any()
    rows = pl.concat([killed, first_exits(process_exit, SIGNAL).filter(signal=KILL)]) if unknown else killed
    tellers = ", ".join(sorted(set(killed["reporter"])))
    certainty = "certain" if not unknown else "likely"
    yield exit_finding(rows, rank, "{who} killed: no memory left on the host", f"{tellers} says so", certainty)


@rule(Category.OOM, Severity.ERROR, of=("process_exit",), hang=True)
def oom_gpu(process_exit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The application found no memory left on a GPU, and ended.

    Means: one rank's model, batch or cache did not fit; the others wait for it, or lose it.
    Not when: the application caught it and tried again with less, which is why one without a rank in front counts only
    where processes did end.
    Do: compare memory over ranks at that step; smaller batch, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    Sources: PyTorch, CUDA semantics (memory management).
    """
    rows = first_exits(process_exit, GPU_MEMORY)
    if not rows.is_empty():
        detail = "PyTorch's allocator says so; what other ranks report follows"
        certainty = "certain" if rows["rank"].is_not_null().all() else "likely"
        yield exit_finding(rows, rank, "no memory left on the GPU of {who}", detail, certainty)


@rule(Category.OOM, Severity.ERROR, of=("cuda_error", "failure"), hang=True)
def cuda_oom_in_nccl(cuda_error: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL found no memory left for its buffers.

    Means: on the GPU, the framework had taken all of it before NCCL came: its buffers grow with channels and peers. On
    the host, malloc failed.
    Not when: locked memory ran out (`Cannot allocate memory` of a verbs call), which is a limit and not a shortage.
    Do: leave some GiB to NCCL (vLLM: gpu_memory_utilization); fewer channels (NCCL_MAX_CTAS), smaller NCCL_BUFFSIZE.
    Sources: openxla/xla#7201; nccl: src/include/alloc.h.
    """
    errors = cuda_error.filter(kind=MEMORY)
    if not errors.is_empty():
        yield error_finding(
            errors, rank, "no GPU memory left for NCCL on {who}", "CUDA refused it: out of memory", "certain"
        )
        return
    refused = failure.filter(form="out_of_memory")
    if not refused.is_empty():
        what = "GPU" if refused["allocation"].is_not_null().any() else "host"
        size = refused["received"].max()
        detail = f"an allocation of {size!r} bytes failed"
        yield together(refused, rank, f"no {what} memory left for NCCL on {{who}}", detail, "certain")


@rule(Category.SHM, Severity.ERROR, of=("failure", "shared_memory", "process_exit"), hang=True)
def shm_too_small(
    failure: pl.DataFrame, shared_memory: pl.DataFrame, process_exit: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """/dev/shm is full, or smaller than NCCL needs.

    Means: Docker gives a container 64 MiB unless told otherwise, and NCCL takes about 10 MiB for each connection
    between GPUs that goes through host memory. Versions before 2.19 may crash instead, by SIGBUS.
    Not when: another reason than the space is given (registration with CUDA, permissions).
    Do: --shm-size=1g --ulimit memlock=-1, or an emptyDir of medium Memory in Kubernetes; rm stale /dev/shm/nccl-*.
    Sources: nccl#290, nccl#342, nccl#983, nccl-tests#143, nccl-tests#166, vllm#1710.
    """
    space = pl.col("error").fill_null("").str.contains("No space left", literal=True)
    is_size = text_of("operation").str.contains("fallocate", literal=True)
    calls = pl.col("form").eq("system_call") & is_size & space
    rows = pl.concat(
        [
            failure.filter(pl.col("form").eq("shared_memory_full") | calls.fill_null(False)).select(PLACE),
            shared_memory.filter(space & (pl.col("form") != "again")).select(PLACE),
        ]
    )
    if not rows.is_empty():
        yield together(rows, rank, "/dev/shm is too small on {who}", "a segment could not be given its size", "certain")
        return
    crashed = first_exits(process_exit, SIGNAL).filter(signal=BUS_ERROR)
    if not crashed.is_empty():
        detail = "a bus error is what a full /dev/shm looks like to a program that writes to it"
        yield exit_finding(crashed, rank, "{who} crashed with SIGBUS: /dev/shm may be too small", detail, "likely")


@rule(Category.SHM, Severity.WARNING, of=("shared_memory",))
def shm_unlinked_by_systemd(shared_memory: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Shared memory vanished under NCCL.

    Means: systemd removes what a user keeps in /dev/shm when the user's last session ends, though jobs still run.
    Not when: the process was taken down, or the segment was removed by hand.
    Do: RemoveIPC=no in /etc/systemd/logind.conf of every node, or loginctl enable-linger for the user.
    Sources: NCCL user guide, troubleshooting/runtime_and_mpi_issues.
    """
    gone = shared_memory.filter(form="unlink").filter(pl.col("error").str.starts_with("No such file"))
    if not gone.is_empty():
        title = "the shared memory of {who} was removed while it was in use"
        yield together(gone, rank, title, "NCCL found its own segment gone", "likely")


@rule(Category.SHM, Severity.ERROR, of=("cuda_error",), hang=True)
def shm_cuda_invalid_argument(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """CUDA would not register a shared memory segment.

    Means: not the size of /dev/shm but its registration: the limit on locked memory, NUMA, or the driver.
    Not when: the version allocates host memory by cuMem (2.24 to 2.26.4) and CUDA refuses that, a finding of its own.
    Do: ulimit -l unlimited in the job's context; NCCL_CUMEM_HOST_ENABLE=0, then 1, on all ranks.
    Sources: nccl#1518, horovod#893, nccl#846.
    """
    rows = cuda_error.filter(pl.col("file").is_in(SHARED) & ~_is_cumem())
    for (error,), some in rows.filter(pl.col("kind") != MEMORY).group_by("error", maintain_order=True):
        detail = f"CUDA says: {error}"
        yield error_finding(some, rank, "shared memory could not be registered with CUDA on {who}", detail, "possible")


@rule(Category.SHM, Severity.ERROR, of=("cuda_error",), hang=True)
def cumem_host_no_numa(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL's host memory by cuMem does not work in this container.

    Means: NCCL 2.24 to 2.26.4 allocate host memory by cuMem, which needs NUMA to be visible; or the GPUs have no P2P
    and the driver is older than 13.0 (error 217).
    Not when: the version is 2.26.5 or later, which falls back by itself.
    Do: NCCL_CUMEM_HOST_ENABLE=0 on all ranks, or docker --cap-add SYS_NICE, or NCCL 2.26.5.
    Sources: NCCL user guide, troubleshooting (cuMem host allocations); nccl#1838, nccl#2106.
    """
    rows = cuda_error.filter((pl.col("file") == "transport/shm") & _is_cumem())
    for (error,), some in rows.group_by("error", maintain_order=True):
        title = "host memory by cuMem does not work on {who}"
        yield error_finding(some, rank, title, f"CUDA says: {error}", "likely")


def _is_cumem() -> pl.Expr:
    """Versions that allocate shared host memory by cuMem and do not fall back."""

    def concerned(version: str) -> bool:
        return CUMEM_HOST <= release(version) < CUMEM_HOST_OPTIONAL

    return pl.col("version").map_elements(concerned, return_dtype=pl.Boolean).fill_null(False)


@rule(Category.SHM, Severity.ERROR, of=("failure",), hang=True)
def cumem_host_asymmetric(failure: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """One rank shares host memory by cuMem, its peer by /dev/shm.

    Means: each rank probes for itself whether cuMem works for host memory, and sees other NUMA nodes or CPUs than its
    peer; what one exports the other cannot read.
    Not when: the path looks like one of NCCL's and the segment has a size.
    Do: NCCL_CUMEM_HOST_ENABLE=0 on all ranks; give all containers of a node the same NUMA view.
    Sources: nccl#2190.
    """
    rows = failure.filter(form="shared_memory").filter(
        (pl.col("bytes") == 0) & ~text_of("path").str.contains("nccl", literal=True)
    )
    if not rows.is_empty():
        detail = "the segment's name makes no sense and its size is 0: it is a handle of another kind"
        yield together(rows, rank, "{who} cannot open the shared memory of a peer", detail, "likely")
