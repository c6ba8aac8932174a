"""Ranks whose output ends at an earlier step of the training than that of the others."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.variables import STACKS_OF_HOST
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

LOOK_THERE = (
    f"take the stack of that rank first, on its host: `{STACKS_OF_HOST}`; run with PYTHONUNBUFFERED=1, so that no line "
    "stays in a buffer"
)


@rule(Category.LAGGING_RANK, Severity.WARNING, of=("last_step",), hang=True)
def app_rank_behind_in_steps(
    last_step: pl.DataFrame, program_end: pl.DataFrame, process_exit: pl.DataFrame, exception: pl.DataFrame
) -> Iterator[Finding]:
    """The output of a rank ends at an earlier step of the training than that of the others.

    Means: where all ranks work together in each step, none gets far ahead: a rank whose output ends a step earlier
    stands behind that step, and the others wait for it in the next one.
    Not when: its last lines are still in a buffer, as where output goes to a file or a pipe (PYTHONUNBUFFERED is not
    set); a process failed or ended, which says more; the ranks print different steps, or train apart; the files are of
    different runs, or were copied one after the other from a running job.
    Do: take the stack of that rank first, and look at its host (nvidia-smi, dmesg -T).
    Sources: Python, sys.stdout (block-buffered unless it is a terminal).
    """
    has_ended = program_end.height or process_exit.height or exception.height
    if last_step.height < 2 or has_ended:
        return
    most = int(str(last_step["step"].max()))
    lag = pl.lit(most) - pl.col("step")
    late = last_step.filter((lag > 0) & (lag >= pl.col("every")))
    others = last_step.join(late, on="pos", how="anti")
    began = others["first_time"].min()
    is_of_another_run = began is not None and (late["time"] < began).any()
    if late.is_empty() or late.height > others.height - (last_step.height > 2) or is_of_another_run:
        return
    ranks = sorted(late["rank"].to_list())
    steps = sorted(set(late["step"].to_list()))
    at = f"step {steps[-1]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    further = count_of(others.height, "other")
    yield Finding(
        title=f"the output of {ranks_text(ranks)} ends at {at}, that of {further} at step {most:,}",
        detail="it stands behind that step, and the others wait for it in the next one; or its last lines are still in "
        "a buffer",
        certainty="possible",
        ranks=ranks,
        remedy=LOOK_THERE,
        evidence=evidence_lines(pl.concat([late, others.head(2)])),
    )
