"""Logs of torchcomms (ClogHook) as what Flight Recorder dumps show: groups with their members, and each rank's calls.

The hook writes a line before an operation is enqueued and flushes it at once, so that a call that the log does not show
was not made before its end. A communicator has the same name on all its members, and all of them make its collectives
in the same order. Calls that CUDA graphs replay are no calls here. Source: meta-pytorch/torchcomms,
comms/torchcomms/hooks/clog: ClogHook.cpp, AI_TOOL_INSTRUCTIONS_V1.md.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.recorder_groups import WORLD
from ncclforensics.frames.columns import LINE, text_of, with_all_columns
from ncclforensics.frames.registry import analysis

DUMPED_GROUP = {
    "group_name": pl.Categorical(),
    "group_desc": pl.Categorical(),
    "ranks": pl.Categorical(),  # of the job, in the order of the group: `0-511, 520`
    "own_number": pl.Int32(),  # of the rank that wrote it, in the group; null: the dump does not say it
    **LINE,
}
DUMPED_CALL = {
    "group_name": pl.Categorical(),
    "group_desc": pl.Categorical(),
    "pg_id": pl.Int64(),
    "profiling_name": pl.Categorical(),  # `nccl:all_reduce`, `nccl:send 0->3`
    "collective_seq": pl.Int64(),
    "p2p_seq": pl.Int64(),
    "is_p2p": pl.Categorical(),
    "input_sizes": pl.Categorical(),
    "input_dtypes": pl.Categorical(),
    "state": pl.Categorical(),  # scheduled, started, completed
    "retired": pl.Categorical(),
    "frames": pl.Categorical(),
    "created_ns": pl.Int64(),
    "completed_ns": pl.Int64(),
    "timeout_ms": pl.Int64(),
    "record_id": pl.Int64(),
    **LINE,
}
MESSAGES = ["send", "recv", "batch_op_issue"]  # a batch does not name its peers
ARROWS = {"send": "->", "recv": "<-"}
# As torchcomms and as PyTorch name them.
DTYPES = {
    "f32": "Float", "f64": "Double", "f16": "Half", "bf16": "BFloat16", "i32": "Int", "i64": "Long", "i8": "Char",
    "u8": "Byte", "bool": "Bool", "fp8e4m3": "Float8_e4m3fn", "fp8e5m2": "Float8_e5m2",
}  # fmt: skip
NANOSECONDS = 1_000_000_000
_COMM = ["source", "comm"]
_SIGNATURE = ["source", "correlation"]


@analysis(DUMPED_GROUP, of=("recorder_group", "clog_comm"))
def dumped_group(recorder_group: pl.DataFrame, clog_comm: pl.DataFrame, clog_split: pl.DataFrame) -> pl.DataFrame:
    """The process groups of every dump, and the communicators of every log of torchcomms."""
    recorded = recorder_group.with_columns(own_number=pl.lit(None, pl.Int32))
    logged = _communicators(clog_comm, clog_split).select(
        "ranks", "source", "line", group_name="group", group_desc="comm", own_number="comm_rank"
    )
    return _of_both(recorded, logged, DUMPED_GROUP)


@analysis(DUMPED_CALL, of=("recorder_call", "clog_event"))
def dumped_call(
    recorder_call: pl.DataFrame,
    clog_header: pl.DataFrame,
    clog_comm: pl.DataFrame,
    clog_split: pl.DataFrame,
    clog_signature: pl.DataFrame,
    clog_event: pl.DataFrame,
) -> pl.DataFrame:
    """The calls of every Flight Recorder dump, and those of every log of torchcomms."""
    signatures = clog_signature.select(
        *_SIGNATURE, "in_count", "peer", name=text_of("called"), dtype=text_of("clog_dtype"), comm=text_of("comm")
    ).unique(_SIGNATURE, keep="last")
    begun = clog_header.group_by("source").agg(began=pl.col("base_time").last())
    known = _calls(clog_event).join(signatures, on=_SIGNATURE)
    known = known.join(_communicators(clog_comm, clog_split).drop("line"), on=_COMM)
    calls = known.join(begun, on="source", how="left").sort("pos").with_columns(
        is_message=pl.col("name").is_in(MESSAGES),
        ranks_named=pl.format(" {}{}{}", "comm_rank", pl.col("name").replace_strict(ARROWS, default=None), "peer"),
    )  # fmt: skip
    number = pl.int_range(1, pl.len() + 1)
    calls = calls.with_columns(
        collective_seq=pl.when(~pl.col("is_message")).then(number.over("source", "comm", "is_message")),
        p2p_seq=pl.when("is_message").then(number.over("source", "comm", "is_message")),
    )
    logged = calls.select(
        group_name="group", group_desc="comm", pg_id=pl.lit(None, pl.Int64),
        profiling_name=pl.concat_str(pl.lit("nccl:"), "name", pl.col("ranks_named").fill_null("")),
        collective_seq="collective_seq", p2p_seq="p2p_seq",
        is_p2p=pl.when("is_message").then(pl.lit("true")).otherwise(pl.lit("false")),
        input_sizes=pl.format("[{}]", "in_count"), input_dtypes=pl.col("dtype").replace(DTYPES),
        state=_state(), retired=pl.lit("false"), frames=pl.lit(None, pl.String),
        created_ns=((pl.col("began") + pl.col("since_base")) * NANOSECONDS).cast(pl.Int64),
        record_id=pl.int_range(pl.len()).over("source"), source="source", line="line",
    )  # fmt: skip
    return _of_both(recorder_call, logged, DUMPED_CALL)


def _communicators(clog_comm: pl.DataFrame, clog_split: pl.DataFrame) -> pl.DataFrame:
    """The communicators of each log; the largest, if no other is as large, is that of all ranks."""
    named = clog_comm.with_columns(comm=text_of("comm")).unique(_COMM, keep="last", maintain_order=True)
    largest = named.filter(pl.col("comm_size") == pl.col("comm_size").max())["comm"].unique()
    is_world = (pl.col("comm") == largest.first()) if len(largest) == 1 else pl.lit(value=False)
    parts = clog_split.select(
        "source", comm=text_of("child"), listed=text_of("members").str.split(",").list.join(", ")
    ).unique(_COMM, keep="last")
    return named.join(parts, on=_COMM, how="left", maintain_order="left").select(
        *_COMM, "comm_rank", "comm_size", "line", group=pl.when(is_world).then(pl.lit(WORLD)).otherwise("comm"),
        ranks=pl.coalesce("listed", pl.format("0-{}", pl.col("comm_size") - 1)),
    )  # fmt: skip


def _calls(clog_event: pl.DataFrame) -> pl.DataFrame:
    """The operations that a rank enqueued, and whether they were seen to begin and to end: null without such events."""
    events = clog_event.filter(text_of("form").fill_null("") == "").sort("pos").with_columns(event=text_of("event"))
    seen = events.group_by(_SIGNATURE).agg(started=(pl.col("event") == "S").sum(), ended=(pl.col("event") == "E").sum())
    watched = events.filter(pl.col("event").is_in(["S", "E"])).select("source", is_watched=True).unique()
    nth = pl.int_range(1, pl.len() + 1).over(_SIGNATURE)
    enqueued = events.filter(pl.col("event") == "Q").join(seen, on=_SIGNATURE, maintain_order="left")
    return enqueued.join(watched, on="source", how="left", maintain_order="left").with_columns(
        has_started=pl.when("is_watched").then(nth <= pl.col("started")),
        has_ended=pl.when("is_watched").then(nth <= pl.col("ended")),
    )


def _state() -> pl.Expr:
    """The state of a call; without events, a collective that all made is over, and a message that others follow."""
    is_made_by_all = pl.col("source").n_unique().over("comm", "ranks", "collective_seq") == pl.col("comm_size")
    is_last = pl.col("pos") == pl.col("pos").max().over("source")
    is_over = pl.coalesce("has_ended", pl.when("is_message").then(~is_last).otherwise(is_made_by_all))
    has_begun = pl.col("has_started").fill_null(value=False)
    return (
        pl.when(is_over)
        .then(pl.lit("completed"))
        .when(has_begun)
        .then(pl.lit("started"))
        .otherwise(pl.lit("scheduled"))
    )


def _of_both(recorded: pl.DataFrame, logged: pl.DataFrame, columns: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.concat([with_all_columns(rows, columns) for rows in (recorded, logged)])
