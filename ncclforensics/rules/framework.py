"""What PyTorch says of a run."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.rules import Category, Finding, Line, Role, Severity, rule


@rule(Category.TIMEOUT, Severity.ERROR, hang=True)
def torch_watchdog_timeout(work: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch's watchdog gave up waiting for a collective.

    Means: on these ranks a work of the process group did not end in time; they are victims. The culprit is a rank whose
    counters are lower, or one that prints nothing.
    Not when: the lines are copies of one message (it comes up to four times), which are counted once; the time-out was
    set shorter than a checkpoint or the first step takes.
    Do: compare last enqueued and last completed work over ranks; set TORCH_NCCL_TRACE_BUFFER_SIZE for a flight record.
    Sources: ProcessGroupNCCL.cpp of torch 1.13 to 2.10.
    """
    for (guid,), rows in (
        work.filter(pl.col("sequence").is_not_null()).sort("rank", "guid").group_by("guid", maintain_order=True)
    ):
        ranks = sorted(rows["rank"].unique().to_list())
        works = sorted(rows["sequence"].drop_nulls().unique().to_list())
        group = f" of process group {guid}" if guid else ""
        yield Finding(
            title=f"the watchdogs of {ranks_text(ranks)} timed out at work {', '.join(map(str, works))}{group}",
            detail=", ".join(sorted({name.strip("_") for name in rows["operation"].drop_nulls()}))
            or "no call is named",
            certainty="certain",
            ranks=ranks,
            role=Role.CONSEQUENCE,
            evidence=[Line(source, line, "timed out") for source, line in rows.select("source", "line").head(4).rows()],
        )
