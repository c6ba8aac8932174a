"""What only the journal of `capture` tells: where NCCL prints its calls, every call of a rank stands in both.

A communicator is taken from one of the two for all its members: else the ranks that never came to a call, and so have
no line of NCCL's on it, would seem to be on another one.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER
from ncclforensics.frames.registry import analysis

JOURNALED_LIFE = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "comm": pl.Categorical(),
    "rank": pl.Int32(),
    "nranks": pl.Int32(),
    "cudadev": pl.Int32(),
    "commid": pl.Categorical(),
    "event": pl.String(),  # as NCCL's own lines call it: START, COMPLETE, Destroy COMPLETE
    "source": pl.Int32(),
    "line": pl.Int32(),
    "pos": pl.Int64(),
}
JOURNALED_CALL = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "comm": pl.Categorical(),
    "called": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),
    "stamp": pl.Categorical(),
    "source": pl.Int32(),
    "line": pl.Int32(),
    "pos": pl.Int64(),
}

JOURNAL_SPEAKER = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "source": pl.Int32(),
    "lines": pl.Int64(),
    "pos": pl.Int64(),
    "last_pos": pl.Int64(),
    "last": pl.Int32(),  # its last line
    "launcher_ranks": pl.List(pl.Int32()),
}
_WRITTEN = ("journal_init", "journal_call", "journal_done", "journal_failure")


@analysis(JOURNAL_SPEAKER, of=_WRITTEN)
def journal_process(
    journal_init: pl.DataFrame,
    journal_call: pl.DataFrame,
    journal_done: pl.DataFrame,
    journal_failure: pl.DataFrame,
) -> pl.DataFrame:
    """Every process that writes a journal, as `speaker` tells of those that print lines of NCCL's."""
    frames = (journal_init, journal_call, journal_done, journal_failure)
    place = ["source", "line", "pos", "launcher_rank"]
    written = pl.concat([rows.select(*OWNER, *place) for rows in frames]).sort("pos")
    return written.group_by(*OWNER, "source", maintain_order=True).agg(
        lines=pl.len(),
        pos=pl.col("pos").min(),
        last_pos=pl.col("pos").max(),
        last=pl.col("line").last(),
        launcher_ranks=pl.col("launcher_rank").drop_nulls().unique(),
    )


@analysis(JOURNALED_LIFE, of=("journal_init",))
def journal_only_lifetime(journal_init: pl.DataFrame, operation: pl.DataFrame) -> pl.DataFrame:
    """Births and ends of the communicators on which no member printed a call of NCCL's."""
    told = journal_init.join(operation.select(OWNER).unique(), on=OWNER, how="semi")
    alone = journal_init.join(told.select("commid").unique(), on="commid", how="anti", maintain_order="left")
    phase = pl.col("phase").cast(pl.String)
    return alone.with_columns(event=pl.when(phase == "DESTROY").then(pl.lit("Destroy COMPLETE")).otherwise(phase))


@analysis(JOURNALED_CALL, of=("journal_call",))
def journal_only_call(journal_call: pl.DataFrame, journal_only_lifetime: pl.DataFrame) -> pl.DataFrame:
    """The calls on these communicators."""
    place = [*OWNER, "comm"]
    return journal_call.join(journal_only_lifetime.select(place).unique(), on=place, how="semi", maintain_order="left")
