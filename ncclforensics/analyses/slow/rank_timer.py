"""Megatron-LM's timers across ranks: one row for each timer of a report, and for each rank where it is named."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.registry import analysis

RANK_TIMER = {
    "report": pl.Int64(),  # number of the report in its input, from 1 on
    "timer": pl.String(),
    "rank": pl.Int32(),  # null where only the extremes are printed
    "lowest_ms": pl.Float64(),  # null where only the longest is printed
    "highest_ms": pl.Float64(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}


@analysis(RANK_TIMER, of=("timer_spread", "timer_rank"))
def rank_timer(
    timer_head: pl.DataFrame, timer_name: pl.DataFrame, timer_spread: pl.DataFrame, timer_rank: pl.DataFrame
) -> pl.DataFrame:
    """The rows below each head of a report; those of a rank have the name of the timer above them."""
    place = ["source", "line", "pos"]
    rows = pl.concat(
        [
            timer_head.select(*place, is_head=True),
            timer_name.select(*place, named=pl.col("timer").cast(pl.String)),
            timer_spread.select(
                *place, timer=pl.col("timer").cast(pl.String), lowest_ms="lowest", highest_ms="highest"
            ),
            timer_rank.select(*place, "rank", lowest_ms="milliseconds", highest_ms="milliseconds"),
        ],
        how="diagonal",
    ).sort("pos")
    above = pl.when(pl.col("is_head")).then(pl.lit("")).otherwise("named").forward_fill().over("source")
    rows = rows.with_columns(
        report=pl.col("is_head").fill_null(value=False).cum_sum().over("source"),
        timer=pl.coalesce("timer", pl.when(pl.col("rank").is_not_null()).then(above)),
    )
    is_value = pl.col("highest_ms").is_not_null() & (pl.col("timer") != "") & (pl.col("report") > 0)
    return rows.filter(is_value).select(list(RANK_TIMER))
