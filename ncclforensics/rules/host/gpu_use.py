"""What GPUs did while nvidia-smi was called: one at rest among GPUs that spin, memory errors, lowered clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import count_of, some_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

BUSY, AT_REST = 95.0, 1.0  # percent
FEWEST_BUSY = 3
MOST_AT_REST = 0.25  # of all GPUs in use
COMPUTES = 0.6  # of the power limit: above it kernels compute; those that wait for a peer draw less
IN_USE = 0.1  # of the memory that the busy GPUs use: below it the GPU belongs to no process of this job
SLOW_CLOCK = 300.0  # MHz: less than what a kernel that waits leaves
SPINS = 0.3  # of the power limit: below it a GPU at 100 % does nothing but wait
SHOWN = 4
GPU = ["source", "host", "gpu"]
REGISTERED, REGISTERED_WELL = "Completed", "Success"


def _name(row: dict[str, Any]) -> str:
    name = f"GPU {row['gpu']}" if row["gpu"] else "a GPU that the lines do not name"
    return name + (f" on {row['host']}" if row["host"] else "")


def _processes(rows: pl.DataFrame) -> str:
    pids = [str(pid) for pid in rows["pid"].drop_nulls()]
    return f" (pid {', '.join(pids[:SHOWN])})" if pids else ""


def _numbers(rows: pl.DataFrame, column: str) -> list[float]:
    return sorted(float(number) for number in rows[column].drop_nulls())


def _watts(rows: pl.DataFrame) -> str:
    power = [f"{watts:.0f}" for watts in _numbers(rows, "power")]
    return f" at {'-'.join(dict.fromkeys((power[0], power[-1])))} W" if power else ""


@rule(Category.LAGGING_RANK, Severity.INFO, of=("gpu_use",), hang=True, role=Role.CONTEXT)
def gpu_at_rest_among_busy(gpu_use: pl.DataFrame) -> Iterator[Finding]:
    """A few GPUs run no kernel while all others do, at little power.

    Means: kernels of NCCL that wait for a peer keep a GPU at 100 % and draw little power. The process of a GPU at 0 %
    has launched no kernel: its rank may be the one that the others wait for, and stand outside of NCCL.
    Not when: nvidia-smi shows one moment, and the job runs; the GPU belongs to another job or stage; the rank ended.
    Do: take the stack of the process on that GPU (nvidia-smi shows its pid), twice; compare with the logs.
    Sources: nvidia-smi(1), utilization; vllm#46097.
    """
    gpus = (
        gpu_use.filter(pl.col("utilization").is_not_null())
        .group_by(GPU, maintain_order=True)
        .agg(
            lowest=pl.col("utilization").min(),
            highest=pl.col("utilization").max(),
            power=pl.col("power").mean(),
            power_limit=pl.col("power_limit").first(),
            memory=pl.col("memory").max(),
            pid=pl.col("pid").drop_nulls().first(),
            line=pl.col("line").first(),
        )
    )
    busy = gpus.filter(pl.col("lowest") >= BUSY)
    power, memory = _numbers(busy, "power"), _numbers(busy, "memory")
    if busy.height < FEWEST_BUSY or not power:
        return
    is_used = pl.col("memory").fill_null(0.0) >= IN_USE * (memory[0] if memory else 0.0)
    resting = gpus.filter((pl.col("highest") < AT_REST) & is_used)
    computes = busy.filter(pl.col("power") >= COMPUTES * pl.col("power_limit"))
    draws_more = resting.filter(pl.col("power") >= power[0])
    is_odd = 0 < resting.height <= MOST_AT_REST * (busy.height + resting.height)
    if not is_odd or computes.height or draws_more.height:
        return
    names = ", ".join(_name(row) for row in resting.head(SHOWN).to_dicts())
    more = f" and {resting.height - SHOWN} more" if resting.height > SHOWN else ""
    usual = busy.row(0, named=True)
    yield Finding(
        title=f"{names}{more}: no kernel runs there, and {count_of(busy.height, 'other GPU')} spin",
        detail=f"0 %{_watts(resting)}{_processes(resting)}, against {_numbers(busy, 'lowest')[0]:.0f} %{_watts(busy)}:"
        " kernels that wait for a peer look so",
        certainty="possible",
        hosts=sorted({str(host) for host in resting["host"].drop_nulls()}),
        evidence=[
            *(Line(row["source"], row["line"], "at rest") for row in resting.head(SHOWN).to_dicts()),
            Line(usual["source"], usual["line"], "another"),
        ],
    )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("gpu_use",), hang=True, role=Role.CONTEXT)
def gpus_spin(gpu_use: pl.DataFrame) -> Iterator[Finding]:
    """GPUs are busy at little power.

    Means: a kernel runs all the time and computes nothing: kernels of NCCL that wait for a peer look so. A GPU at 0 %
    with hardly any memory in use belongs to no process of the job.
    Not when: one of these GPUs draws more at another moment; the power or its limit is not known; the clocks of a GPU
    are lowered; a GPU that is used is at rest, which has a finding of its own.
    Do: while it stands still, collect stacks, RAS reports and dumps on each host (ncclforensics collect -o incident);
    if it makes steps and is slow at low clocks, look for a power cap, heat and the clocks that are set.
    Sources: nvidia-smi(1), utilization; nccl#2389; ROCm#4414.
    """
    known = gpu_use.drop_nulls(["utilization", "power", "power_limit"])
    least = known.filter(pl.col("utilization") >= BUSY)["memory"].fill_null(0.0).min()
    is_used = pl.col("memory").fill_null(0.0) >= IN_USE * (least if isinstance(least, float) else 0.0)
    rests = known.filter((pl.col("utilization") < AT_REST) & is_used)
    if rests.height or gpu_use["slowdown"].count():
        return
    gpus = known.group_by(GPU, maintain_order=True).agg(
        lowest=pl.col("utilization").min(),
        power=pl.col("power").max(),
        power_limit=pl.col("power_limit").first(),
        clock=pl.col("clock").max(),
        line=pl.col("line").first(),
    )
    spinning = gpus.filter((pl.col("lowest") >= BUSY) & (pl.col("power") < SPINS * pl.col("power_limit")))
    for (host,), rows in spinning.group_by("host", maintain_order=True):
        names = [str(name) for name in rows["gpu"].drop_nulls().unique(maintain_order=True)]
        where = f" on {host}" if host else ""
        of_clocks = rows.filter(pl.col("clock") < SLOW_CLOCK)
        how, why = "as kernels that wait for a peer are", "they spin, and compute nothing"
        if of_clocks.height:
            clock = f"{_numbers(of_clocks, 'clock')[-1]:.0f} MHz"
            how = f"and their clocks are at {clock} or less"
            why = (
                f"either kernels wait for a peer, or the clocks are held down: a busy GPU runs at far more than {clock}"
            )
        yield Finding(
            title=f"GPU{'s' * (len(names) > 1)} {some_of(names, MOST_NAMES)}{where}: busy at little power, {how}",
            detail=f"{_numbers(rows, 'lowest')[0]:.0f} %{_watts(rows)} of {_numbers(rows, 'power_limit')[-1]:.0f} W, "
            f"the most at any moment shown: {why}",
            certainty="possible" if of_clocks.height else "likely",
            hosts=[str(host)] if host else [],
            evidence=[Line(row["source"], row["line"], "busy") for row in rows.head(SHOWN).to_dicts()],
        )


MOST_NAMES = 8  # of GPUs in a title: those of most hosts


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("use_readings",), hang=True, role=Role.CONTEXT)
def gpu_columns_unknown(use_readings: pl.DataFrame, gpu_use: pl.DataFrame) -> Iterator[Finding]:
    """Rows of nvidia-smi stand without a head, so that it is not known what their numbers are.

    Means: `--format=csv,noheader` was given, and the command that names the columns is not here, either.
    Not when: the head, or the command with --query-gpu, stands above the rows.
    Do: collect nvidia-smi --query-gpu=index,utilization.gpu,power.draw,memory.used --format=csv, with its head.
    Sources: nvidia-smi(1), --query-gpu and --format.
    """
    unnamed = use_readings.join(gpu_use.select("source").unique(), on="source", how="anti").sort("source", "line")
    for (source,), rows in unnamed.group_by("source", maintain_order=True):
        title = f"{count_of(rows.height, 'row')} of nvidia-smi without a head: their columns are not known"
        detail = "utilisation of a GPU and of its memory look alike, and so do all powers"
        yield Finding(title, detail, "certain", evidence=[Line(source, rows["line"][0], "a row")])


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("gpu_use",))
def gpu_errors_since_load(gpu_use: pl.DataFrame, smi_gpu: pl.DataFrame) -> Iterator[Finding]:
    """A GPU counts uncorrectable memory errors, or waits for a reset that takes bad memory out of use.

    Means: a process that reads the damaged memory is killed (Xid 48, 94, 95), and its peers wait for it.
    Not when: the errors are correctable, or older than the driver's start; a reset alone is pending, which is no error.
    Do: drain the host; dmesg -T | grep -i xid; reset the GPU, and dcgmi diag -r 3.
    Sources: nvidia-smi(1), ecc.errors.uncorrected.volatile, retired_pages.pending; NVIDIA, GPU memory error management.
    """
    queried = set(smi_gpu.select("source", "line").rows())  # another rule reports errors in nvidia-smi -q
    rows = gpu_use.with_columns(errors=pl.col("uncorrectable").fill_null(0))
    rows = rows.filter((pl.col("errors") > 0) | pl.col("is_pending").fill_null(value=False))
    for row in rows.unique(GPU, keep="last", maintain_order=True).to_dicts():
        has_errors = row["errors"] > 0
        if has_errors and (row["source"], row["line"]) in queried:
            continue
        yield Finding(
            title=f"{_name(row)} has memory errors"
            if has_errors
            else f"{_name(row)} waits for a reset to take bad memory out of use",
            detail=f"{count_of(row['errors'], 'uncorrectable error')} since the driver was loaded"
            if has_errors
            else "rows to remap or pages to retire are pending; until then the GPU may use the bad memory",
            certainty="certain",
            severity=Severity.WARNING if has_errors else Severity.INFO,
            role=Role.CAUSE if has_errors else Role.CONTEXT,
            hosts=[row["host"]] if row["host"] else [],
            evidence=[Line(row["source"], row["line"], "the GPU")],
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("smi_gpu",))
def gpu_not_in_fabric(smi_gpu: pl.DataFrame) -> Iterator[Finding]:
    """A GPU is not registered with the fabric of NVLink, by nvidia-smi -q.

    Means: on a host with NVSwitches, CUDA does not start on it (error 802, system not yet initialized), or the GPU
    reaches no other over NVLink. In Progress: Fabric Manager, or NVLink's subnet manager, does not run. Completed with
    another status than Success: the registration failed.
    Not when: the state is N/A, as on a host without NVSwitches; the host has just started.
    Do: systemctl status nvidia-fabricmanager; its log in /var/log/fabricmanager.log; dmesg -T | grep -i -e xid -e
    nvswitch; then reset the GPUs or reboot the host.
    Sources: NVIDIA, Fabric Manager user guide; nvml.h, nvmlGpuFabricInfo_t.
    """
    state, status = pl.col("fabric_state"), pl.col("fabric_status")
    failed = smi_gpu.filter((state != REGISTERED) | (status != REGISTERED_WELL))
    for (state_text, status_text), rows in failed.group_by("fabric_state", "fabric_status", maintain_order=True):
        why = f"its registration ended with “{status_text}”" if state_text == REGISTERED else f"state: {state_text}"
        title, detail = "not registered with the fabric of NVLink", f"{why}; NVLink does not connect it to other GPUs"
        yield _shown_of_gpus(rows, title, detail, "fabric_line")


@rule(Category.LINK_ERROR, Severity.WARNING, of=("smi_gpu",))
def gpu_fabric_unhealthy(smi_gpu: pl.DataFrame) -> Iterator[Finding]:
    """A GPU's connection to the fabric of NVLink is not healthy, by nvidia-smi -q (GB200 and later).

    Means: NVLinks of the GPU are missing, a path through the fabric is faulty or being replaced, or its configuration
    is not the one of its partition. With *degraded* bandwidth programs go on at fewer NVLinks; over a faulty route
    memory of other GPUs cannot be read, and calls of NCCL that use it stand still or fail.
    Not when: the conditions are Healthy, Full, False or None; they are N/A, as on a host without NVSwitches.
    Do: nvidia-smi nvlink -s on the host; its Fabric Manager or NMX controller, and dmesg -T | grep -i xid; drain the
    host, and reset the GPU once the links are up.
    Sources: nvml.h, nvmlGpuFabricInfo_v3_t, NVML_GPU_FABRIC_HEALTH_MASK; gpud, fabric-manager.
    """
    faulty = smi_gpu.filter(pl.col("fabric_faults") != "")
    for (faults,), rows in faulty.group_by("fabric_faults", maintain_order=True):
        title = "its connection to the fabric of NVLink is not healthy"
        yield _shown_of_gpus(rows, title, f"nvidia-smi shows {faults}", "fabric_fault_line")


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("smi_gpu",))
def gpu_wants_recovery(smi_gpu: pl.DataFrame) -> Iterator[Finding]:
    """The driver asks for a reset of a GPU, or a reboot, before it can be used as before (nvidia-smi -q).

    Means: an error left the GPU, its NVLinks or the driver in a state that only this ends. *Drain* actions let running
    programs end first.
    Not when: the action is None, or the driver is older than 560 and names none.
    Do: dmesg -T | grep -i xid for what happened; drain the host; nvidia-smi --gpu-reset -i GPU, or reboot.
    Sources: nvidia-smi(1), GPU Recovery Action; nvml.h, nvmlDeviceGpuRecoveryAction_t.
    """
    asked = smi_gpu.filter(pl.col("recovery") != "None")
    for (action,), rows in asked.group_by("recovery", maintain_order=True):
        detail = "until then programs on it may fail, or use fewer NVLinks or less memory"
        yield _shown_of_gpus(rows, f"the driver asks for: {action}", detail, "recovery_line")


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("gpu_use",), fallback=True)
def gpu_readings_fail(gpu_use: pl.DataFrame) -> Iterator[Finding]:
    """nvidia-smi shows errors in place of readings of a GPU.

    Means: the driver, or the firmware of the GPU (GSP), did not answer. Where not even its use can be read, programs on
    the GPU mostly hang or fail. An error of the fan or of the power alone is a note: the GPU computes on.
    Not when: another finding answers for the GPU; a reading is N/A alone, which the GPU does not have.
    Do: dmesg -T | grep -e NVRM -e Xid for what happened; reset the GPU (nvidia-smi --gpu-reset -i GPU), or reboot.
    Sources: nvidia-smi(1); nvml.h, nvmlReturn_t.
    """
    unread = gpu_use.filter(pl.col("unread") != "").unique(GPU, keep="last", maintain_order=True)
    is_working = pl.col("utilization").is_not_null()
    for (host, cells, works), rows in unread.group_by("host", "unread", is_working, maintain_order=True):
        names = [str(name) for name in rows["gpu"].drop_nulls()]
        gpus = f"GPU{'s' * (len(names) > 1)} {some_of(names, SHOWN)}" if names else "a GPU that the lines do not name"
        places = [
            (row["source"], row["line"], row["unread_line"] or row["line"]) for row in rows.head(SHOWN).to_dicts()
        ]
        yield Finding(
            title=f"nvidia-smi cannot read values of {gpus}{f' on {host}' if host else ''}: {cells}",
            detail="its use can be read: it works, and what watches over it does not"
            if works
            else "nor its use: the driver or the firmware of the GPU does not answer",
            certainty="certain",
            severity=Severity.INFO if works else Severity.WARNING,
            role=Role.CONTEXT if works else Role.CAUSE,
            hosts=[str(host)] if host else [],
            evidence=[Line(source, line, "the GPU") for source, *lines in places for line in dict.fromkeys(lines)],
        )


def _shown_of_gpus(rows: pl.DataFrame, title: str, detail: str, line: str) -> Finding:
    """Return the finding on what nvidia-smi -q shows of these GPUs, in the lines of this column."""
    names = [str(device) for device in rows["device"].drop_nulls()]
    what = f"GPU {some_of(names, SHOWN)}" if names else "a GPU that the lines do not name"
    return Finding(
        title=f"{what}: {title}",
        detail=detail,
        certainty="certain",
        evidence=[Line(source, number) for source, number in rows.select("source", line).head(3).rows()],
    )


@rule(Category.STRAGGLER, Severity.WARNING, of=("gpu_use",))
def gpu_clocks_lowered(gpu_use: pl.DataFrame) -> Iterator[Finding]:
    """The hardware, or its temperature, lowers the clocks of a GPU.

    Means: heat, power or the power brake of the machine slows the GPU down, and all ranks wait for it in every step.
    Not when: the reason is a power cap that was set (SW Power Cap), or that the GPU is idle; neither is a fault.
    Do: run nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER on that host; check fans, air flow and power supplies.
    Sources: nvidia-smi(1), clocks_event_reasons.
    """
    slow = gpu_use.filter(pl.col("slowdown").is_not_null())
    for row in slow.unique(GPU, keep="last", maintain_order=True).to_dicts():
        yield Finding(
            title=f"the clocks of {_name(row)} are lowered: {row['slowdown']}",
            detail="the other ranks wait for a slower GPU in every collective",
            certainty="likely",
            hosts=[row["host"]] if row["host"] else [],
            evidence=[Line(row["source"], row["slowdown_line"] or row["line"], "the clocks")],
        )
