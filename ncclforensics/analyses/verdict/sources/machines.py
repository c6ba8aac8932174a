"""Failed parts of machines: links, NICs, GPUs, memory and volumes, as kernels, fabric tools and host tools show them.

A total of a counter whose age is unknown is no condition: only what increased between two dumps.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

import polars as pl

from ncclforensics.analyses.job.ends.kernel_events import BUS_ERRORS, of_these_days
from ncclforensics.data.counters import LINK_DOWNED
from ncclforensics.data.kernel_faults import XIDS_OF_HARDWARE
from ncclforensics.data.processes import OF_CONTROL_GROUP
from ncclforensics.frames.columns import LINE, short_host, text_of, with_all_columns
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import NO_YEAR, time_of


class Part(StrEnum):
    """What failed."""

    LINK = "link"  # a port lost its link
    PATH = "path"  # a part of the fabric through which nearly all pairs of hosts fail
    NIC = "nic"
    SWITCH = "switch"  # an NVSwitch
    BUS = "bus"  # a PCIe port or device
    GPU = "gpu"
    HOST_MEMORY = "host-memory"  # the kernel ended a process to free memory of the host
    MEMORY_LIMIT = "memory-limit"  # or because its control group, such as a container, reached its limit
    BROKEN_MEMORY = "broken-memory"
    VOLUME = "volume"  # no space is left


CONDITION = {
    "kind": pl.String(),
    "host": pl.String(),  # without its domain, or a switch; null where no line names it
    "device": pl.String(),  # NIC as RDMA tools name it, such as mlx5_0
    "port": pl.Int32(),
    "gpu": pl.String(),  # PCI address as NCCL prints it
    "pid": pl.Int32(),
    "path": pl.String(),  # where the volume is mounted
    "earliest": pl.Datetime("us"),  # when it was not yet so, by the dump before; null: `moment` is exact
    "moment": pl.Datetime("us"),  # as it is printed
    "is_in_run": pl.Boolean(),  # this time is one of the run; null: no times show it
    **LINE,
}

FATAL, DOWN, UNCORRECTABLE = "Fatal", "DOWN", "UE"  # as kernels print them
SHARED_MEMORY = "/dev/shm"
NO_SPACE = "No space left"
ANY_DAY = timedelta(days=36500)
_PORT = ["host", "device", "guid", "port"]  # columns by which two dumps show the same port
_TIMES = ("logged", "launcher_time")


@analysis(
    CONDITION,
    of=(
        "hardware_event",
        "kernel_kill",
        "port_state",
        "counter_increase",
        "gpu_use",
        "failure",
        "shared_memory",
        "shared_part",
    ),
)
def condition(
    hardware_event: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    port_state: pl.DataFrame,
    counter_increase: pl.DataFrame,
    gpu_use: pl.DataFrame,
    failure: pl.DataFrame,
    shared_memory: pl.DataFrame,
    shared_part: pl.DataFrame,
    run_days: pl.DataFrame,
    run_start: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line that shows a failed part of a machine, at whatever time and on whatever host."""
    found = [
        _of_hardware(hardware_event, run_days, run_start),
        _of_kills(kernel_kill, run_days, run_start),
        _of_ports(port_state),
        _of_counters(counter_increase),
        _of_gpus(gpu_use),
        _of_volumes(failure, shared_memory),
        _of_paths(shared_part),
    ]
    return pl.concat([with_all_columns(rows, CONDITION) for rows in found]).unique(maintain_order=True)


def _moment(rows: pl.DataFrame) -> pl.Expr:
    """The time of a kernel's line, by the first of its clocks that the line carries."""
    clocks = [time_of(name, NO_YEAR) for name in _TIMES if name in rows.columns]
    return pl.coalesce(*clocks, pl.lit(None, pl.Datetime("us")))


def _of_hardware(hardware_event: pl.DataFrame, run_days: pl.DataFrame, run_start: pl.DataFrame) -> pl.DataFrame:
    """Return the faults that the kernel logged, and the GPUs that nvidia-smi cannot reach."""
    if hardware_event.is_empty():
        return hardware_event.select("source", "line")
    form, is_down = pl.col("form"), text_of("state").str.to_uppercase() == DOWN
    kind = (
        pl.when(form.is_in(["link", "port"]) & is_down | (form == "cable"))
        .then(pl.lit(Part.LINK))
        .when(form == "fatal")
        .then(pl.lit(Part.NIC))
        .when((form == "sxid") & (pl.col("severity") == FATAL))
        .then(pl.lit(Part.SWITCH))
        .when(
            (form == "contained")
            | ((form == "slot") & is_down)
            | (form.is_in(BUS_ERRORS) & text_of("pci_severity").str.contains(f"({FATAL})", literal=True))
        )
        .then(pl.lit(Part.BUS))
        .when(form.is_in(["lost", "no_handle"]) | ((form == "xid") & pl.col("xid").is_in(list(XIDS_OF_HARDWARE))))
        .then(pl.lit(Part.GPU))
        .when((form == "memory") & (pl.col("memory_error") == UNCORRECTABLE))
        .then(pl.lit(Part.BROKEN_MEMORY))
    )
    events = of_these_days(hardware_event, run_days, run_start, ANY_DAY).with_columns(kind=kind).drop_nulls("kind")
    return events.select(
        "kind", "pid", "is_in_run", "source", "line",
        host=short_host("node"), moment=_moment(events), gpu=pl.when(kind=Part.GPU).then(text_of("busid")),
    )  # fmt: skip


def _of_kills(kernel_kill: pl.DataFrame, run_days: pl.DataFrame, run_start: pl.DataFrame) -> pl.DataFrame:
    """Return the processes that the kernel ended for want of memory, or because they read damaged memory."""
    if kernel_kill.is_empty():
        return kernel_kill.select("source", "line")
    kind = (
        pl.when(pl.col("form") == "memory_failure")
        .then(pl.lit(Part.BROKEN_MEMORY))
        .when(pl.any_horizontal(text_of(name).is_in(OF_CONTROL_GROUP) for name in ("out_of_memory", "constraint")))
        .then(pl.lit(Part.MEMORY_LIMIT))
        .when(pl.col("form").is_in(["out_of_memory", "chosen", "oom_kill", "reaped"]))
        .then(pl.lit(Part.HOST_MEMORY))
    )
    kills = of_these_days(kernel_kill, run_days, run_start, ANY_DAY).with_columns(kind=kind).drop_nulls("kind")
    return kills.select("kind", "pid", "is_in_run", "source", "line", host=short_host("node"), moment=_moment(kills))


def _of_ports(port_state: pl.DataFrame) -> pl.DataFrame:
    """Return the ports that were active in one dump and down in the last one; unused ports are always down."""
    timed = port_state.filter(pl.col("moment").is_not_null() & pl.col("state").is_not_null()).sort("moment")
    ports = timed.group_by(*_PORT, maintain_order=True).agg(
        was_active=(pl.col("state").first() == "active"),
        state=pl.col("state").last(),
        earliest=pl.col("moment").first(),
        moment=pl.col("moment").last(),
        source=pl.col("source").last(),
        line=pl.col("line").last(),
    )
    lost = ports.filter("was_active", pl.col("state") == "down")
    return lost.with_columns(short_host("host").alias("host"), kind=pl.lit(Part.LINK))


def _of_counters(counter_increase: pl.DataFrame) -> pl.DataFrame:
    """Return the ports that lost their link between two dumps, and of which a host is known."""
    lost = counter_increase.filter((pl.col("name") == LINK_DOWNED) & (pl.col("increase") > 0))
    lost = lost.filter(pl.col("host").is_not_null())
    return lost.select(
        "device", "port", "source", "line",
        kind=pl.lit(Part.LINK), host=short_host("host"), earliest="last_unchanged", moment="first_increase",
    )  # fmt: skip


def _of_gpus(gpu_use: pl.DataFrame) -> pl.DataFrame:
    """Return the GPUs that count uncorrectable memory errors since their driver was loaded."""
    broken = gpu_use.filter(pl.col("uncorrectable") > 0)
    return broken.select("source", "line", kind=pl.lit(Part.GPU), host=short_host("host"), pid="pid")


def _of_volumes(failure: pl.DataFrame, shared_memory: pl.DataFrame) -> pl.DataFrame:
    """Return the processes whose shared memory found no space."""
    full = text_of("error").fill_null("").str.contains(NO_SPACE, literal=True)
    of_failures = failure.filter((pl.col("form") == "shared_memory_full") | (full & (pl.col("form") == "system_call")))
    of_segments = shared_memory.filter(full & (pl.col("form") != "again"))
    rows = [frame.select(text_of("host"), "pid", "source", "line") for frame in (of_failures, of_segments)]
    return pl.concat(rows).with_columns(host=short_host("host"), kind=pl.lit(Part.VOLUME), path=pl.lit(SHARED_MEMORY))


def _of_paths(shared_part: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of the fabric through which pairs fail, at the hosts of jobs whose own transfers failed there.

    A part that no transfer of a job went through has its own name as host, which is that of no rank.
    """
    failed = shared_part.filter(pl.col("failed") > 0)
    at = pl.col("evidence").list.last()  # in the map
    hosts = pl.when(pl.col("job_hosts").list.len() > 0).then("job_hosts").otherwise(pl.col("parts").list.head(1))
    rows = failed.select(source=at.list.get(0), line=at.list.get(1), host=hosts, kind=pl.lit(Part.PATH))
    return rows.explode("host").with_columns(host=short_host("host"))
