"""How long steps took, from the step lines of all frameworks in one form, and what the job as a whole shows."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.step_order import counted_step, step_rank, step_time
from ncclforensics.grammar.values import TEXT, find_values

TIMED_STEP = {
    "series": pl.Int32(),  # lines that can be compared: of the ranks of one job, or of one file
    "attempt": pl.Int32(),  # of the series, from 0 on: steps that go back begin another
    "rank": pl.Int32(),  # that printed the line; null where nothing tells it
    "step": pl.Int64(),
    "time": pl.Float64(),  # of the line, seconds since 1970 on the clock of that logger
    "seconds": pl.Float64(),  # of a step
    "pace": pl.Float64(),  # seconds for one `unit`: what is compared, as it does not change with the size of a batch
    "unit": pl.String(),  # token of a GPU, token, sample, or step
    "averaged_over": pl.Int64(),  # steps since the previous line of this rank
    "batch": pl.Float64(),  # samples
    "sequence_length": pl.Float64(),  # tokens
    "gpus": pl.Int32(),  # of the job, where two rates of the line tell it
    "source": pl.Int32(),
    "line": pl.Int32(),
}
JOB_STEP = {name: dtype for name, dtype in TIMED_STEP.items() if name != "rank"} | {"ranks": pl.UInt32()}

# Column of a rate, and the unit it counts: the first that nearly every line of a series has.
RATES = {
    "tokens_per_second_of_gpu": "token of a GPU",
    "tokens_per_second": "token",
    "samples_per_second": "sample",
    "steps_per_second": "step",
}
NEARLY_ALL = 0.9
TAKEN = [*RATES, "seconds", "batch", "sequence_length", "time"]
OF_DATA = "examples"  # the unit of bars of the library datasets, which prepares data
BAR_SECONDS = 20  # between two moments of a progress bar, whose clock counts whole seconds
BAR_MOMENTS = 200
LINES = {
    **{name: TIMED_STEP[name] for name in ("source", "line", "rank", "step", "seconds", "time", "batch")},
    **{name: pl.Float64() for name in (*RATES, "sequence_length")},
}


@analysis(TIMED_STEP, of=("training_step", "progress_bar"))
def timed_step(training_step: pl.DataFrame, progress_bar: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row per step line that tells how fast the steps were, in the order of lines."""
    lines = _lines(training_step, source)
    bars = progress_bar.filter(~pl.col("source").is_in(lines["source"].unique().implode()))
    rows = pl.concat([lines, _bars(bars, source)], how="diagonal")
    rows = rows.filter(pl.col("step").is_not_null() & pl.any_horizontal(pl.col("seconds", *RATES).is_not_null()))
    if rows.is_empty():
        return pl.DataFrame(schema=TIMED_STEP)
    stream = ["source", "rank"]
    rows = rows.with_columns(
        attempt=(pl.col("step").diff() < 0).fill_null(value=False).cum_sum().over(stream),
        averaged_over=pl.col("step").diff().over(stream).fill_null(1).clip(1),
    )
    return _with_pace(_with_series(rows)).select(list(TIMED_STEP))


@analysis(JOB_STEP, of=("timed_step",))
def job_step(timed_step: pl.DataFrame) -> pl.DataFrame:
    """One row per step of a series, in order: the median of the ranks that printed it, and the first of their lines."""
    names = ["series", "attempt", "step"]
    figures = ["seconds", "pace", "batch", "sequence_length"]
    return timed_step.group_by(names, maintain_order=True).agg(
        pl.col("time").min(),
        pl.col(figures).median(),
        pl.col("unit", "averaged_over", "gpus", "source", "line").first(),
        ranks=pl.len(),
    ).sort(names).select(list(JOB_STEP))  # fmt: skip


def _lines(rows: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The lines with a step, in columns of one unit; the values that a step has on several lines are put together."""
    if rows.is_empty():
        return pl.DataFrame(schema=LINES)
    seconds = pl.coalesce("seconds", pl.col("milliseconds") / 1e3, "took")
    hints = source.select("source", "hint")
    lines = (
        rows.sort("pos")
        .join(hints, on="source", how="left", maintain_order="left")
        .select(
            "source",
            "line",
            "batch",
            "sequence_length",
            *(pl.when(pl.col(name) > 0).then(name) for name in RATES),
            rank=step_rank(),
            step=counted_step(),
            seconds=pl.when(seconds > 0).then(seconds),
            time=step_time(),
        )
    )  # fmt: skip
    stream = ["source", "rank"]
    # Values stand on lines of their own behind that of the step (Composer).
    lines = lines.with_columns(pl.col("step").forward_fill().over(stream))
    run = pl.col("step").rle_id().over(stream)
    if not (pl.col("step") == pl.col("step").shift(1).over(stream)).pipe(lambda same: lines.select(same.any())).item():
        return lines
    return lines.group_by(*stream, run.alias("run"), maintain_order=True).agg(
        pl.col("step", "line").first(), pl.col(TAKEN).drop_nulls().first()
    )


def _bars(rows: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The moments of progress bars: of each input the longest bar, and of that a moment every BAR_SECONDS or more."""
    if rows.is_empty():
        return pl.DataFrame(schema={"source": pl.Int32()})
    found = find_values(rows["bars"], "bar_update")
    own = rows.select("source", "line").with_row_index(TEXT)
    elapsed = pl.col("hours").fill_null(0) * 3600 + pl.col("minutes") * 60 + pl.col("whole_seconds")
    moments = (
        found.filter(text_of("bar_rate").str.contains(OF_DATA, literal=True).not_().fill_null(value=True))
        .join(own, on=TEXT, maintain_order="left")
        .select("source", "line", total="of_all", step="done", time=elapsed.cast(pl.Float64))
        .filter(pl.col("total") == pl.col("total").max().over("source"))
    )
    # A bar that begins anew is another one: of several, the longest counts.
    bar = (pl.col("step").diff() < 0).cum_sum().over("source").fill_null(0)
    moments = moments.with_columns(bar=bar).filter(pl.col("bar") == pl.col("bar").mode().min().over("source"))
    moments = moments.drop("bar")
    width = pl.max_horizontal(pl.col("time").max().over("source") / BAR_MOMENTS, pl.lit(BAR_SECONDS))
    bucket = (pl.col("time") / width).floor()
    moments = moments.filter((bucket != bucket.shift(1)).over("source").fill_null(value=True))
    steps, taken = pl.col("step").diff().over("source"), pl.col("time").diff().over("source")
    moments = moments.with_columns(seconds=pl.when((steps > 0) & (taken > 0)).then(taken / steps))
    return moments.drop("total").join(source.select("source", rank="hint"), on="source", maintain_order="left")


def _with_series(rows: pl.DataFrame) -> pl.DataFrame:
    """Number the series: all ranks of one job where each rank is there once, else each file and rank by itself."""
    streams = rows.select("source", "rank").unique().sort("source", "rank")
    is_one_job = streams["rank"].null_count() == 0 and streams["rank"].is_unique().all()
    number = pl.lit(0, dtype=pl.Int32) if is_one_job else pl.int_range(pl.len(), dtype=pl.Int32)
    streams = streams.with_columns(series=number)
    return rows.join(streams, on=["source", "rank"], nulls_equal=True, maintain_order="left")


def _with_pace(rows: pl.DataFrame) -> pl.DataFrame:
    """Add pace and unit, by the first rate that nearly all lines of the series have; else by the length of steps."""
    pace, unit = pl.col("seconds"), pl.lit("step")
    for name, counted in reversed(RATES.items()):
        has_rate = pl.col(name).is_not_null().mean().over("series") >= NEARLY_ALL
        pace = pl.when(has_rate).then(1 / pl.col(name)).otherwise(pace)
        unit = pl.when(has_rate).then(pl.lit(counted)).otherwise(unit)
    of_gpu = pl.col("tokens_per_second_of_gpu")
    of_job = pl.coalesce("tokens_per_second", pl.col("batch") * pl.col("sequence_length") / pl.col("seconds"))
    seconds = pl.coalesce("seconds", 1 / pl.col("steps_per_second"))
    return rows.with_columns(pace=pace, unit=unit, seconds=seconds, gpus=(of_job / of_gpu).round()).filter(
        pl.col("pace").is_not_null()
    )
