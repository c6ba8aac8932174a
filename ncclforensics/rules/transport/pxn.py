"""PXN: sending over the NIC of another GPU of the node."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import PAIRWISE
from ncclforensics.data.thresholds import FULL_NODE
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import group_finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("operation",))
def pxn_state(
    setting: pl.DataFrame,
    gpu_direct: pl.DataFrame,
    call_template: pl.DataFrame,
    placement: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """PXN is off, and the job uses Send, Recv or all-to-all over several nodes with many GPUs.

    Means: without PXN every GPU sends to all GPUs of the other nodes over its own NIC: more and smaller messages, and
    traffic between rails. All-to-all on nodes of eight GPUs can be slower.
    Not when: there are few GPUs per node, or no Send, Recv or all-to-all; the measured speed suffices.
    Do: unset NCCL_PXN_DISABLE, or use a network plugin with a newer interface than v4, and measure again.
    Sources: nccl#1189, nccl#918, nccl#1697, nccl#1114.
    """
    off = environment_settings(setting).filter((pl.col("variable") == "NCCL_PXN_DISABLE") & (pl.col("value") == "1"))
    old = gpu_direct.filter(pl.col("form") == "no_pxn")
    calls = call_template.filter(pl.col("called").is_in(PAIRWISE))
    large = placement.filter((pl.col("nnodes") > 1) & (pl.col("localranks") >= FULL_NODE))
    if calls.is_empty() or large.is_empty():
        return
    nodes = max(large["nnodes"].to_list())
    for rows, reason in ((off, "NCCL_PXN_DISABLE=1 is set"), (old, "the network plugin has the old interface v4")):
        if not rows.is_empty():
            yield group_finding(
                rows, rank, "PXN is off on {processes}",
                f"{reason}; the job uses Send, Recv or all-to-all over {nodes} nodes", "possible", role=Role.CONTEXT,
            )  # fmt: skip
            return
