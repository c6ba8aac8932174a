"""Checks that failed in kernels on a GPU, as the reason of errors that its runtime reports."""

from __future__ import annotations

import polars as pl

from ncclforensics.rules.finding import Finding
from ncclforensics.rules.shared.grouping import evidence_lines


def add_failed_check(finding: Finding, device_assertion: pl.DataFrame | None) -> bool:
    """Add to a finding the first check that failed in a kernel, if one did, which is its reason."""
    if device_assertion is None or device_assertion.is_empty():
        return False
    asserted = device_assertion.sort("source", "line").head(1)
    row = asserted.row(0, named=True)
    site = str(row["asserted_at"]).rpartition("/")[2]
    finding.detail += f"; the check `{row['condition']}` failed in the kernel {row['kernel']} ({site})"
    finding.evidence += evidence_lines(asserted)
    finding.remedy = "look at the values that the program gives to this kernel, mostly an index or a label"
    return True
