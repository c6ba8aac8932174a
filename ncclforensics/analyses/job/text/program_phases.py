"""How far each program came, by the last line that names a part of its work."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import TEXT, find_values

# Parts of the work of a program, forms of `phase`, in the order of a run; `bar`: a loop of which no step is done;
# `next_step`: that of `first_step`, behind other steps.
PHASES = (
    *("start", "workers", "joined", "build", "set_up", "data", "weights", "warm_up", "capture", "first_step", "bar"),
    *("first_steps", "next_step", "epoch_end", "evaluation", "gather", "checkpoint"),
)
BETWEEN_STEPS = PHASES[-5:]  # the others are before the first step
# The same of lines that say more, by their frame and form.
FORMS = {
    "program_start": {"ray": "workers"},
    "launched_process": {"deepspeed": "start"},
    "rank_announced": {"registered": "joined"},
    "store_wait": {"completed": "joined"},
    "engine_load": {
        "loading": "weights",
        **dict.fromkeys(("shards", "weights", "sglang"), "warm_up"),
    },
    "training_event": {"saves": "checkpoint"},
}
LAST_PHASE = {
    **ORIGIN,
    "phase": pl.String(),  # one of PHASES
    "rank": pl.Int32(),  # that the tag in front of the line names; null without one
    "what": pl.String(),  # the folder of a build, or the number of steps to do
}


@analysis(LAST_PHASE, of=("phase", "progress_bar", *FORMS))
def last_phase(
    phase: pl.DataFrame,
    progress_bar: pl.DataFrame,
    training_step: pl.DataFrame,
    program_start: pl.DataFrame,
    launched_process: pl.DataFrame,
    rank_announced: pl.DataFrame,
    store_wait: pl.DataFrame,
    engine_load: pl.DataFrame,
    training_event: pl.DataFrame,
) -> pl.DataFrame:
    """One row per file with lines that begin or end a part of the work: the last of them.

    Mostly only one rank prints such lines and steps: files of the other ranks that end with one show nothing, so none
    of a part before the first step is here if another file shows a step.
    """
    folder = text_of("built_below").forward_fill().over("source")
    by_form = phase.sort("source", "line").with_columns(phase=text_of("form"), what=folder)
    others = {
        "program_start": program_start,
        "launched_process": launched_process,
        "rank_announced": rank_announced,
        "store_wait": store_wait,
        "engine_load": engine_load,
        "training_event": training_event,
    }
    bars = _unmoved_bars(progress_bar, training_step).with_columns(phase=pl.lit("bar"))
    frames = [by_form.with_columns(what=pl.when(phase="build").then("what")), bars]
    for name, rows in others.items():
        part = text_of("form").replace_strict(FORMS[name], default=None, return_dtype=pl.String)
        frames.append(rows.with_columns(phase=part))
    named = pl.concat([_as_phase(rows) for rows in frames]).drop_nulls("phase").sort("source", "pos")
    last = named.unique("source", keep="last", maintain_order=True)
    steps = training_step.group_by("source").agg(stepped=pl.col("pos").min())
    is_next = (pl.col("phase") == "first_step") & (pl.col("stepped") < pl.col("pos")).fill_null(value=False)
    last = last.join(steps, on="source", how="left", maintain_order="left").with_columns(
        phase=pl.when(is_next).then(pl.lit("next_step")).otherwise("phase")
    )
    stepping = steps["source"]
    is_of_another = pl.lit(stepping.len() > 0) & ~pl.col("source").is_in(stepping.implode())
    return last.filter(pl.col("phase").is_in(BETWEEN_STEPS) | ~is_of_another).drop("stepped")


def _as_phase(rows: pl.DataFrame) -> pl.DataFrame:
    what = pl.col("what") if "what" in rows.columns else pl.lit(None, pl.String)
    return rows.select(*ORIGIN, "phase", rank=pl.col("launcher_rank").cast(pl.Int32), what=what)


def _unmoved_bars(progress_bar: pl.DataFrame, training_step: pl.DataFrame) -> pl.DataFrame:
    """Return the last progress bar of each file without a step of a training, if it shows none of its steps done.

    tqdm prints such a bar when it begins, and again when its loop is left, as by an error: then time has passed.
    """
    bars = progress_bar.filter(~pl.col("source").is_in(training_step["source"].unique().implode())).sort("pos")
    ends = moments_of_bars(bars.unique("source", keep="last", maintain_order=True)).unique("source", keep="last")
    unmoved = ends.filter(done=0)
    of_unmoved = bars.filter(pl.col("source").is_in(unmoved["source"].implode()))  # the others need not be read
    began = moments_of_bars(of_unmoved)
    is_begin = (pl.col("seconds") == 0) & (pl.col("done") == 0)
    moved_or_left = began.join(unmoved.select("source", "of_all", passed="seconds"), on=["source", "of_all"])
    moved_or_left = moved_or_left.filter((pl.col("done") > 0) | (is_begin & (pl.col("passed") > 0)))
    unmoved = unmoved.join(moved_or_left, on=["source", "of_all"], how="anti")
    return bars.join(unmoved, on="pos").with_columns(what=pl.col("of_all").cast(pl.String))


def moments_of_bars(bars: pl.DataFrame) -> pl.DataFrame:
    """Return what progress bars show at each moment, with `source` and `pos`."""
    places = bars.select("source", "pos").with_row_index(TEXT)
    moments = find_values(bars["bars"].cast(pl.String), "bar_update").join(places, on=TEXT, maintain_order="left")
    return moments.with_columns(
        seconds=pl.sum_horizontal(pl.col("hours") * 3600, pl.col("minutes") * 60, "whole_seconds")
    )
