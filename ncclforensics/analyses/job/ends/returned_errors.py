"""Errors that a call of NCCL returned to the application: which call, and to which process."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.tracebacks import FAR, LONGEST, PRINTER, traced_frames, with_last_above
from ncclforensics.frames.columns import ORIGIN, PROCESS, text_of
from ncclforensics.frames.registry import analysis

RETURNED_ERROR = {
    "form": pl.String(),
    "call": pl.String(),  # of NCCL: from the message, or from the traceback above it; null where neither names one
    "place": pl.String(),  # the innermost call of the traceback above it: `gather (distributed_c10d.py:3133)`
    "result": pl.String(),  # as NCCL words it, without what to set
    "rank": pl.Int32(),
    **PROCESS,
    "worker": pl.String(),  # as an engine names the process
    **ORIGIN,
}
BINDING = "nccl"  # how functions of bindings begin that have the name of the function of NCCL that they call


@analysis(RETURNED_ERROR, of=("call_error",))
def returned_error(
    call_error: pl.DataFrame, traceback_frame: pl.DataFrame, traced_call: pl.DataFrame, exception: pl.DataFrame
) -> pl.DataFrame:
    """One row per line in which the application or a framework reports what NCCL returned."""
    of_nccl = traceback_frame.filter(text_of("frame_function").str.starts_with(BINDING))
    bound = of_nccl.select("source", "launcher_rank", "launcher_pid", "pos", traced=text_of("frame_function"))
    file = pl.col("file").str.split("/").list.last()
    innermost = traced_frames(traceback_frame, traced_call).select(
        *PRINTER, "pos", place=pl.format("{} ({}{})", "function", file, pl.format(":{}", "number").fill_null(""))
    )
    headings = exception.filter(form="traceback").select(*PRINTER, "pos", headed=text_of("raising_worker"))
    (errors,) = with_last_above([call_error], [(bound, FAR), (innermost, FAR), (headings, LONGEST)])
    return errors.select(
        form=text_of("form"),
        call=pl.coalesce(text_of("call"), "traced"),
        place="place",
        result=pl.coalesce(text_of("error_text"), text_of("result_text"))
        .str.split(" (")
        .list.first()
        .str.split(" - ")
        .list.first(),
        rank=pl.coalesce("global_rank", "launcher_rank").cast(pl.Int32),
        host=text_of("launcher_node").cast(pl.Categorical()),
        pid=pl.col("launcher_pid").cast(pl.Int32),
        worker=pl.coalesce(text_of("launcher_process"), "headed"),
        **{name: pl.col(name) for name in ORIGIN},
    )
