"""Where programs stand by their own words: at a prompt, a question, a lock, a build, or without resources."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, count_behind, text_of
from ncclforensics.frames.registry import analysis

LAST_LINES = 4  # of a log, or before a time-out: blank ones, and what another rank prints
STAND = {
    **ORIGIN,
    "kind": pl.String(),  # a key of STANDS, or `resources`, for which the process that starts ranks waits
    "form": pl.String(),  # of its line
    "rank": pl.Int32(),  # that the line, or the tag in front of it, names; null without one
    "what": pl.String(),  # the place in the program, the lock, the folder of the build, or the resources
    "waited": pl.String(),  # seconds, as printed
}
# What a rank does that stands there, for sentences.
STANDS = {
    "debugger": "stands at the prompt of a debugger",
    "question": "asks a person a question, and stands there",
    "lock": "waits for a lock on a file",
    "build": "builds an extension of PyTorch, or waits for one that is built",
}


@analysis(STAND, of=("debugger", "question", "lock_wait", "extension_build", "resource_wait"))
def stated_stand(
    debugger: pl.DataFrame,
    question: pl.DataFrame,
    lock_wait: pl.DataFrame,
    extension_build: pl.DataFrame,
    resource_wait: pl.DataFrame,
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
        "build": last_builds.filter((text_of("form") != "over").fill_null(value=True)),
        "resources": resource_wait.with_columns(what=text_of("resources")),
    }
    columns = [*ORIGIN, "kind", pl.col("form").cast(pl.String), "rank", "what", "waited"]
    empty = {"rank": pl.lit(None, pl.Int32), "what": pl.lit(None, pl.String), "waited": pl.lit(None, pl.String)}
    stands = pl.concat(
        frame.with_columns(**{name: value for name, value in empty.items() if name not in frame.columns})
        .with_columns(kind=pl.lit(kind), rank=pl.coalesce("rank", "launcher_rank").cast(pl.Int32))
        .select(columns)
        for kind, frame in rows.items()
    )
    stops = work_timeout.select("source", "line", stop="line").sort("line")
    placed = stands.join(source.select("source", "lines"), on="source").sort("line")
    placed = placed.join_asof(stops, on="line", by="source", strategy="forward", check_sortedness=False)
    before = (pl.col("stop") - pl.col("line")).fill_null(LAST_LINES + 1)
    is_last = (count_behind() < LAST_LINES) | (before <= LAST_LINES)
    return placed.filter(is_last).select(STAND.keys()).sort("source", "line")
