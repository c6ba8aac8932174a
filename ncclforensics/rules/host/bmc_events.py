"""Faults of the hardware of hosts in the event logs of their BMCs."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.host.command_output import add_origin
from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 3


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("bmc_event",), fallback=True, role=Role.CONTEXT)
def bmc_logged_fault(bmc_event: pl.DataFrame, output_heading: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The BMC of a host logged that hardware failed, was lost or is outside of its limits.

    Means: at that time the part failed; an error of memory or a processor that was not corrected, or a critical stop of
    the system, ended what ran on the host. A fault that the log ends by itself (Deasserted, or the same part is Fully
    Redundant or OK again) is a note.
    Not when: events of power cycles, of starts and of the log itself; corrected errors.
    Do: look at the time of the event, which may be of long ago, and at what runs since: ipmitool sel elist, sel time
    get (its clock may differ), sdr elist; dmesg -T and last -x at that time; the vendor's tool decodes the part; clear
    the log (ipmitool sel clear) once it is answered.
    Sources: IPMI specification 2.0, tables 42-2 and 42-3; ipmitool, lib/ipmi_sel.c.
    """
    events = add_origin(bmc_event.with_columns(fault=text_of("bmc_fault").str.strip_chars()), output_heading)
    faults = events.drop_nulls("fault").sort("source", "line").with_columns(is_over=text_of("form") == "over")
    owner = ["source", "origin_host", "fault"]
    faults = faults.filter(~pl.col("is_over").all().over(owner))  # the log may begin behind the fault
    faults = faults.with_columns(part=pl.col("fault").str.split(" | ").list.first().str.strip_chars())
    sound = events.filter(text_of("form") == "well")
    sound = sound.group_by("source", "origin_host", part=text_of("bmc_part").str.strip_chars()).agg(
        last_well=pl.col("line").max()
    )
    faults = faults.join(
        sound, on=["source", "origin_host", "part"], how="left", nulls_equal=True, maintain_order="left"
    )
    faults = faults.with_columns(
        is_over=pl.col("is_over") | (pl.col("line") < pl.col("last_well")).fill_null(value=False)
    )
    faults = faults.with_columns(is_over=pl.col("is_over").last().over(owner))
    for (host, is_over), rows in faults.group_by("origin_host", "is_over", maintain_order=True):
        parts = rows["fault"].str.replace(" | ", ": ", literal=True).unique(maintain_order=True).to_list()
        times = rows["bmc_time"].cast(pl.String).drop_nulls().str.strip_chars()
        yield Finding(
            f"the BMC of {host or 'a host'} logged {'and ended ' * bool(is_over)}a fault of its hardware: "
            f"{some_of(parts, SHOWN)}",
            "; ".join(filter(None, [count_of(rows.height, "event"), _span(times)])),
            "certain",
            severity=Severity.INFO if is_over or rank.height else Severity.WARNING,
            hosts=[str(host)] if host else [],
            evidence=evidence_lines(rows.filter(text_of("form") != "over")),
        )
    refused = events.filter(text_of("form") == "unreached")
    for (host,), rows in refused.group_by("origin_host", maintain_order=True):
        yield Finding(
            f"ipmitool did not reach the BMC of {host or 'a host'}: nothing is known of its events",
            "",
            "certain",
            severity=Severity.INFO,
            hosts=[str(host)] if host else [],
            remedy="Look at its network and password (ipmitool -I lanplus -H HOST chassis status), and at the host.",
            evidence=evidence_lines(rows),
        )


def _span(times: pl.Series) -> str:
    """Format the times of events, as printed."""
    if times.is_empty():
        return ""
    return f"at {times[0]}" if times[0] == times[-1] else f"from {times[0]} to {times[-1]}"
