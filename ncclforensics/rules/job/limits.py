"""Process limits that NCCL reports as unsafe."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import SIGNAL
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import first_exits
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

SEGFAULT = 11


@rule(Category.ENVIRONMENT, Severity.INFO, of=("launch_setting",))
def limits_stack_unlimited(
    launch_setting: pl.DataFrame, process_exit: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The stack limit is unsafe for NCCL's threads.

    Means: with `ulimit -s unlimited`, or a very small limit, NCCL's threads get a stack that overflows on large systems
    with NVLink between nodes: a crash while a communicator is created. NCCL 2.28 and later detect this and set the
    stack size of their threads.
    Not when: NCCL reports that it uses another size and no process crashed: then it is only context.
    Do: set ulimit -s 8192 in the job's environment, before the launcher.
    Sources: NCCL user guide, troubleshooting/runtime (stack size); release notes 2.27.6.
    """
    rows = launch_setting.filter(pl.col("form") == "stack")
    if rows.is_empty():
        return
    crashed = first_exits(process_exit, SIGNAL).filter(pl.col("signal") == SEGFAULT)
    finding = group_finding(
        rows, rank, "the stack limit of {processes} is unsafe for NCCL's threads", "NCCL sets their stack size itself",
        "certain", role=Role.CONTEXT,
    )  # fmt: skip
    if not crashed.is_empty():
        finding.severity, finding.role, finding.certainty = Severity.WARNING, Role.CAUSE, "possible"
        finding.detail = "a process crashed with a segmentation fault"
        finding.evidence = finding.evidence[:2] + evidence_lines(crashed.drop("host"), "crashed")[:1]
    yield finding
