"""What gpu-burn counted on the GPUs of a host."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import find_values
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 4


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("burn_progress",))
def gpu_burn_counts(burn_progress: pl.DataFrame, gpu_burn: pl.DataFrame) -> Iterator[Finding]:
    """Gpu-burn counted values that differ from the first ones.

    Means: it lets each GPU compute the same product again and again; a value that differs is an error of the GPU or of
    its memory.
    Not when: the process of the test died: what is counted then is no number of errors; gpu-burn itself calls the GPU
    faulty, which another finding tells.
    Do: drain the host and test that GPU alone (-i N); dmesg -T | grep -i xid.
    Sources: wilicc/gpu-burn, gpu_burn-drv.cpp.
    """
    progress = burn_progress.join(gpu_burn, on="source", how="anti", maintain_order="left")
    for _, rows in progress.sort("line").group_by("source", maintain_order=True):
        last = rows.tail(1)
        counted = find_values(last["counted"], "burn_errors").with_row_index("gpu")
        is_alive = text_of("burn_state").ne_missing("DIED")
        wrong = counted.filter(is_alive & (pl.col("burn_errors").cast(pl.String) != "0"))
        if wrong.is_empty():
            continue
        title = f"gpu-burn counted wrong values on {some_of([f'GPU {gpu}' for gpu in wrong['gpu']], SHOWN)}"
        detail = f"at {last['percent'].cast(pl.String)[0]} % of its time"
        yield Finding(title, detail, "certain", evidence=evidence_lines(last))
