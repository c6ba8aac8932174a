"""Steps of a training whose loss or gradients are not numbers."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("training_step",))
def step_not_a_number(training_step: pl.DataFrame) -> Iterator[Finding]:
    """The loss or the norm of the gradients is not a number in some steps.

    Means: the training diverged, data or a GPU gave a wrong value, or a scaled loss overflowed. Nothing hangs for it;
    some programs end all ranks at such a step.
    Not when: a few single steps at the start of a training with a scaled loss, which skips them.
    Do: find the first such step and the rank that it came from (--check-for-nan-in-loss-and-grad of Megatron-LM); try
    the same batch on other GPUs; lower the learning rate, or go back to the checkpoint before it.
    Sources: Megatron-LM: megatron/training/training.py (training_log), megatron/core/rerun_state_machine.py.
    """
    rows = training_step.filter(pl.col("not_a_number").is_not_null()).sort("source", "pos")
    if rows.is_empty():
        return
    share = f"{rows.height} of {training_step.height} steps"
    title = f"loss or gradients are not a number in {share}, first in step {rows['step'][0]}"
    detail = "the program printed it itself"
    yield Finding(title, detail, "certain", evidence=evidence_lines(rows))
