"""Processes, communicators and calls from the journals of `capture`, where NCCL printed no calls.

If NCCL prints calls, a rank's calls are both in its log and in its journal. All members of a communicator are taken
from the same one of the two: else ranks that made no call, and so have no NCCL line, would appear on another one.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, OWNER, PROCESS
from ncclforensics.frames.registry import analysis

JOURNAL_LIFETIME = {
    **PROCESS,
    "comm": pl.Categorical(),
    "rank": pl.Int32(),
    "nranks": pl.Int32(),
    "cudadev": pl.Int32(),
    "commid": pl.Categorical(),
    "event": pl.String(),  # as NCCL's lines name it: START, COMPLETE, Destroy COMPLETE
    **ORIGIN,
}
JOURNAL_ONLY_CALL = {
    **PROCESS,
    "comm": pl.Categorical(),
    "called": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),
    "ordinal": pl.Int64(),  # of the call among all of its process, from 0
    "stamp": pl.Categorical(),
    **ORIGIN,
}
CALL_COUNTER = {
    "pos": pl.Int64(),  # in order
    "opcount": pl.Int64(),
}
JOURNAL_PROCESS = {
    **PROCESS,
    "source": pl.Int32(),
    "lines": pl.Int64(),
    "pos": pl.Int64(),
    "last_pos": pl.Int64(),
    "last": pl.Int32(),  # line number of its last line
    "launcher_ranks": pl.List(pl.Int32()),
}
JOURNAL_FRAMES = ("journal_init", "journal_call", "journal_done", "journal_failure")


@analysis(JOURNAL_PROCESS, of=JOURNAL_FRAMES)
def journal_process(
    journal_init: pl.DataFrame,
    journal_call: pl.DataFrame,
    journal_done: pl.DataFrame,
    journal_failure: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process and journal that it wrote, with the columns of `speaker`."""
    frames = (journal_init, journal_call, journal_done, journal_failure)
    columns = ["source", "line", "pos", "launcher_rank"]
    lines = pl.concat([rows.select(*OWNER, *columns) for rows in frames]).sort("pos")
    return lines.group_by(*OWNER, "source", maintain_order=True).agg(
        lines=pl.len(),
        pos=pl.col("pos").min(),
        last_pos=pl.col("pos").max(),
        last=pl.col("line").last(),
        launcher_ranks=pl.col("launcher_rank").drop_nulls().unique(),
    )


@analysis(JOURNAL_LIFETIME, of=("journal_init",))
def journal_only_lifetime(journal_init: pl.DataFrame, operation: pl.DataFrame) -> pl.DataFrame:
    """Creation and end of the communicators on which no member printed an NCCL call."""
    with_nccl_calls = journal_init.join(operation.select(OWNER).unique(), on=OWNER, how="semi")
    journal_only = journal_init.join(
        with_nccl_calls.select("commid").unique(), on="commid", how="anti", maintain_order="left"
    )
    phase = pl.col("phase").cast(pl.String)
    return journal_only.with_columns(
        event=pl.when(phase == "DESTROY").then(pl.lit("Destroy COMPLETE")).otherwise(phase)
    )


@analysis(JOURNAL_ONLY_CALL, of=("journal_call",))
def journal_only_call(journal_call: pl.DataFrame, journal_only_lifetime: pl.DataFrame) -> pl.DataFrame:
    """The journal's calls on the communicators of `journal_only_lifetime`."""
    pointer = [*OWNER, "comm"]
    return journal_call.join(
        journal_only_lifetime.select(pointer).unique(), on=pointer, how="semi", maintain_order="left"
    )


@analysis(CALL_COUNTER, of=("call_occurrence", "journal_only_call"), is_step=True)
def call_counter(call_occurrence: pl.DataFrame, journal_only_call: pl.DataFrame) -> pl.DataFrame:
    """The number that each line of a call has: NCCL's `opCount`, or that of the journal."""
    counters = call_occurrence.select("pos", "opcount")
    if journal_only_call.is_empty():
        return counters
    return pl.concat([counters, journal_only_call.select("pos", opcount="ordinal")]).sort("pos")
