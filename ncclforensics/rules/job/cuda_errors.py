"""Errors of CUDA and faults of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.cuda import HARDWARE, HIDDEN, OTHER, POISONED, UNUSABLE
from ncclforensics.data.processes import XIDS
from ncclforensics.frames.columns import OWNER, short_host, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import shown, who

OF_OTHER_RULES = ["transport/nvls", "transport/shm", "misc/shmutils", "include/shm", "mnnvl"]


def met(rows: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str) -> Finding:
    """One finding on processes that met the same error."""
    ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
    hosts = sorted(rows["host"].cast(pl.String).drop_nulls().unique().to_list())
    title = title.replace("{who}", who(ranks, hosts, rank))
    return Finding(title, detail, certainty, ranks=ranks, hosts=hosts, evidence=shown(rows))


def _each(cuda_error: pl.DataFrame, *kinds: str) -> Iterator[tuple[str, pl.DataFrame]]:
    chosen = cuda_error.filter(pl.col("kind").is_in(kinds) & ~pl.col("file").is_in(OF_OTHER_RULES).fill_null(False))
    for (error,), rows in chosen.group_by("error", maintain_order=True):
        yield str(error), rows


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def cuda_sticky_error(cuda_error: pl.DataFrame, hardware_event: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A kernel spoiled the CUDA context, and whoever called CUDA next found out.

    Means: an earlier kernel, mostly the application's, read or wrote where it must not, or ran into an assertion. NCCL
    or the watchdog is merely the first to notice; every later call fails alike.
    Not when: the process was already leaving (`driver shutting down`).
    Do: run the rank named with CUDA_LAUNCH_BLOCKING=1 (not with NCCL 2.14.3, which hangs then) or compute-sanitizer;
    look for Xid 13 and 31 in dmesg -T of its host.
    Sources: vllm#4108, TensorRT-LLM#448, vllm#19890, nccl#750.
    """
    for error, rows in _each(cuda_error, POISONED):
        tellers = ", ".join(sorted(set(rows["reporter"])))
        finding = met(rows, rank, f"CUDA error on {{who}}: {error}", f"reported by {tellers}", "likely")
        finding.detail += "; an earlier kernel did it, and the line names who noticed"
        if set(rows["pid"]) & set(hardware_event.filter(pl.col("xid").is_in(XIDS))["pid"].drop_nulls()):
            finding.role = Role.CONSEQUENCE  # of the fault of its GPU
        yield finding


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error", "hardware_event"), hang=True)
def cuda_gpu_fault(
    cuda_error: pl.DataFrame, hardware_event: pl.DataFrame, rank: pl.DataFrame, process_exit: pl.DataFrame
) -> Iterator[Finding]:
    """A GPU, its memory or its NVLink failed.

    Means: the hardware reports it itself; whatever other ranks say afterwards follows from it.
    Not when: the line of the kernel is of another day or another job: it counts only if it names a process or a GPU of
    this run, or if the run lost a process. Xid 13, 31, 43 and 45 are mostly the program's own and are left out.
    Do: drain the node; nvidia-smi -q, nvidia-smi nvlink -s, and NVIDIA's field diagnostic on it.
    Sources: NVIDIA, XID errors; NVRx, gpud.
    """
    for error, some in _each(cuda_error, HARDWARE):
        yield met(some, rank, f"GPU fault on {{who}}: {error}", "CUDA says so", "certain")
    events = hardware_event.filter(pl.col("form").is_in(["xid", "lost"]))
    events = events.with_columns(xid=pl.when(form="lost").then(79).otherwise("xid")).filter(pl.col("xid").is_in(XIDS))
    if events.is_empty():
        return
    ours = rank.filter(pl.col("pid").is_not_null()).with_columns(node=short_host("host"))
    lost_one = not process_exit.filter(pl.col("is_final")).is_empty()
    found = []
    for event in events.sort("source", "line").with_columns(short=short_host("node")).to_dicts():
        here = [row for row in ours.to_dicts() if event["short"] in (None, row["node"])]
        named = [row for row in here if row["pid"] == event["pid"]]
        hit = named or ([row for row in here if row["busid"] == event["busid"]] if event["short"] else [])
        if hit or lost_one:
            numbers = {row["rank"] for row in hit} - {None}
            found.append({**event, "ranks": sorted(numbers), "host": hit[0]["host"] if hit else event["node"]})
    for xid in sorted({event["xid"] for event in found}):
        logged = [event for event in found if event["xid"] == xid]
        ranks = sorted({number for event in logged for number in event["ranks"]})
        hosts = sorted({event["host"] for event in logged if event["host"]})
        where = who(ranks, hosts, rank) if ranks or hosts else f"GPU {logged[0]['busid']}"
        lines = pl.DataFrame([{"source": row["source"], "line": row["line"]} for row in logged])
        yield Finding(
            f"GPU fault on {where}: Xid {xid}, {XIDS[xid]}",
            "the kernel logged it" + ("" if ranks else f", and not of which rank: GPU {logged[0]['busid']}"),
            "certain" if ranks else "possible",
            ranks=ranks,
            hosts=hosts,
            evidence=shown(lines),
        )


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def cuda_initialization_error(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """CUDA cannot be used in this process.

    Means: the process forked after it had used CUDA, the driver and the container's CUDA do not go together, or the
    GPUs are held exclusively by somebody else.
    Not when: the GPU is merely not visible, or NVSwitch is not set up, which CUDA says in other words.
    Do: nvidia-smi inside the container; use spawn in place of fork; compare driver and CUDA versions.
    Sources: nccl#1029; CUDA runtime API, cudaError_t.
    """
    for error, rows in _each(cuda_error, UNUSABLE):
        yield met(rows, rank, f"CUDA is not usable on {{who}}: {error}", "the first call of CUDA failed", "likely")


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error", "library"), hang=True)
def cuda_gpu_hidden(
    cuda_error: pl.DataFrame, library: pl.DataFrame, rank: pl.DataFrame, failure_event: pl.DataFrame
) -> Iterator[Finding]:
    """A process looks for a GPU that it is not allowed to see, or that is not there.

    Means: the launcher gave this process other GPUs than the program, or NCCL in a process beside it, takes for
    granted: more processes than GPUs on the node, CUDA_VISIBLE_DEVICES, or GPUs bound to tasks by cgroups, which hides
    the peers' GPUs from NVML.
    Not when: the call is one that NCCL can do without: then it does not give up afterwards.
    Do: compare processes per node with GPUs per node; with Slurm use --gpus-per-node in place of --gpus-per-task.
    Sources: nccl-tests#300; CUDA runtime API, cudaErrorInvalidDevice.
    """
    for error, rows in _each(cuda_error, HIDDEN):
        yield met(rows, rank, f"a GPU is not visible to {{who}}: {error}", "CUDA refused the device", "certain")
    gave_up = failure_event.filter(form="unwinding").select("host", "pid").unique()
    lookups = library.filter(
        (pl.col("form") == "call")
        & text_of("driver_call").str.starts_with("nvmlDeviceGetHandle")
        & pl.col("error").str.starts_with("Not Found")
    ).join(gave_up, on=OWNER, how="semi")
    if not lookups.is_empty():
        numbered = lookups.join(
            rank.select("host", "pid", number="rank").unique(OWNER, keep="none"),
            on=OWNER,
            how="left",
        ).with_columns(rank="number")
        yield met(
            numbered, rank, "NVML does not show {who} the GPU of a peer",
            "NCCL gave up there; GPUs bound to single tasks by cgroups look like this", "likely",
        )  # fmt: skip


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("cuda_error",), hang=True)
def cuda_call_failed(cuda_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A call of CUDA's failed inside NCCL.

    Means: the text of the error and the source file say which; errors of direct access between GPUs are mostly about
    P2P that the system promises and does not keep (containers, virtual machines, IOMMU).
    Not when: NCCL only tried something and goes on without it: it prints that as INFO; the process was leaving.
    Do: look up the error in the CUDA runtime API; where the file is transport/p2p try NCCL_P2P_DISABLE=1 once.
    Sources: nccl: src/include/checks.h; rccl#1055.
    """
    for error, rows in _each(cuda_error.filter(pl.col("error") != "operation not permitted"), OTHER):
        files = sorted(rows["file"].drop_nulls().unique().to_list())
        where = f", in {', '.join(files)}" if files else ""
        tellers = ", ".join(sorted(set(rows["reporter"])))
        finding = met(rows, rank, f"CUDA error on {{who}}: {error}", f"reported by {tellers}{where}", "certain")
        if files == ["transport/p2p"]:
            finding.detail += ": direct access between GPUs failed"
        yield finding
