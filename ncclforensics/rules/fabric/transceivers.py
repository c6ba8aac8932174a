"""Transceivers that raise alarms, and NICs whose PCIe link limits them, as hosts print them by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, printable, some_of
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


@rule(Category.LINK_ERROR, Severity.WARNING, of=("transceiver_flag",))
def transceiver_alarms(transceiver_flag: pl.DataFrame) -> Iterator[Finding]:
    """The transceiver of a NIC raises an alarm or a warning: light, current, voltage or temperature, by ethtool -m.

    Means: rx power low: dirt, a bent fibre, or the module at the other end; tx power, bias current or voltage: this
    module; temperature: the air flow of the host. The link loses packets, trains again, or goes down.
    Not when: all flags are off; a warning alone, whose limit is narrower than that of the alarm, is a note.
    Do: clean or replace fibre and module; compare with ethtool -m on the other end; for heat look at fans and air flow.
    Sources: ethtool, qsfp.c, sfpdiag.c and cmis.c; SFF-8636 and CMIS, alarm and warning flags.
    """
    raised = transceiver_flag.filter("is_on")
    for (_, host, netdev), rows in raised.group_by("source", "host", "netdev", maintain_order=True):
        alarms = rows.filter(pl.col("level") == "alarm")
        shown = rows if alarms.is_empty() else alarms
        flags = [
            f"{row['quantity']} {row['bound']}" + f" (lane {row['lane']})" * (row["lane"] is not None)
            for row in shown.unique(["quantity", "bound", "lane"], maintain_order=True).to_dicts()
        ]
        name = printable(" ".join(filter(None, (str(host or ""), str(netdev or "")))))
        yield Finding(
            f"the transceiver of {name or 'a NIC'} raises {'a warning' if alarms.is_empty() else 'an alarm'}: "
            f"{some_of(flags, SHOWN)}",
            f"{rows.height} of {count_of(transceiver_flag.height, 'flag')} raised; the limits are those of the module",
            "certain",
            severity=Severity.INFO if alarms.is_empty() else Severity.WARNING,
            role=Role.CONTEXT if alarms.is_empty() else Role.CAUSE,
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
