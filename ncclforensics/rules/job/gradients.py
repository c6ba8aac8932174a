"""Gradients that DistributedDataParallel waited for in vain or got twice, and those that overflowed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.torch_failures import GRADIENTS
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

REMEDIES = {
    "missing": (
        "find parameters that the loss does not use on this rank (TORCH_DISTRIBUTED_DEBUG=DETAIL names them); freeze "
        "or remove them, return all outputs of forward, or pass find_unused_parameters=True to DistributedDataParallel"
    ),
    "twice": (
        "do not use a parameter outside of forward, or a layer twice under reentrant checkpointing: pass "
        "use_reentrant=False, or static_graph=True to DistributedDataParallel"
    ),
}
LOW = 16  # scales of the loss from which on few halvings are left until DeepSpeed gives up
MOST_NAMES = 80  # characters of a list of parameters


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("gradient_error",), hang=True)
def torch_gradients_incomplete(gradient_error: pl.DataFrame) -> Iterator[Finding]:
    """DistributedDataParallel did not get exactly one gradient of each parameter.

    Means: the program, not the network: a part of the model was not used in the loss, or was used twice, on this rank
    and in this step. Other ranks that used it wait in an all-reduce that this rank never makes, and time out.
    Not when: the message was caught, and the run goes on.
    Do: find the parameters that the loss does not use on the named rank; TORCH_DISTRIBUTED_DEBUG=DETAIL prints names.
    Sources: torch/csrc/distributed/c10d/reducer.cpp of torch 1.7 to 2.15; torch.nn.parallel.DistributedDataParallel.
    """
    listed = gradient_error.filter(form="parameters").sort("source", "line")
    stated = gradient_error.with_columns(form=text_of("form").replace({"parameters": "missing"})).sort("source", "line")
    for (form,), rows in stated.group_by("form", maintain_order=True):
        named = listed.filter(form == "missing")
        ranks = sorted({*rows["global_rank"].drop_nulls(), *named["group_rank"].drop_nulls()})
        detail = "reported by DistributedDataParallel"
        if named.height:
            parameters = str(named["parameters"][0])
            detail += f": parameters {parameters[:MOST_NAMES]}{'…' * (len(parameters) > MOST_NAMES)}"
        title = f"{ranks_text(ranks)}: {GRADIENTS[str(form)]}".removeprefix(": ")
        yield Finding(title, detail, "certain", ranks=ranks, evidence=evidence_lines(rows), remedy=REMEDIES[str(form)])


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("skipped_step",))
def step_gradients_overflow(skipped_step: pl.DataFrame) -> Iterator[Finding]:
    """DeepSpeed left out steps, because gradients in fp16 overflowed.

    Means: the weights were not changed in these steps. DeepSpeed halves the scale of the loss each time, and ends the
    run where it has come to 1 (`Current loss scale already at minimum`): then losses or gradients are no numbers.
    Not when: the run begins, which tries scales from above, or it happens now and then: both are a note.
    Do: look at the loss and the gradient norm before the first such step; train in bf16, lower the learning rate, or
    look for data that give no number.
    Sources: deepspeed/runtime/fp16/loss_scaler.py, fused_optimizer.py; transformers#14531.
    """
    for _, rows in skipped_step.sort("source", "line").group_by("source", maintain_order=True):
        lowered = rows.drop_nulls("lowered_scale")
        first, last = rows["attempted_scale"][0], (lowered if lowered.height else rows.tail(1)).row(-1, named=True)
        final = last["lowered_scale"] or last["attempted_scale"]
        finding = Finding(
            title=f"DeepSpeed left out {count_of(rows.height, 'step')}, whose gradients overflowed",
            detail=f"the scale of the loss came from {first:,.0f} to {final:,.0f}; the run ends where it is 1",
            certainty="certain",
            evidence=evidence_lines(pl.concat([rows.head(1), rows.tail(1)]).unique("line", maintain_order=True)),
        )
        if final > LOW:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        yield finding
