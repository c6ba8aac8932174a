"""CUDA errors and GPU faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from ncclforensics.data.cuda import (
    AMD,
    CORRUPTED,
    HARDWARE,
    HIDDEN,
    HIP,
    MEMORY,
    OTHER,
    SELF_EXPLAINED,
    UNSPECIFIC,
    UNUSABLE,
    error_advice,
)
from ncclforensics.data.kernel_faults import CONTAINED, RECOVERY, UNCONFIRMED_XIDS, XIDS, XIDS_OF_HARDWARE
from ncclforensics.data.names import pci_address, sentence
from ncclforensics.frames.columns import OWNER, short_host, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import is_kernel_log_alone
from ncclforensics.rules.shared.failed_checks import add_failed_check
from ncclforensics.rules.shared.grouping import error_finding, evidence_lines, group_finding, processes_text

P2P = "transport/p2p"
REFUSED_LAUNCH = "invalid argument"
NEWER_NCCL = (
    "use a newer NCCL, 2.26.2 or later for GPUs of compute capability 12.0, or one that was built for this GPU; beside "
    "PyTorch's wheels, the package nvidia-nccl-cu12 or nvidia-nccl-cu13"
)
LOWERED = "kernel_memory_lowered"  # a form of `failure`: NCCL went on with less shared memory than its kernels need
ON_AMD = "run the named rank with AMD_SERIALIZE_KERNEL=3; look at dmesg -T | grep amdgpu on its host"
ASSERTED = "device-side assert triggered"
HARDWARE_EXCEPTION = "HSA_STATUS_ERROR_EXCEPTION"  # of ROCm: also where a kernel's check failed
ECC = 48  # the Xid of an uncorrectable error of memory
RECOVERED = "Nonfatal"  # severity of an NVLink error after which the link goes on
# Functions of PyTorch that share memory of a GPU with another process (torch/multiprocessing/reductions.py).
IPC_CALLS = ("_share_cuda_", "_new_shared_cuda", "rebuild_cuda_tensor")
IPC_ADVICE = (
    "only memory of cudaMalloc can be shared (cudaIpcGetMemHandle): share no tensors of another allocator (memory "
    "savers, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), or copy them first; NCCL has no part in this"
)
OF_OTHER_RULES = ["transport/nvls", "transport/shm", "misc/shmutils", "include/shm", "mnnvl"]

MOST_FINDERS = 4  # watchdogs in a sentence
NODES_OF_ROCM = "its numbers count the processors of the host, too (rocminfo, Node)"


def _rows_by_error(cuda_error: pl.DataFrame, *kinds: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each error text of these kinds with its rows; errors that other rules explain are left out."""
    if set(kinds).isdisjoint(cuda_error["kind"]):
        return
    # A line that was copied without its place has that of the same error elsewhere.
    places = cuda_error.drop_nulls("file").group_by("error").agg(elsewhere=pl.col("file").first())
    place = pl.coalesce("file", "elsewhere")
    of_kinds = cuda_error.join(places, on="error", how="left", maintain_order="left").filter(
        pl.col("kind").is_in(kinds)
        & (pl.col("kind").is_in(SELF_EXPLAINED) | ~place.is_in(OF_OTHER_RULES).fill_null(False))
    )
    for (error,), rows in of_kinds.group_by("error", maintain_order=True):
        yield str(error), rows


def _reported(rows: pl.DataFrame, files: Sequence[str] = ()) -> str:
    """Say who reported these errors, and in which file of NCCL or call of the application."""
    text = f"reported by {', '.join(sorted(set(rows['reporter'])))}"
    places = sorted(set(rows["place"].drop_nulls()) - {""})
    return text + "".join(f", in {place}" for place in (", ".join(files), *places[:1]) if place)


def _finders(rows: pl.DataFrame, watchdog: pl.DataFrame) -> str:
    """Name the watchdogs that found errors by their ranks in a process group, where none in the job is known."""
    found = rows.filter(pl.col("rank").is_null()).join(
        watchdog.select("source", "line", "group_rank", guid=text_of("guid")), on=["source", "line"]
    )
    named = found.select("group_rank", "guid").drop_nulls().unique(maintain_order=True).head(MOST_FINDERS).rows()
    names = ", ".join(f"rank {number} of process group {guid}" for number, guid in named)
    return f"; found by the watchdog of {names}" if names else ""


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def cuda_sticky_error(
    cuda_error: pl.DataFrame,
    device_assertion: pl.DataFrame,
    kernel_event: pl.DataFrame,
    watchdog: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A kernel corrupted the CUDA context, and a later CUDA call reports it.

    Means: an earlier kernel, mostly one of the application, made an illegal access or failed an assertion. NCCL or the
    watchdog only made the next CUDA call; all later calls fail, too.
    Not when: the process was already exiting (`driver shutting down`).
    Do: run the named rank with CUDA_LAUNCH_BLOCKING=1 (not with NCCL 2.14.3, which hangs then) or compute-sanitizer;
    look for Xid 13 and 31 in dmesg -T on its host. On AMD's GPUs: AMD_SERIALIZE_KERNEL=3, and dmesg -T | grep amdgpu.
    Sources: vllm#4108, TensorRT-LLM#448, vllm#19890, nccl#750.
    """
    for error, rows in _rows_by_error(cuda_error, CORRUPTED):
        runtime = rows["runtime"][0]
        finding = error_finding(rows, rank, f"{runtime} error on {{processes}}: {error}", _reported(rows), "likely")
        finding.remedy = ON_AMD if runtime == HIP else ""
        finding.detail += _finders(rows, watchdog)
        if not add_failed_check(finding, device_assertion if error.startswith(ASSERTED) else None):
            finding.detail += "; an earlier kernel caused it, and the line shows only the call that reports it"
        if set(rows["pid"]) & set(kernel_event.filter(pl.col("xid").is_in(XIDS_OF_HARDWARE))["pid"].drop_nulls()):
            finding.role = Role.CONSEQUENCE  # of a GPU fault with its own finding
        yield finding


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error", "kernel_event"), hang=True)
def cuda_gpu_fault(
    cuda_error: pl.DataFrame,
    kernel_event: pl.DataFrame,
    driver_state: pl.DataFrame,
    rank: pl.DataFrame,
    process_exit: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """A GPU, its memory or its NVLink failed.

    Means: the hardware reports the fault; later errors of other ranks follow from it.
    Not when: the kernel line is of another day or another job: it counts only if it names a process or a GPU of this
    run, if the run lost a process, or if the kernel log was given by itself, where it is certain, and of no job; a GPU
    alone without a lost process, or a process id without its host and GPU, makes it likely. A host of the run alone
    makes it possible, and likely if a culprit of the verdict is on it, unless the run ended well: in a container, the
    process ids of the kernel are others than those of NCCL. Xid 13, 31, 43 and 45 are mostly faults of programs and are
    left out, as are NVLink errors that are not fatal, and those after which the job goes on (63, 92, 121, 157). At a
    time outside of the run, as printed, a fault is likely at most, and left out if the run ended well. Of 61 and 167
    NVIDIA's catalogue has no description: likely at most.
    Do: drain the node; nvidia-smi -q, nvidia-smi nvlink -s, and NVIDIA's field diagnostic on that node.
    Sources: NVIDIA, catalogue of Xid errors; NVRx, gpud.
    """
    for error, rows in _rows_by_error(cuda_error, HARDWARE):
        finding = error_finding(rows, rank, f"GPU fault on {{processes}}: {error}", "reported by CUDA", "certain")
        finding.remedy = sentence(XIDS[ECC].remedy) if "ECC" in error else ""
        yield finding
    events = kernel_event.filter(pl.col("form").is_in(["xid", "lost"]))
    events = events.with_columns(xid=pl.when(form="lost").then(79).otherwise("xid")).filter(
        pl.col("xid").is_in(XIDS_OF_HARDWARE) & (text_of("severity") != RECOVERED).fill_null(True)
    )
    if events.is_empty():
        return
    ranks_with_process = rank.filter(pl.col("pid").is_not_null()).with_columns(node=short_host("host")).to_dicts()
    is_one_host = len({row["node"] for row in ranks_with_process}) == 1
    has_lost_process = not process_exit.filter(pl.col("is_final")).is_empty()
    has_no_job = is_kernel_log_alone(rank, process_exit)
    culprits = verdict["culprits"].explode().drop_nulls()
    culprit_hosts = set(rank.filter(pl.col("rank_id").is_in(culprits.implode())).select(short_host("host")).to_series())
    has_ended_well = not verdict.is_empty() and (verdict["verdict"] == "no-hang").all()
    of_this_run = []
    for event in events.sort("source", "line").with_columns(short=short_host("node")).to_dicts():
        on_host = [row for row in ranks_with_process if event["short"] in (None, row["node"])]
        by_pid = [row for row in on_host if row["pid"] == event["pid"]]
        if len({row["node"] for row in by_pid}) > 1:  # at most one of them is the process that the kernel means
            by_pid = [row for row in by_pid if row["busid"] == event["busid"]]
        affected = by_pid or ([row for row in on_host if row["busid"] == event["busid"]] if event["short"] else [])
        is_on_host = bool(event["short"] and on_host) and not has_ended_well
        # The process id alone may be of another host, or of an earlier process on another GPU.
        has_gpu = any(row["busid"] == event["busid"] for row in (on_host if event["short"] else by_pid))
        is_other_gpu = event["busid"] and all(row["busid"] not in (None, event["busid"]) for row in by_pid)
        is_process = bool(by_pid) and (has_gpu or ((is_one_host or event["short"]) and not is_other_gpu))
        if affected or has_lost_process or has_no_job or is_on_host:
            numbers = {row["rank"] for row in affected} - {None}
            if has_ended_well and event["is_in_run"] is False:
                continue
            of_this_run.append(
                {
                    **event,
                    "ranks": sorted(numbers),
                    "host": affected[0]["host"] if affected else event["node"],
                    "is_certain": event["is_in_run"] is not False
                    and (is_process or has_no_job or (has_gpu and has_lost_process)),
                    "is_of_host_alone": not (affected or has_lost_process or has_no_job),
                }
            )
    numbers_of_run = sorted({event["xid"] for event in of_this_run}, key=lambda xid: (xid == CONTAINED, xid))
    passed_on = [RECOVERY] if len(numbers_of_run) > 1 or "gsp" in driver_state["form"] else []
    for xid in numbers_of_run:
        logged = [event for event in of_this_run if event["xid"] == xid]
        ranks = sorted({number for event in logged for number in event["ranks"]})
        hosts = sorted({event["host"] for event in logged if event["host"]})
        addresses = sorted({pci_address(event["busid"]) for event in logged if event["busid"]})
        gpus = f"GPU {', '.join(addresses)}" if addresses else "a GPU that the line does not name"
        place = f"GPU fault on {processes_text(ranks, hosts, rank)}" if ranks or hosts else f"fault of {gpus}"
        pids = sorted({event["pid"] for event in logged if event["pid"] is not None})
        lines = pl.DataFrame({name: [row[name] for row in logged] for name in ("source", "line")})
        of_process = f" for pid {', '.join(map(str, pids))}" if pids and not ranks else ""
        without_rank = "" if ranks else ", without the rank" + f": {gpus}" * bool(hosts)
        detail = f"logged by the kernel{of_process}{without_rank}" + "; no line of a job was read" * has_no_job
        is_of_host_alone = all(event["is_of_host_alone"] for event in logged)
        detail += "; neither this GPU nor the process is known from the run, only the host" * is_of_host_alone
        is_certain = any(event["is_certain"] for event in logged)
        is_apart = all(event["is_in_run"] is False for event in logged)
        detail += "; its time, as printed, is not one of the run" * is_apart
        if xid in UNCONFIRMED_XIDS:
            detail += "; unconfirmed: NVIDIA's catalogue has no description of this number"
            is_certain = False
        is_likely = bool(ranks) or any(event["short"] in culprit_hosts for event in logged if event["short"])
        number = "" if all(event["form"] == "lost" for event in logged) else f"Xid {xid}, "
        yield Finding(
            f"{place}: {number}{XIDS_OF_HARDWARE[xid]}",
            detail,
            "certain" if is_certain else "likely" if is_likely else "possible",
            ranks=ranks,
            hosts=hosts,
            evidence=evidence_lines(lines),
            severity=Severity.INFO if xid in passed_on else Severity.ERROR,
            role=Role.CONTEXT if is_apart or xid in passed_on else Role.CAUSE,
            remedy=sentence(XIDS[xid].remedy),
        )


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def cuda_initialization_error(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """CUDA cannot be used in this process.

    Means: the process forked after using CUDA, the driver does not support the container's CUDA version, or another
    process holds the GPUs exclusively. An unknown error in a job that ran is one of the driver or of the GPU.
    Not when: the GPU is only not visible, or NVSwitch is not configured; CUDA reports these with other messages.
    Do: run nvidia-smi inside the container; use spawn instead of fork; compare driver and CUDA versions.
    Sources: nccl#1029, pytorch#113128; CUDA runtime API, cudaError_t.
    """
    for error, rows in _rows_by_error(cuda_error, UNUSABLE):
        yield error_finding(rows, rank, f"CUDA cannot be used on {{processes}}: {error}", "reported by CUDA", "likely")
    for error, rows in _rows_by_error(cuda_error, UNSPECIFIC):
        detail = "this process cannot use the GPU driver; in a job that ran before, the driver or the GPU failed"
        finding = error_finding(rows, rank, f"CUDA error on {{processes}}: {error}", detail, "likely")
        finding.remedy = "run nvidia-smi on the host and inside the container; look for Xid in dmesg -T"
        yield finding


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error", "library"), hang=True)
def cuda_gpu_hidden(
    cuda_error: pl.DataFrame, library: pl.DataFrame, rank: pl.DataFrame, failure_event: pl.DataFrame
) -> Iterator[Finding]:
    """A process uses a GPU that is not visible to it or does not exist.

    Means: the launcher gave this process other GPUs than the program, or NCCL on a peer, expects: more processes than
    GPUs on the node, CUDA_VISIBLE_DEVICES, or GPUs bound to tasks by cgroups, which hide the peers' GPUs from NVML.
    Not when: NCCL continues without this call, and no error follows.
    Do: compare processes per node with GPUs per node, and CUDA_VISIBLE_DEVICES (ROCm: HIP_VISIBLE_DEVICES,
    ROCR_VISIBLE_DEVICES) of the process with the device that it sets; with Slurm use --gpus-per-node instead of
    --gpus-per-task.
    Sources: nccl-tests#300; CUDA runtime API, cudaErrorInvalidDevice.
    """
    for error, rows in _rows_by_error(cuda_error, HIDDEN):
        yield error_finding(rows, rank, f"a GPU is not visible to {{processes}}: {error}", _reported(rows), "certain")
    failed_processes = failure_event.filter(form="unwinding").select("host", "pid").unique()
    lookups = library.filter(
        (pl.col("form") == "call")
        & text_of("driver_call").str.starts_with("nvmlDeviceGetHandle")
        & pl.col("error").str.starts_with("Not Found")
    ).join(failed_processes, on=OWNER, how="semi")
    if not lookups.is_empty():
        numbered = lookups.join(
            rank.select("host", "pid", number="rank").unique(OWNER, keep="none"),
            on=OWNER,
            how="left",
        ).with_columns(rank="number")
        yield error_finding(
            numbered, rank, "the GPU of a peer is not visible to NVML on {processes}",
            "NCCL returned an error there; cgroups that bind GPUs to single tasks have this effect", "likely",
        )  # fmt: skip


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def cuda_call_failed(
    cuda_error: pl.DataFrame, p2p_failure: pl.DataFrame, failure: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A CUDA call failed, of NCCL or of the application.

    Means: the error text and the source file show which call. In transport/p2p the cause is mostly direct access
    between GPUs that the system reports but does not support (containers, virtual machines, IOMMU). Where the
    application reports it, the innermost call of the traceback failed.
    Not when: NCCL only tried the call and continues without it, which it prints as INFO; the process was exiting.
    Do: look up the error in the CUDA runtime API, and the call in the cited source file.
    Sources: nccl: src/include/checks.h; rccl#1055; CUDA runtime API, cudaError_t; CUDA programming guide, peer-to-peer
    memory access, interprocess communication; torch/multiprocessing/reductions.py.
    """
    is_of_imex = (pl.col("file").fill_null("") == P2P) & (pl.col("error") == "operation not permitted")
    for error, rows in _rows_by_error(cuda_error.filter(~is_of_imex), OTHER):
        files = sorted(rows["file"].drop_nulls().unique().to_list())
        finding = error_finding(rows, rank, f"CUDA error on {{processes}}: {error}", _reported(rows, files), "certain")
        places = set(rows["place"].drop_nulls())
        if files == [P2P]:
            finding.detail += ": direct access between GPUs failed"
            finding.remedy = "try NCCL_P2P_DISABLE=1 once; if it helps, correct IOMMU, ACS, container or driver instead"
        elif places and all(any(call in place for call in IPC_CALLS) for place in places):
            finding.detail += ": the program shares memory of its GPU with another process (CUDA IPC)"
            finding.remedy = IPC_ADVICE
        elif advice := error_advice(error):
            finding.remedy = advice
        elif places:
            finding.remedy = "look at the named call, and at what the program gives to it"
        exhausted = cuda_error.filter(kind=MEMORY).group_by(OWNER).agg(earlier=pl.col("line").min())
        if rows.join(exhausted, on=OWNER).filter(pl.col("line") > pl.col("earlier")).height == rows.height:
            finding.role = Role.CONSEQUENCE  # of the memory that ran out before, which is a finding of its own
        if rows.join(p2p_failure, on=OWNER, how="semi").height == rows.height and files == [P2P]:
            finding.role = Role.CONSEQUENCE  # the call is named by a warning of its own, which has a finding
        refused = _refused_launches(rows, failure)
        if refused.height == rows.height:
            finding.role = Role.CONSEQUENCE  # of kernels that need more than the GPU has, which is a finding of its own
        yield finding


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def rocm_gpu_exception(
    cuda_error: pl.DataFrame, crash: pl.DataFrame, device_assertion: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """ROCm's runtime ended a process because its AMD GPU reported an exception.

    Means: the GPU hung, or a kernel accessed memory that is not mapped; the process is aborted, and the other ranks
    wait for it. A memory access fault is mostly one of a kernel of the program; a hang may be one of the GPU.
    Not when: the process was ended on purpose, which prints a signal only.
    Do: run dmesg -T | grep amdgpu on that host, and rocm-smi --showras; for an access fault set AMD_SERIALIZE_KERNEL=3.
    Sources: ROCm, ROCR-Runtime runtime.cpp and clr rocdevice.cpp; ROCm#4021.
    """
    for error, rows in _rows_by_error(cuda_error, AMD):
        reason = error.split("  ")[0].split("\n")[0].strip()  # several processes write into one line
        nodes = rows.join(crash.drop_nulls("rocm_node"), on=["source", "line"])["rocm_node"].unique().sort().to_list()
        numbers = f"; {NODES_OF_ROCM}" * bool(nodes)
        finding = error_finding(
            rows, rank, f"{_amd_gpus(nodes)} reported an error on {{processes}}: {reason}",
            f"reported by ROCm's runtime, which then ends the process{numbers}", "certain",
        )  # fmt: skip
        add_failed_check(finding, device_assertion.filter(form="hip") if HARDWARE_EXCEPTION in reason else None)
        yield finding


def _amd_gpus(nodes: list[int]) -> str:
    """Name AMD GPUs as ROCm's runtime does.

    >>> _amd_gpus([9]), _amd_gpus([4, 9]), _amd_gpus([])
    ('AMD GPU node-9', 'AMD GPUs node-4, node-9', 'an AMD GPU')
    """
    names = ", ".join(f"node-{node}" for node in nodes)
    return f"AMD GPU{'s' * (len(nodes) > 1)} {names}" if names else "an AMD GPU"


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("hardware_event",), hang=True)
def cuda_gpu_unreachable(hardware_event: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """nvidia-smi cannot reach a GPU of this host any more.

    Means: the GPU fell off the bus, or its driver lost it; every process that uses it fails or hangs, and ranks on
    other hosts wait for them.
    Not when: the output is of another day or host than the job.
    Do: look for Xid 79 and PCIe errors (dmesg -T | grep -e NVRM -e AER); reset or power-cycle the host; reseat the card
    if it happens again.
    Sources: NVIDIA, XID errors (79); returnn#1486.
    """
    unreachable = hardware_event.filter(form="no_handle").sort("source", "line")
    if not unreachable.is_empty():
        gpus = ", ".join(sorted({pci_address(busid) for busid in unreachable["busid"].to_list()}))
        lines = unreachable.select("source", "line", host="node", rank=pl.lit(None, pl.Int32))
        yield error_finding(
            lines, rank, f"nvidia-smi cannot reach GPU {gpus}", "the driver returns no handle for it", "certain"
        )


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("failure",), hang=True)
def cuda_kernels_need_more_shared_memory(
    failure: pl.DataFrame, cuda_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL's kernels need more shared memory than the GPU has.

    Means: this release of NCCL does not know the limits of such a GPU, as releases before 2.26.2 those of compute
    capability 12.0. From 2.26 on NCCL ends the init with an error; 2.25.1 goes on, and the GPU refuses the first kernel
    as an invalid argument.
    Not when: NCCL only says so in a line of INFO, and no call of CUDA failed.
    Do: use a newer NCCL, or one that was built for this GPU; beside PyTorch's wheels, the package nvidia-nccl-cu12 or
    nvidia-nccl-cu13.
    Sources: nccl: src/enqueue.cc, ncclInitKernelsForDevice; release notes 2.26.2; nccl#1637.
    """
    ended = failure.filter(form="kernel_memory")
    refused = _refused_launches(cuda_error, failure)
    went_on = failure.filter(form=LOWERED).join(refused, on=OWNER, how="semi")
    for rows, certainty in ((ended, "certain"), (went_on, "likely")):
        for (needed, limit), same in rows.group_by("bytes", "limit_bytes", maintain_order=True):
            gpu = "the GPU of {processes} has"
            title = f"NCCL's kernels need more shared memory than {gpu}"
            if needed is not None and limit is not None:  # the line was not cut
                title = f"NCCL's kernels need {needed:,} bytes of shared memory, and {gpu} {limit:,}"
            finding = group_finding(same, rank, title, "this release of NCCL does not know such GPUs", certainty)
            finding.remedy = NEWER_NCCL
            if rows is went_on:
                finding.detail += f"; CUDA then reported {REFUSED_LAUNCH!r}"
                finding.evidence += evidence_lines(refused.head(1))
            yield finding


def _refused_launches(cuda_error: pl.DataFrame, failure: pl.DataFrame) -> pl.DataFrame:
    """Arguments that CUDA refused, in processes whose GPU has too little shared memory for the kernels."""
    is_refused = pl.col("error").str.contains(REFUSED_LAUNCH, literal=True)
    return cuda_error.filter(is_refused).join(failure.filter(form=LOWERED), on=OWNER, how="semi")
