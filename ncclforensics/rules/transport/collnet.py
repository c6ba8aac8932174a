"""Reductions in network switches: CollNet and SHARP."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

REFUSALS = ["init_failed", "group_failed", "caps_failed"]


@rule(Category.NET_PLUGIN, Severity.INFO, of=("collnet", "sharp"), hang=True)
def net_collnet_unavailable(
    collnet: pl.DataFrame, sharp: pl.DataFrame, sharp_log: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """CollNet was requested and could not be set up.

    Means: the plugin got no SHARP job, mostly because no aggregation manager runs on the fabric, or its resources are
    used up. NCCL continues with rings and trees, slower than expected with SHARP.
    Not when: NCCL itself skips CollNet because the communicator has too few nodes; CollNet was not requested.
    Do: check that sharp_am runs beside the subnet manager (sharp_hello); or unset NCCL_COLLNET_ENABLE.
    Sources: nccl: src/transport.cc; nccl-rdma-sharp-plugins: src/sharp_plugin.c; nccl#1050; MLPerf training v1.1 logs;
    NVIDIA SHARP deployment guide.
    """
    failed = collnet.filter(pl.col("form") == "failed")
    refused = sharp.filter(pl.col("form").is_in(REFUSALS))
    if failed.is_empty() and refused.is_empty():
        return
    rows = refused if not refused.is_empty() else failed
    of_library = sharp_log.filter(form="error").sort("source", "line")
    reasons = [*of_library["sharp_error"].head(1), *refused["error"].drop_nulls().head(1)]
    reason = f": {reasons[0].removesuffix('.')}" if reasons else ""
    finding = group_finding(
        rows, rank, f"CollNet (SHARP) could not be set up on {{processes}}{reason}", "NCCL continues without it",
        "certain", role=Role.CONTEXT,
    )  # fmt: skip
    finding.evidence = finding.evidence[:2] + evidence_lines(of_library, "libsharp")[:1]
    finding.evidence += evidence_lines(failed, "NCCL")[:1] * (not refused.is_empty())
    yield finding
