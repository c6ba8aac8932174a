"""What a kernel log shows of GPUs, their drivers, memory and processors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ncclforensics.data.kernel_faults import RECOVERY, UNKNOWN_XID, XIDS, XIDS_OF_HARDWARE, Origin
from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.kernel_log import (
    OF_LINES,
    JobBeside,
    call_trace,
    devices_text,
    kernel_log_findings,
    lines_beside,
    listed_stacks,
    times_text,
    with_addresses_of_amd,
)

RECOVERED = "Nonfatal"
SHOWN = 2
SHOWN_PROCESSES = 3


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("kernel_event",), hang=True)
def kernel_xid(kernel_event: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """NVIDIA's driver logged an Xid that is not, by its number, a fault of the hardware.

    Means: see NVIDIA's catalogue, from which the meaning is. 13, 31, 43 and 69 come mostly from the program: a
    kernel used an illegal address or instruction; the same on one GPU alone, with several programs, points at the
    GPU. 109 is a time-out that either causes. 45 follows from another error or from the end of the program. 63 and
    92 tell of errors that were corrected.
    Not when: the number is of a fault of the hardware, which has a finding of its own; the line names a process that is
    no rank of the job in these files.
    Do: for 13, 31 and 43 run the program under compute-sanitizer; for 109 reset the GPU; for 63 reset it when it is
    idle.
    Sources: NVIDIA, catalogue of Xid errors.
    """
    job = JobBeside.of(rank, verdict)
    is_other = ~pl.col("xid").is_in(list(XIDS_OF_HARDWARE)) | (text_of("severity") == RECOVERED).fill_null(False)
    events = kernel_event.filter((text_of("form") == "xid") & is_other | (text_of("form") == "recovered"))
    if rank["pid"].count():
        events = events.filter(pl.col("pid").is_null() | pl.col("pid").is_in(rank["pid"].drop_nulls().implode()))
    for (number,), rows in events.sort(OF_LINES).group_by("xid", maintain_order=True):
        xid = XIDS.get(int(str(number)), UNKNOWN_XID)
        is_over = bool((rows["form"] == "recovered").all()) or int(str(number)) in XIDS_OF_HARDWARE
        faults = pl.Series([*rows["fault"].cast(pl.String), *rows["message"]]).drop_nulls().unique(maintain_order=True)
        programs = rows.select(text_of("program"), "pid").unique(maintain_order=True).drop_nulls("pid").rows()
        details = [
            "; ".join(f"“{fault}”" for fault in faults[:SHOWN]),
            "" if is_over or xid.origin is Origin.HARMLESS else f"it comes mostly from {xid.origin.value}",
            "of " + ", ".join(f"{name or 'a process'} (pid {pid})" for name, pid in programs[:3]) if programs else "",
            count_of(rows.height, "line") if rows.height > 1 else "",
            times_text(rows),
        ]
        gpus = devices_text(rows)
        meaning = "the driver wants no reset any more" if is_over and number == RECOVERY else xid.meaning
        title = f"GPU {gpus or 'that the line does not name'}{{where}}: Xid {number}, {meaning}"
        title += " (it goes on)" * (is_over and number != RECOVERY)
        severity = Severity.INFO if is_over or xid.origin is Origin.HARMLESS else Severity.WARNING
        for finding in kernel_log_findings(rows, title, details, severity, xid.remedy, job):
            of_ranks = rank.filter(pl.col("pid").is_in(rows["pid"].drop_nulls().implode()))
            finding.ranks = of_ranks["rank"].drop_nulls().to_list()
            yield finding


@dataclass(frozen=True, slots=True)
class _Report:
    """What a form of a kernel's line means; `{gpu}`, `{where}` and columns of the line stand in the title."""

    title: str
    detail: str
    severity: Severity
    remedy: str


_WAITED_FOR = "it waited for a disk, a network file system, a driver or a lock"
_LOOK_AT_TRACE = (
    "look at the call trace below for what it waited for; check the file systems and the GPU driver of the host"
)
_PAGE_FAULT_OF_AMD = _Report(
    "a page fault on AMD GPU {device}{where}: a kernel used an address that it may not",
    "mostly a defect of the program",
    Severity.WARNING,
    "run the program with AMD_SERIALIZE_KERNEL=3, to see which kernel it is",
)
_DRIVER_REPORTS = {
    "gpu_init": _Report(
        "the NVIDIA driver could not initialise GPU {device}{where}",
        "no program can use it",
        Severity.ERROR,
        "look at the lines before it in dmesg; reboot the host; reseat the card; update the driver",
    ),
    "gpu_probe": _Report(
        "the NVIDIA driver{where} could not start a GPU",
        "no program can use it; lines around it may name the GPU and the reason",
        Severity.WARNING,
        "look at the lines before it in dmesg; reboot the host; reseat the card; update the driver",
    ),
    "gpu_status": _Report(
        "the NVIDIA driver{where} refuses work for a GPU until it is reset ({driver_status})",
        "programs on it fail; lines before it may name the GPU and the reason",
        Severity.WARNING,
        "look for the first NVRM line in dmesg; nvidia-smi --gpu-reset -i GPU; reboot the host if that fails",
    ),
    "probe": _Report(
        "the driver {driver_of_device}{where} could not start device {device}: {error}",
        "no program can use it; lines before it may tell which step failed",
        Severity.ERROR,
        "look at the lines before it in dmesg; mostly driver, firmware and kernel do not fit: update both; reboot",
    ),
    "slot_power": _Report(
        "the PCIe slot of NIC {device}{where} says that it gives {watts} W, less than the card may need",
        "harmless with copper cables, or if the slot does not say all that it gives; optical modules may stay down",
        Severity.INFO,
        "where a port stays down, look at mlxlink -d DEVICE and at the power settings of the slot in the BIOS",
    ),
    "command_timeout": _Report(
        "NIC {device}{where} did not answer a command of its driver",
        "its firmware is stuck or busy; what waits for the command, such as the set-up of a connection, stands still",
        Severity.ERROR,
        "look for more of them and for `health` lines in dmesg; update the firmware (mlxfwmanager); reboot the host",
    ),
    "file_max": _Report(
        "the host{where} has no file handle left: its limit of {files:,} is reached",
        "no process can open a file, a socket or a device any more (ENFILE: too many open files in system)",
        Severity.ERROR,
        "look at /proc/sys/fs/file-nr and for the process that leaks them (lsof); raise fs.file-max with sysctl",
    ),
    "peermem": _Report(
        "nvidia-peermem{where} reports: {detail}",
        "harmless by itself: a program freed GPU memory that a NIC had registered; drivers before R560 print it",
        Severity.INFO,
        "update the driver to R560 or later; where transfers fail, look at what failed before",
    ),
    "amd_init": _Report(
        "the amdgpu driver could not initialise GPU {device}{where}",
        "no program can use it",
        Severity.ERROR,
        "look at the lines before it in dmesg; reboot the host; reseat the card; update driver and firmware",
    ),
    "amd_power": _Report(
        "the power controller (SMU) of an AMD GPU ({device}){where} does not answer its driver",
        "the GPU is mostly hung: clocks, power and temperature cannot be read, and a reset often fails",
        Severity.WARNING,
        "look at the first amdgpu lines in dmesg; reboot the host; if it comes back, drain it and ask the vendor",
    ),
    "amd_ring": _Report(
        "AMD GPU {device}{where} did not give back a queue of a program",
        "its scheduler (HWS, MES) or a kernel stands still; the driver mostly resets the GPU next",
        Severity.WARNING,
        "look at the first amdgpu lines in dmesg, and at what ran there; reboot the host if the GPU stays so",
    ),
    "amd_timeout": _Report(
        "work on AMD GPU {device}{where} did not end in time: {rings}",
        "a kernel, or the GPU, stood still",
        Severity.WARNING,
        "look at what the program ran; rocm-smi --showras; if it comes with any program, drain the host",
    ),
    "amd_reset": _Report(
        "the driver reset AMD GPU {device}{where}",
        "programs on it fail; lines before it may give the reason",
        Severity.WARNING,
        "look at the lines before it (dmesg -T | grep amdgpu), and rocm-smi --showras",
    ),
    "amd_not_reset": _Report(
        "the driver could not reset AMD GPU {device}{where}",
        "no program can use it until the host is rebooted",
        Severity.ERROR,
        "reboot the host; if it comes back, drain it and ask the vendor",
    ),
    "amd_ring_test": _Report(
        "AMD GPU {device}{where} does not execute what its driver gives it to try (ring {ring})",
        "no program can use it; after a reset it means that the GPU did not come back",
        Severity.ERROR,
        "look at the first amdgpu lines in dmesg; reboot the host; if it comes back, drain it and ask the vendor",
    ),
    "amd_ib_test": _Report(
        "a ring of AMD GPU {device}{where} did not pass its test ({ring})",
        "what uses that ring does not work; after a reset it means that the GPU did not come back as a whole",
        Severity.WARNING,
        "look at the first amdgpu lines in dmesg; reboot the host; if it comes back, update firmware and driver",
    ),
    "amd_reset_end": _Report(
        "AMD GPU {device}{where} was reset, and the reset succeeded",
        "programs that used it failed; these lines do not show why it was reset",
        Severity.WARNING,
        "look at the lines before it (dmesg -T | grep amdgpu), and rocm-smi --showras",
    ),
    "amd_bus": _Report(
        "AMD GPU {device}{where} reported an uncorrected hardware error ({bus_error})",
        "its driver resets it, and with it mostly all GPUs of the host; all programs on them fail",
        Severity.ERROR,
        "look at rocm-smi --showras and at the GPU that reported it first; drain the host; ask the vendor",
    ),
    "amd_fault": _PAGE_FAULT_OF_AMD,
    "amd_fault_status": _PAGE_FAULT_OF_AMD,
    "amd_poison": _Report(
        "a program on AMD GPU {device}{where} read damaged memory",
        "the driver ends the program, or resets the GPU",
        Severity.ERROR,
        "drain the host; rocm-smi --showras, --showretiredpages",
    ),
    "panic": _Report(
        "the kernel{where} panicked: {detail}",
        "the host stopped, and all its ranks with it",
        Severity.ERROR,
        "look at the lines before it and at the BMC's event log; drain the host",
    ),
    "oops": _Report(
        "the kernel{where} crashed: {detail_of_bug}",
        "a driver or the kernel used an invalid address; the host may go on, in an unknown state",
        Severity.ERROR,
        "look at the call trace below for the driver; update it; reboot the host",
    ),
    "warned": _Report(
        "the kernel{where} met a state that its authors did not expect, at {warned_at}",
        "a mistake in the kernel or in a driver, after which it goes on",
        Severity.INFO,
        "look at the call trace below for the driver; where it is of a NIC or a GPU, update it",
    ),
    "soft_lockup": _Report(
        "a processor{where} was stuck in the kernel for {seconds} s (soft lockup, {program})",
        "processes on it did not run meanwhile, so that a rank there is late, or stands still",
        Severity.WARNING,
        "look at the call trace below for the driver; look for swapping, a full disk and the BMC's event log",
    ),
    "hard_lockup": _Report(
        "processor {cpu}{where} was stuck with interrupts off (hard lockup)",
        "nothing ran on it",
        Severity.ERROR,
        "look at the call trace below, and at the BMC's event log; drain the host",
    ),
    "rcu_stall": _Report(
        "a processor{where} did not give way to the kernel in time (RCU stall)",
        "processes on it did not run meanwhile",
        Severity.WARNING,
        "look at the call trace below for the driver; in a virtual machine look at the load of its host",
    ),
    "blocked": _Report(
        "a process{where} was blocked in the kernel for more than {seconds} s: {named}",
        f"{_WAITED_FOR}; a rank that does so is late, or stands still",
        Severity.WARNING,
        _LOOK_AT_TRACE,
    ),
    "waits": _Report(
        "a process{where} waited in the kernel and could not be interrupted: {named}",
        f"{_WAITED_FOR}; not even SIGKILL ends it meanwhile",
        Severity.WARNING,
        _LOOK_AT_TRACE,
    ),
    "listed": _Report(
        "a process{where} stands in the kernel, in {traced_function}: its stack goes through {modules}",
        "so /proc/PID/stack lists it; where it is the same some seconds later, the process waits there",
        Severity.INFO,
        "look twice; of a driver that does not come back, look at its lines in dmesg -T, and reboot the host",
    ),
    "memory_failure": _Report(
        "the kernel{where} ended {program} (pid {pid}), which used damaged memory of the host",
        "a memory module reported an error that it could not correct",
        Severity.ERROR,
        "drain the host; replace the module that EDAC or the BMC names",
    ),
}


# A call trace stands below these.
TRACED = ("blocked", "waits", "warned", "soft_lockup", "hard_lockup", "rcu_stall", "oops")
# Forms of `hardware_event`, `driver_state` and `kernel_message` that say more.
EXPLAINED_BY = {
    "gpu_probe": ["lost", "unsupported", "region", "cables"],
    "gpu_status": ["lost", "xid"],
    "amd_fault_status": ["amd_fault"],
    "amd_ring": ["amd_reset", "amd_not_reset"],
    "amd_reset_end": ["amd_reset", "amd_not_reset", "amd_timeout", "amd_recovered"],
}


@rule(
    *(Category.APPLICATION_ERROR, Severity.WARNING),
    of=("kernel_message", "kernel_kill", "kernel_frame"),
    hang=True,
    fallback=True,
)
def kernel_driver_reports(
    kernel_message: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    hardware_event: pl.DataFrame,
    driver_state: pl.DataFrame,
    kernel_frame: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """The kernel, or the driver of a GPU, logged that it failed, stood still or reset a GPU.

    Means: what the title says of this host; ranks on it were late, failed or ended at that time.
    Not when: another finding explains the lines, as that of a GPU that fell off the bus explains why it did not start.
    nvidia-peermem's `invalid context` is harmless by itself.
    Do: read the lines before it in dmesg -T; drain the host if it comes again.
    Sources: Linux: kernel/panic.c, kernel/watchdog.c, kernel/hung_task.c, kernel/rcu/tree_stall.h,
    drivers/gpu/drm/amd/amdgpu, fs/proc/base.c; NVIDIA open-gpu-kernel-modules: nv.c, nvidia-peermem.c;
    nv_peer_memory#120.
    """
    job = JobBeside.of(rank, verdict)
    program = pl.coalesce(text_of("program"), text_of("task_name")).alias("program")
    columns = ["form", "node", program, "pid", "seconds", "logged", "launcher_time", *OF_LINES]
    kills = kernel_kill.filter(text_of("form").is_in(["blocked", "waits", "memory_failure"])).select(columns)
    blocked = kills.filter(text_of("form") == "blocked")["pid"]
    kills = kills.filter((text_of("form") != "waits") | ~pl.col("pid").is_in(blocked.implode()))
    messages = kernel_message.filter(text_of("form").is_in(list(_DRIVER_REPORTS)))
    events_of = (hardware_event, driver_state, kernel_message)
    reported = pl.concat([frame.select(text_of("form"), "source") for frame in events_of])
    for form, events in EXPLAINED_BY.items():
        explained = reported.filter(pl.col("form").is_in(events))["source"]
        messages = messages.filter((text_of("form") != form) | ~pl.col("source").is_in(explained.implode()))
    messages = with_addresses_of_amd(messages, kernel_message)
    rows = pl.concat([messages, kills, listed_stacks(kernel_frame)], how="diagonal_relaxed").sort(OF_LINES)
    for (form, _), alike in rows.group_by(text_of("form"), text_of("node"), maintain_order=True):
        report = _DRIVER_REPORTS[str(form)]
        first = alike.row(0, named=True)
        errno = first["errno"]
        device = ", ".join(filter(None, [devices_text(alike), *alike["device"].cast(pl.String).drop_nulls().unique()]))
        fields = {**first, "device": device or "that the line does not name", "where": "{where}"}
        fields["error"] = f"{os.strerror(errno).lower()} (error -{errno})" if errno else "it gave up waiting for it"
        names = alike.select(pl.format("{} (pid {})", text_of("program"), "pid")).to_series().drop_nulls()
        rings = alike["ring"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
        fields["rings"] = f"ring{'s' * (len(rings) > 1)} {some_of(rings, SHOWN_PROCESSES)}"
        fields["named"] = some_of(names.unique(maintain_order=True).to_list(), SHOWN_PROCESSES)
        title = report.title.format_map(fields)
        details = [
            report.detail,
            *lines_beside(str(form), alike, kernel_message),
            *(call_trace(alike, kernel_frame) if form in TRACED else []),
            count_of(alike.height, "line") if alike.height > 1 else "",
            times_text(alike),
        ]
        yield from kernel_log_findings(alike, title, details, report.severity, report.remedy, job)
