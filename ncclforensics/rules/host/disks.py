"""Disks, pools and arrays that state faults: smartctl, nvme smart-log, zpool status, md."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 3


@rule(
    Category.ENVIRONMENT,
    Severity.WARNING,
    of=("disk_fault", "disk_value", "disk_verdict", "disk_attribute", "pool_state", "md_array"),
)
def disk_states_fault(disk_fault: pl.DataFrame) -> Iterator[Finding]:
    """A disk says of itself that it fails, or counts what announces it; a pool or an array lacks a member.

    Means: reads and writes of it fail, or will; a disk that takes no writes ends what writes checkpoints or logs there.
    A disk whose promised writes are used up is worn, and mostly works on; some of them call that a failure themselves.
    Not when: no bit of the critical warning is set, no attribute is below its threshold, and no sector is unreadable;
    entries in the log of errors alone, which are mostly of commands that the disk does not know.
    Do: save what is on the disk; dmesg -T for errors of it; replace it.
    Sources: NVM Express Base Specification 2.0, SMART / Health Information; smartmontools, nvmeprint.cpp, ataprint.cpp;
    nvme-cli, nvme-print-stdout.c; zpool-status(8); md(4).
    """
    for (host, disk), rows in disk_fault.group_by("host", "disk", maintain_order=True):
        failing = rows.filter("is_failing")
        shown = rows if failing.is_empty() else failing
        faults = shown["fault"].unique(maintain_order=True).to_list()
        counts = [] if failing.is_empty() else rows.filter(~pl.col("is_failing"))["fault"].to_list()
        name = f"the {disk}" if disk else "a disk"
        yield Finding(
            f"{name}{f' on {host}' if host else ''} states: {some_of(faults, SHOWN)}",
            some_of(counts, SHOWN),
            "certain",
            severity=Severity.INFO if failing.is_empty() else Severity.WARNING,
            role=Role.CONTEXT,
            hosts=[str(host)] if host else [],
            evidence=evidence_lines(shown),
        )
