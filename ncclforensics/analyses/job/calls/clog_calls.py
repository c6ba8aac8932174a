"""Collective calls of each rank, as torchcomms logs them (ClogHook).

The hook writes a line before an operation is enqueued and flushes it at once, so that a call that the log does not show
was not made before its end. A communicator has the same name on all its members, and all of them make its collectives
in the same order (comms/torchcomms/hooks/clog/ClogHook.cpp, AI_TOOL_INSTRUCTIONS_V1.md).
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

CLOG_CALL = {
    "comm": pl.String(),
    "rank": pl.Int32(),  # in the communicator
    "size": pl.Int32(),  # members of the communicator
    "nth": pl.Int64(),  # collective of the communicator on this rank, from 1 on
    "call": pl.String(),
    "arguments": pl.String(),  # as the log prints them
    "has_ended": pl.Boolean(),  # on the GPU; null where the log holds no such events
    "source": pl.Int32(),
    "line": pl.Int32(),
}
MESSAGES = ["send", "recv", "batch_op_issue"]
_BY_SIGNATURE = ["source", "correlation"]


@analysis(CLOG_CALL, of=("clog_event",))
def clog_call(clog_event: pl.DataFrame, clog_signature: pl.DataFrame, clog_comm: pl.DataFrame) -> pl.DataFrame:
    """One row per collective that a rank enqueued outside of CUDA graphs; none of files that show no rank."""
    signatures = clog_signature.select(
        *_BY_SIGNATURE, call=text_of("called"), arguments=text_of("clog_arguments"), comm=text_of("comm")
    ).unique(_BY_SIGNATURE, keep="last")
    members = clog_comm.select("source", comm=text_of("comm"), rank="comm_rank", size="comm_size").unique(
        ["source", "comm"], keep="last"
    )
    events = clog_event.filter(text_of("form").fill_null("") == "").sort("pos")
    enqueued = events.filter(text_of("event") == "Q").with_columns(
        of_signature=pl.int_range(1, pl.len() + 1).over(_BY_SIGNATURE)
    )
    ended = events.filter(text_of("event") == "E").group_by(_BY_SIGNATURE).agg(ended=pl.len())
    logged = events.filter(text_of("event").is_in(["S", "E"])).select("source", has_events=True).unique()
    return (
        enqueued.join(signatures, on=_BY_SIGNATURE)
        .filter(~pl.col("call").is_in(MESSAGES))
        .join(members, on=["source", "comm"])
        .join(ended, on=_BY_SIGNATURE, how="left")
        .join(logged, on="source", how="left")
        .sort("pos")
        .with_columns(
            nth=pl.int_range(1, pl.len() + 1).over("source", "comm"),
            has_ended=pl.when("has_events").then(pl.col("of_signature") <= pl.col("ended").fill_null(0)),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in CLOG_CALL.items())
    )
