"""Link and device failures in the kernel log, reported if the job's network or a process failed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import LOST, NETWORK
from ncclforensics.analyses.job.ends.kernel_events import BUS_ERRORS
from ncclforensics.data.names import pci_address
from ncclforensics.frames.columns import short_host, short_name, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

NETWORK_FORMS = ["link", "port", "cable", "fatal"]
DOWN = "DOWN"
FATAL = "Fatal"
OUTSIDE_OF_RUN = "; its time, as printed, is not one of the run"


@rule(Category.LINK_ERROR, Severity.ERROR, of=("kernel_event",), hang=True)
def kernel_link_event(
    kernel_event: pl.DataFrame,
    failure_event: pl.DataFrame,
    completion_error: pl.DataFrame,
    process: pl.DataFrame,
    process_exit: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """The kernel logged that a port lost its link, or a NIC, an NVSwitch or a PCIe device failed, and the job failed.

    Means: a cable, a transceiver, a switch, a slot or the device itself; transfers on that host, or to it, then fail.
    Not when: the job shows no failure of its network or of a process, because a kernel log covers other days too; the
    host is not part of this job; the link came up; an NVSwitch or PCIe reported an error that is not fatal, or that
    was corrected. At a time outside of the run, as printed, it is possible at most.
    Do: compare the times of both logs; mlxlink -d DEVICE -m, ibstat and link_downed counters; for NVSwitch drain the
    node and run NVIDIA's field diagnostic.
    Sources: mlx5_core and nvidia-nvswitch kernel messages; NVIDIA, XID errors; knowledge of first causes: NVRx, Aegis.
    """
    hosts = {short_name(str(host)) for host in process["host"].drop_nulls()}
    failed = failure_event.filter(pl.col("kind").is_in([NETWORK, LOST]) & ~pl.col("at_exit"))
    failed_hosts = {
        *failed["host"].drop_nulls().to_list(),
        *completion_error["host"].drop_nulls().to_list(),
        *completion_error["peer_host"].drop_nulls().to_list(),
    }
    form = pl.col("form")
    has_lost_process = not process_exit.filter(pl.col("is_final")).is_empty()
    network_events = kernel_event.filter(
        form.is_in(["cable", "fatal"]) | (form.is_in(NETWORK_FORMS) & (text_of("state").str.to_uppercase() == DOWN))
    )
    switch_events = kernel_event.filter((form == "sxid") & (pl.col("severity") == FATAL))
    bus_events = kernel_event.filter(
        (form == "contained")
        | ((form == "slot") & (text_of("state").str.to_uppercase() == DOWN))
        | (form.is_in(BUS_ERRORS) & text_of("pci_severity").str.contains(f"({FATAL})", literal=True))
    )
    has_failed = bool(failed_hosts) or has_lost_process
    candidates = [(network_events, bool(failed_hosts)), (switch_events, has_failed), (bus_events, has_failed)]
    for events, is_relevant in candidates:
        of_job = events.with_columns(short=short_host("node")).filter(
            pl.lit(is_relevant) & (pl.col("short").is_null() | pl.col("short").is_in(hosts))
        )
        if of_job.is_empty():
            continue
        event_hosts = sorted(of_job["short"].drop_nulls().unique().to_list())
        confirmed = sorted(set(event_hosts) & set(map(short_name, failed_hosts)))
        lines = of_job.sort("source", "line").select("source", "line")
        is_apart = not of_job["is_in_run"].fill_null(value=True).any()
        ranks = rank.filter(short_host("host").is_in(confirmed or event_hosts))["rank"].drop_nulls()
        yield Finding(
            f"{_event_text(of_job)} on {', '.join(event_hosts) or 'a host that the line does not name'}",
            _relation(event_hosts, confirmed, failed) + OUTSIDE_OF_RUN * is_apart,
            "likely" if confirmed and not is_apart else "possible",
            ranks=sorted(ranks.to_list()),
            hosts=event_hosts,
            evidence=[Line(source, line, "kernel") for source, line in lines.head(3).iter_rows()]
            + [Line(source, line, "failed") for source, line in failed.select("source", "line").head(1).iter_rows()],
            role=Role.CONTEXT if is_apart else Role.CAUSE,
        )


def _event_text(events: pl.DataFrame) -> str:
    """Describe the first of these kernel events and its device."""
    row = events.sort("source", "line").row(0, named=True)
    address = pci_address(row["busid"]) if row["busid"] else "at an address that the line does not show"
    match row["form"]:
        case "sxid":
            return f"an NVSwitch reported a fatal error (SXid {row['xid']}: {row['fault']})"
        case "cable":
            return f"the module of NIC {address} reported: {row['fault']}"
        case "fatal":
            return f"NIC {address} reported a fatal error"
        case "bus_error" | "bus_error_received":
            return f"PCIe reported a fatal error of device {address}"
        case "slot" | "contained":
            return f"PCIe port {address} cut off the device below it"
    return f"the link of {row['netdev']} went down"


def _relation(hosts: list[str], confirmed: list[str], failed: pl.DataFrame) -> str:
    """State how the events on these hosts relate to the failure of the job: `confirmed` are hosts with both."""
    if confirmed:
        return f"transfers of {', '.join(confirmed)} failed; compare the times of both logs"
    if failed.is_empty():
        return "a process of this run was lost; the line may be from another day"
    where = "on other hosts" if hosts else "on this host or on another"
    return f"transfers failed {where}; the line may be from another day"
