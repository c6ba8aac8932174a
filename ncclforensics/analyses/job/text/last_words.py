"""What each rank printed last, of its program's own text: its last line before it went silent."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, count_behind
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.step_order import step_rank

LAST_LINES = 4  # of a file: blank ones stand there, and what the launcher prints
LAST_WORD = {**ORIGIN, "rank": pl.Int32()}


@analysis(LAST_WORD, of=("voice", "training_step"))
def last_word(voice: pl.DataFrame, training_step: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row per rank and input: its last line, of those that name it by a tag, or whose file is named after it.

    Of the file of a rank it is one of the last lines: one of NCCL's or PyTorch's behind it says more of the rank.
    """
    files = source.select("source", "lines", hint=pl.col("hint").cast(pl.Int32))
    tagged = voice.rename({"launcher_rank": "rank"}).join(files, on="source")
    steps = training_step.join(files, on="source").with_columns(rank=step_rank())
    columns = [*ORIGIN, "lines", "hint", pl.coalesce("rank", "hint").alias("rank")]
    named = pl.concat([tagged.select(columns), steps.select(columns)]).drop_nulls("rank").sort("pos")
    last = named.unique(["source", "rank"], keep="last", maintain_order=True)
    ends_file = pl.col("hint").is_null() | (count_behind() < LAST_LINES)
    return last.filter(ends_file).select(LAST_WORD.keys())
