"""What a kernel log shows of PCIe links, ports of NICs and NVSwitches, where no job fails beside it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.kernel_events import BUS_ERRORS
from ncclforensics.data.kernel_faults import (
    FATAL_SXIDS,
    PCI_ERRORS,
    RESET_TEXT,
    SXIDS,
    SXIDS_OF_RESETS,
    SXIDS_THAT_STOP,
)
from ncclforensics.data.names import count_of, pci_address, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.kernel_log import (
    MANY,
    JobBeside,
    kernel_log_findings,
    named_devices,
    rate_text,
    times_text,
)

FATAL, NOT_FATAL, CORRECTED = "uncorrected fatal", "uncorrected, not fatal,", "corrected"
RESEAT = (
    "reboot the host, which brings the device back if it was lost; reseat the card, its riser and its cables; if it "
    "comes back, ask the vendor; `lspci -tv` shows which device is behind a port"
)
COMPARE = (
    "compare `lspci -vv -s DEVICE` (LnkSta against LnkCap) with another host; reseat the card, its riser and its "
    "cables; `lspci -tv` shows which device is behind a port"
)
SEVERITIES = {FATAL: Severity.ERROR, NOT_FATAL: Severity.WARNING}
OF_LINES = ["source", "line"]
GPU_DRIVERS = ("nvidia", "amdgpu")


@rule(Category.LINK_ERROR, Severity.WARNING, of=("kernel_event", "kernel_message"), hang=True, fallback=True)
def kernel_pcie_errors(
    kernel_event: pl.DataFrame, kernel_message: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame
) -> Iterator[Finding]:
    """The kernel logged errors of PCIe (AER).

    Means: fatal ones take the link of the device down, and a GPU behind it is lost (Xid 79); of those that are not
    fatal the driver lost a transfer; corrected ones were sent again, and cost time only where they are many: a poor
    contact of a card, a riser or a cable. The address is that of the device that reports, often the port above the
    device.
    Not when: a few corrected errors; another finding explains the lines.
    Do: reseat the card; compare LnkSta in lspci -vv with other hosts; reboot the host if the device was lost.
    Sources: Linux, drivers/pci/pcie/aer.c, Documentation/PCI/pcieaer-howto.rst.
    """
    job, severity = JobBeside.of(rank, verdict), text_of("pci_severity")
    kinds = (
        pl.when(severity.str.starts_with("Correct"))
        .then(pl.lit(CORRECTED))
        .when(severity.str.ends_with("(Fatal)"))
        .then(pl.lit(FATAL))
        .otherwise(pl.lit(NOT_FATAL))
    )
    events = kernel_event.filter(text_of("form").is_in(BUS_ERRORS)).with_columns(kind=kinds).sort(OF_LINES)
    unrecovered = kernel_message.filter(text_of("form").is_in(["unrecovered"]))
    names = _names_of_errors(events, kernel_message)
    has_uncorrected = not events.filter(pl.col("kind") != CORRECTED).is_empty()
    for (kind,), rows in events.group_by("kind", maintain_order=True):
        reported = rows.filter(pl.col("form") == "bus_error")
        counted = reported if reported.height else rows
        lost = unrecovered if kind != CORRECTED else unrecovered.clear()
        yield from _pcie_findings(str(kind), counted, lost, names.get(str(kind), []), job)
    if unrecovered.height and not has_uncorrected:
        title = f"PCIe: {_unrecovered_text(unrecovered)}{{where}} after an uncorrected error"
        yield from kernel_log_findings(unrecovered, title, [], Severity.ERROR, RESEAT, job)


def _names_of_errors(events: pl.DataFrame, kernel_message: pl.DataFrame) -> dict[str, list[str]]:
    """Kind of errors -> the names of errors in the lines below them."""
    named = kernel_message.filter(pl.col("form") == "pci_error").sort(OF_LINES)
    below = named.join_asof(events.select(*OF_LINES, "kind"), on="line", by="source", check_sortedness=False)
    names = (
        below.drop_nulls("kind")
        .group_by("kind", maintain_order=True)
        .agg(text_of("pci_error").unique(maintain_order=True))
    )
    return {kind: list(found) for kind, found in names.iter_rows()}


def _unrecovered_text(unrecovered: pl.DataFrame) -> str:
    devices = {
        f"{driver} {pci_address(busid)}": None for driver, busid in unrecovered.select("driver", "busid").iter_rows()
    }
    is_gpu = any(name.startswith(GPU_DRIVERS) for name in devices)
    names = sorted(devices, key=lambda name: not name.startswith(GPU_DRIVERS))
    return f"{', '.join(names[:2])} could not be recovered" + " (the GPU is lost until a reset)" * is_gpu


def _pcie_findings(
    kind: str, rows: pl.DataFrame, lost: pl.DataFrame, names: list[str], job: JobBeside
) -> Iterator[Finding]:
    errors = "errors" if rows.height > 1 else "error"
    what = ", ".join(dict.fromkeys(PCI_ERRORS.get(name, name) for name in names))
    title = f"PCIe reported {rows.height:,} {kind} {errors} at {named_devices(rows)}{{where}}" + f" ({what})" * bool(
        what
    )
    details = [times_text(rows), rate_text(rows, rows.height)]
    if lost.height:
        title += f": {_unrecovered_text(lost)}"
    if kind == CORRECTED:
        details.insert(0, "each was sent again, so that nothing is lost but time")
        severity = Severity.WARNING if rows.height >= MANY else Severity.INFO
        yield from kernel_log_findings(rows, title, details, severity, COMPARE, job)
        return
    counts = rows.group_by("busid", maintain_order=True).len()
    if counts.height > 1:
        details.insert(0, ", ".join(f"{pci_address(busid)}: {number}" for busid, number in counts.head(6).iter_rows()))
    shown = pl.concat([rows.select("node", *OF_LINES), lost.select("node", *OF_LINES)], how="vertical_relaxed")
    yield from kernel_log_findings(shown, title, details, SEVERITIES[kind], RESEAT, job)


@rule(Category.LINK_ERROR, Severity.WARNING, of=("kernel_event",), hang=True, fallback=True)
def kernel_nvswitch_errors(kernel_event: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """An NVSwitch reported an error (SXid).

    Means: after a fatal one the GPUs of that host cannot use their NVLinks until they and the switches are reset.
    12028 and 11004 follow where a GPU or a virtual machine was reset while others still sent to it: traffic stalls,
    and programs end with Xid 45. Others that are not fatal were corrected, or tell of a link that trains again.
    Not when: another finding explains the lines. A line without a severity is fatal where NVIDIA's tables say so.
    Do: for fatal ones drain the host, reset all its GPUs and NVSwitches (nvidia-smi -r), or reboot; field diagnostic.
    Sources: NVIDIA, Fabric Manager user guide, SXid errors.
    """
    job = JobBeside.of(rank, verdict)
    events = kernel_event.filter(text_of("form").str.starts_with("sxid")).sort(OF_LINES)
    of_tables = pl.when(pl.col("xid").is_in(list(FATAL_SXIDS))).then(pl.lit("Fatal")).otherwise(pl.lit("Non-fatal"))
    printed = text_of("severity").drop_nulls().first().over("source", "switch", "xid")
    events = events.with_columns(kind=pl.coalesce(printed, of_tables))
    for (sxid, kind), rows in events.group_by("xid", "kind", maintain_order=True):
        number = int(str(sxid))
        faults = [*rows["fault"].drop_nulls().unique(maintain_order=True), *filter(None, [SXIDS.get(number)])]
        switches = sorted(
            {
                f"NVSwitch {switch} ({pci_address(busid)})"
                for switch, busid in rows.select("switch", "busid").iter_rows()
            }
        )
        few = some_of(switches, 2)
        is_fatal = kind == "Fatal"
        title = (
            f"{few}{{where}}: SXid {number}" + "".join(f", {fault}" for fault in faults[:1]) + f" ({str(kind).lower()})"
        )
        details = [count_of(rows.height, "line"), times_text(rows)]
        if number in SXIDS_OF_RESETS:
            details.insert(0, RESET_TEXT)
        is_worth_a_look = number in SXIDS_THAT_STOP
        severity = Severity.ERROR if is_fatal else Severity.WARNING if is_worth_a_look else Severity.INFO
        remedy = RESET_SWITCHES if is_fatal or is_worth_a_look else "nothing at first; look at what else the host logs"
        yield from kernel_log_findings(rows, title, details, severity, remedy, job)


RESET_SWITCHES = (
    "look for Xids of the GPUs at the same time; reset all GPUs and NVSwitches of the host (nvidia-smi -r), or reboot; "
    "if it comes back, run NVIDIA's field diagnostic"
)
CHECK_QUEUE = (
    "ethtool -S PORT, ethtool PORT and dmesg -T on this host; update the driver and the firmware; look at its cable"
)
CHECK_PORT = "mlxlink -d DEVICE -m on this host; compare its counters and its cable with those of other ports"
MEND_NIC = (
    "read the lines on its health below (synd names the reason); `devlink health`; reset it (mlxfwreset) or reboot the "
    "host; update its firmware; if it comes back, ask the vendor"
)
DOWN = "DOWN"
UP = ("UP", "ACTIVE")
OFTEN = 3


@rule(Category.LINK_ERROR, Severity.WARNING, of=("kernel_event", "kernel_message", "carrier"), hang=True, fallback=True)
def kernel_port_reports(
    kernel_event: pl.DataFrame,
    kernel_message: pl.DataFrame,
    carrier: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """The kernel logged that a NIC failed, that a PCIe port cut off its device, or that a port lost its link.

    Means: a cable, a module, a switch or the NIC itself; a link that is down when the log ends, or goes down again
    and again, makes transfers fail.
    Not when: another finding explains the lines; the link came up, and went down once or twice: hosts that start do
    that; a module was plugged in. A port that never had a module while the log shows it is a note: it is not in use.
    Do: mlxlink -d DEVICE -m on this host; compare its counters and its cable with other ports.
    Sources: Linux, drivers/net/ethernet/mellanox/mlx5/core, drivers/pci/hotplug, drivers/pci/pcie/dpc.c.
    """
    job = JobBeside.of(rank, verdict)
    form, is_down = text_of("form"), text_of("state").str.to_uppercase() == DOWN
    failed = {
        "fatal": ("the NIC {device} failed{where}: its firmware does not answer, or stopped", Severity.ERROR, MEND_NIC),
        "health": ("the NIC {device} reports an issue of its firmware or hardware{where}", Severity.WARNING, MEND_NIC),
        "cable": ("the module or cable of NIC {device} reports: {fault}{where}", Severity.WARNING, CHECK_PORT),
        "contained": ("PCIe port {device} cut off the device below it{where}", Severity.ERROR, RESEAT),
    }
    by_port = kernel_event.sort(OF_LINES).with_columns(is_unused=_is_unused())
    for kind, (title, worst, remedy) in failed.items():
        of_kind = by_port.filter(form == kind)
        for (fault, is_unused), rows in of_kind.group_by("fault", "is_unused", maintain_order=True):
            severity = Severity.INFO if is_unused else worst
            named = title.replace("{device}", named_devices(rows)).replace("{fault}", str(fault).lower())
            yield from kernel_log_findings(rows, named, [times_text(rows)], severity, remedy, job)
    links = kernel_event.filter(form.is_in(["link", "port", "slot"])).with_columns(is_down=is_down)
    carriers = carrier.select(
        form=pl.lit("link"),
        netdev=text_of("interface"),
        node=text_of("launcher_node"),
        is_down=text_of("form") == "lost",
        logged="launcher_time",
        source="source",
        line="line",
        is_repeated=pl.lit(value=True),  # of what a driver says, too, in front of it
    )
    links = pl.concat(
        [links.with_columns(pl.col("form", "netdev", "node").cast(pl.String)), carriers], how="diagonal_relaxed"
    )
    links = links.sort(OF_LINES)
    name = pl.coalesce(text_of("netdev"), text_of("busid"))
    for (_, _, port), rows in links.with_columns(port=name).group_by("node", "source", "port", maintain_order=True):
        is_same = pl.col("is_down") == pl.col("is_down").shift(1)
        downs = rows.filter(pl.col("is_down") & ~(is_same & pl.col("is_repeated")).fill_null(value=False))
        is_left_down = bool(rows["is_down"][-1])
        if downs.is_empty() or not (is_left_down or downs.height >= OFTEN):
            continue
        what = f"PCIe slot {named_devices(rows)}" if rows["form"][0] == "slot" else f"port {port}"
        title = f"the link of {what}{{where}} went down" + f" {downs.height} times" * (downs.height > 1)
        details = [
            times_text(downs),
            "no line that was read shows that it came up again" if is_left_down else "it came up again",
        ]
        yield from kernel_log_findings(downs, title, details, Severity.WARNING, CHECK_PORT, job)
    for (netdev,), rows in kernel_message.filter(form == "transmit").group_by("netdev", maintain_order=True):
        title = f"{netdev}{{where}}: the NIC did not send what it was given (its transmit queue timed out or hung)"
        yield from kernel_log_findings(rows, title, [], Severity.WARNING, CHECK_QUEUE, job)


def _is_unused() -> pl.Expr:
    """Return whether a module is missing from a port that had none before: drivers report that when they start."""
    is_missing = text_of("fault") == "Cable unplugged"
    is_used = (text_of("form") == "plugged") | (text_of("state").str.to_uppercase().is_in(UP)).fill_null(value=False)
    address = text_of("busid").fill_null("")
    return (is_missing & ~is_used.cum_max().over("source", "node", address)).fill_null(value=False)
