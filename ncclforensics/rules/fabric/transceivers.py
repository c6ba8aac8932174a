"""Transceivers that raise alarms, and NICs whose PCIe link limits them, as hosts print them by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import printable, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.kernel_log import JobBeside, devices_text, kernel_log_findings

SHOWN = 3
COMPARE_LINKS = (
    "compare with healthy hosts of this kind (lspci -vv, LnkCap and LnkSta); reseat the card, or give it a slot with "
    "all lanes"
)
FAR_BELOW = 5  # times: a slot that is meant to be narrow has half the lanes, or is a generation or two older


# What a transceiver does, by the kinds of its faults, the gravest first.
REPORTS = {"limit": "is outside of its limits", "flag": "reports a fault", "warning": "is near its limits"}


@rule(Category.LINK_ERROR, Severity.WARNING, of=("transceiver_fault", "sonic_flag", "sonic_reading"))
def transceiver_alarms(transceiver_fault: pl.DataFrame) -> Iterator[Finding]:
    """The transceiver of a link reports a fault, or light, current, voltage or temperature are outside of its limits.

    Means: received power low: dirt, a bent fibre, or the module at the other end; sent power, bias current or voltage:
    this module; temperature: the air flow of the host. The link loses packets, trains again, or goes down.
    Not when: all values are within the limits, and all flags off; a warning alone, whose limit is narrower than that of
    the alarm, is a note; a copper cable, which measures nothing; a port without light because the other end is off.
    Do: clean or replace fibre and module; compare with ethtool -m, or mlxlink -m -c, on the other end; for heat look at
    fans and air flow.
    Sources: ethtool, qsfp.c, sfpdiag.c and cmis.c; mstflint, mlxlink_commander.cpp (showModuleInfo); SFF-8636 and CMIS,
    alarm and warning flags; sonic-utilities, sfpshow.
    """
    gravest = pl.col("kind").replace_strict(dict(zip(REPORTS, range(len(REPORTS)), strict=True)), return_dtype=pl.Int8)
    for (_, host, port), rows in transceiver_fault.group_by("source", "host", "port", maintain_order=True):
        shown = rows.sort(gravest, maintain_order=True).unique("fault", keep="first", maintain_order=True)
        kind = shown["kind"][0]
        if kind != "warning":
            shown = shown.filter(pl.col("kind") != "warning")
        name = printable(" ".join(filter(None, (str(host or ""), str(port or "")))))
        yield Finding(
            f"the transceiver of {name or 'a port'} {REPORTS[kind]}: {some_of(shown['fault'].to_list(), SHOWN)}",
            "the limits and flags are those of the module itself",
            "certain",
            severity=Severity.INFO if kind == "warning" else Severity.WARNING,
            role=Role.CONTEXT if kind == "warning" else Role.CAUSE,
            hosts=[str(host)] if host else [],
            evidence=evidence_lines(shown),
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("kernel_report",), hang=True, fallback=True)
def kernel_pcie_limited(kernel_report: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """The PCIe link of a NIC is slower than the NIC can use, as the kernel says when it starts.

    Means: transfers of this NIC cannot be faster. Where a NIC with the same abilities has more on the same host, or
    where the link has a fifth of what the card can do, it is trained at too few lanes or too slowly; else it is mostly
    a slot that is meant to be narrower, which is a note.
    Not when: the link is as fast as the card.
    Do: compare with healthy hosts of this kind (lspci -vv, LnkCap and LnkSta); reseat the card, or give it a slot with
    all lanes.
    Sources: Linux, drivers/pci/pci.c, __pcie_print_link_status.
    """
    job, form = JobBeside.of(rank, verdict), text_of("form")
    links = kernel_report.filter(form.is_in(["pci_limited", "pci_link"])).with_columns(
        node=pl.coalesce(text_of("node"), text_of("launcher_node")),
        has=text_of("pci_gbps").cast(pl.Float64, strict=False),
        can=pl.coalesce(text_of("capable_gbps"), text_of("pci_gbps")).cast(pl.Float64, strict=False),
    )
    of_kind = ["source", "node", "driver_of_device", "can"]
    links = links.with_columns(best=pl.col("has").max().over(of_kind))
    limited = links.filter(form == "pci_limited").sort("source", "line")
    is_worse = (pl.col("has") < pl.col("best")) | (pl.col("has") * FAR_BELOW < pl.col("can"))
    alike = ["node", "has", "can", "is_worse"]
    for (_, has, can, worse), rows in limited.with_columns(is_worse=is_worse).group_by(alike, maintain_order=True):
        limits = rows.select(text_of("pci_limit")).to_series().unique(maintain_order=True).to_list()
        title = f"the PCIe link of NIC {devices_text(rows)}{{where}} has {has:.0f} Gb/s, and the NIC can use {can:.0f}"
        details = [
            f"limited by {some_of(limits, SHOWN)}",
            "another NIC like it has more" if bool((rows["has"] < rows["best"]).any()) else "",
            "" if worse else "a slot that is meant to be narrower limits it for good",
        ]
        severity = Severity.WARNING if worse else Severity.INFO
        yield from kernel_log_findings(rows, title, details, severity, COMPARE_LINKS, job)
