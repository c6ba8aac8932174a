"""How far the GPUs of RCCL's ranks came, by the trace of their kernels."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import LINE, OWNER, PROCESS
from ncclforensics.frames.registry import analysis

RANK = [*OWNER, "rank", "nranks"]  # of a communicator
KERNEL_PROGRESS = {
    **PROCESS,
    "rank": pl.Int32(),  # in the communicator
    "nranks": pl.Int32(),  # of the communicator, where a line shows it
    "channels": pl.Int32(),  # whose kernel has not ended
    "opcount": pl.Int64(),  # of the last call that such a kernel began; where all ended, of the last that ended
    "function": pl.Categorical(),  # of that call
    **LINE,
}


@analysis(KERNEL_PROGRESS, of=("kernel_step",))
def kernel_progress(kernel_step: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row per rank of a communicator: whether its kernels have ended, and the call that it came to.

    Of a file that was read at both ends, a channel counts whose last line stands in the end.
    """
    steps = kernel_step.filter(pl.col("form") != "other")
    last = steps.sort("pos").group_by(*RANK, "channel", maintain_order=True).last()
    read_whole = source.filter("is_closed")["source"]
    last = last.filter(pl.col("source").is_in(read_whole.implode()) | (pl.col("line") < 0))
    is_running = ~pl.col("form").cast(pl.String).is_in(["end", "abort"])
    last = last.with_columns(is_running=is_running).sort("is_running", "opcount", "pos")
    progress = last.group_by(*RANK, maintain_order=True).agg(
        pl.col("is_running").sum().alias("channels"), pl.col("opcount", "function", "source", "line").last()
    )
    return progress.sort("source", "line")
