"""Where programs stand by their own words, where their output ends.

At the prompt of a debugger, a question, a lock, a build, without resources, at the start of their process group,
before their first step is over, or in a checkpoint.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, count_behind, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import TEXT, find_values

LAST_LINES = 4  # of a log, or before a time-out: blank ones, and what another rank prints
OF_EVERY_RUN = ("join", "first_step", "checkpoint")  # of lines that all runs print: only the very last of a log counts
STAND = {
    **ORIGIN,
    # A key of STANDS, one of OF_EVERY_RUN, or `resources`, for which the process waits that starts ranks.
    "kind": pl.String(),
    "form": pl.String(),  # of its line
    "rank": pl.Int32(),  # that the line, the tag in front of it, or the name of its file names; null without one
    # The place in the program, the lock, the folder of the build, the resources, the addresses of those who do
    # not come, or the number of steps to do.
    "what": pl.String(),
    "waited": pl.String(),  # seconds, as printed
}
# What a rank does that stands there and has begun no call, so that its watchdog does not time out.
STANDS = {
    "debugger": "stands at the prompt of a debugger",
    "question": "asks a person a question, and stands there",
    "lock": "waits for a lock on a file",
    "build": "builds an extension of PyTorch, or waits for one that is built",
}


@analysis(
    STAND,
    of=(
        "debugger",
        "question",
        "lock_wait",
        "extension_build",
        "resource_wait",
        "group_join",
        "progress_bar",
        "training_event",
    ),
)
def stated_stand(
    debugger: pl.DataFrame,
    question: pl.DataFrame,
    lock_wait: pl.DataFrame,
    extension_build: pl.DataFrame,
    resource_wait: pl.DataFrame,
    group_join: pl.DataFrame,
    progress_bar: pl.DataFrame,
    training_step: pl.DataFrame,
    training_event: pl.DataFrame,
    work_timeout: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line in which a program waits by its own words, and behind which its file shows nothing else.

    It is among the last lines of its file, or right before a time-out that a watchdog prints. Of builds, only the last
    line of a file counts; a prompt of the debugger has the place that stands above it.
    """
    place = pl.format("{}:{} in {}", text_of("stopped_file"), "stopped_line", text_of("stopped_in"))
    stopped = debugger.sort("source", "line").with_columns(
        what=place.forward_fill().over("source"), rank=pl.col("stopped_rank").forward_fill().over("source")
    )
    builds = extension_build.sort("source", "line").with_columns(
        what=text_of("built_below").forward_fill().over("source")
    )
    last_builds = builds.unique("source", keep="last", maintain_order=True)
    rows = {
        "debugger": stopped,
        "question": question,
        "lock": lock_wait.with_columns(what=text_of("lock"), waited=text_of("waited")),
        "build": last_builds.filter(text_of("form").ne_missing("over")),
        "resources": resource_wait.with_columns(what=text_of("resources")),
        "join": group_join.with_columns(
            rank="joining_rank",
            what=pl.coalesce(text_of("absent_peers").str.replace_all("'", "", literal=True), text_of("absent_peer")),
        ),
        "checkpoint": training_event.filter(form="saves"),
        "first_step": _unmoved_bars(progress_bar, training_step),
    }
    columns = [*ORIGIN, "kind", pl.col("form").cast(pl.String), "rank", "what", "waited"]
    empty = {name: pl.lit(None, STAND[name]) for name in ("form", "rank", "what", "waited")}
    stands = pl.concat(
        frame.with_columns(**{name: value for name, value in empty.items() if name not in frame.columns})
        .with_columns(kind=pl.lit(kind), rank=pl.coalesce("rank", "launcher_rank").cast(pl.Int32))
        .select(columns)
        for kind, frame in rows.items()
    )
    stops = work_timeout.select("source", "line", stop="line").sort("line")
    placed = stands.join(source.select("source", "lines", "hint"), on="source").sort("line")
    placed = placed.with_columns(rank=pl.coalesce("rank", pl.col("hint").cast(pl.Int32)))
    placed = placed.join_asof(stops, on="line", by="source", strategy="forward", check_sortedness=False)
    limit = pl.when(pl.col("kind").is_in(OF_EVERY_RUN)).then(1).otherwise(LAST_LINES)
    before = (pl.col("stop") - pl.col("line")).fill_null(LAST_LINES + 1)
    is_last = (count_behind() < limit) | (before <= limit)
    # All ranks come to the start of a process group one behind the other.
    is_last = pl.when(kind="join").then(is_last.any().over("source", "kind")).otherwise(is_last)
    return placed.filter(is_last).select(STAND.keys()).sort("source", "line")


def _unmoved_bars(progress_bar: pl.DataFrame, training_step: pl.DataFrame) -> pl.DataFrame:
    """Return the last progress bar of each file without a step of a training, if it shows none of its steps done.

    tqdm prints such a bar when it begins, and again when its loop is left, as by an error: then time has passed.
    """
    bars = progress_bar.filter(~pl.col("source").is_in(training_step["source"].unique().implode())).sort("pos")
    ends = _moments(bars.unique("source", keep="last", maintain_order=True)).unique("source", keep="last")
    unmoved = ends.filter(pl.sum_horizontal("done", "hours", "minutes", "whole_seconds") == 0)
    began = bars.filter(pl.col("source").is_in(unmoved["source"].implode()))  # the others need not be read
    moved = _moments(began).filter(pl.col("done") > 0)
    unmoved = unmoved.join(moved, on=["source", "of_all"], how="anti")
    return bars.join(unmoved, on="pos").with_columns(what=pl.col("of_all").cast(pl.String))


def _moments(bars: pl.DataFrame) -> pl.DataFrame:
    """Return what progress bars show at each moment, with `source` and `pos`."""
    places = bars.select("source", "pos").with_row_index(TEXT)
    return find_values(bars["bars"].cast(pl.String), "bar_update").join(places, on=TEXT, maintain_order="left")
