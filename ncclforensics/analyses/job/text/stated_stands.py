"""Where programs stand by their own words, where their output ends.

At the prompt of a debugger, a question, a lock, without resources, at the start of their process group, or in a part of
their work that their last line names.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.program_phases import PHASES
from ncclforensics.data.processes import REQUESTED_ENDS
from ncclforensics.frames.columns import ORIGIN, count_behind, text_of
from ncclforensics.frames.registry import analysis

LAST_LINES = 4  # of a log, or before a time-out: blank ones, and what another rank prints
TRACEBACK_LINES = 100  # above an error
LATE_IN_RAY = "ray_late"  # form of `worker_end`: what the program asked for did not come in time
GIVEN_UP = ("cancelled", "time_limit")  # forms of `job_end`
OF_EVERY_RUN = ("join", *PHASES)  # of lines that all runs print: only the very last of a log counts
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
        "resource_wait",
        "group_join",
        "last_phase",
    ),
)
def stated_stand(
    debugger: pl.DataFrame,
    question: pl.DataFrame,
    lock_wait: pl.DataFrame,
    resource_wait: pl.DataFrame,
    group_join: pl.DataFrame,
    last_phase: pl.DataFrame,
    work_timeout: pl.DataFrame,
    process_exit: pl.DataFrame,
    job_end: pl.DataFrame,
    worker_end: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line in which a program waits by its own words, and behind which its file shows nothing else.

    It is among the last lines of its file, or right before a time-out that a watchdog prints, or before somebody or the
    scheduler ended what stood there. A prompt of the debugger has the place that stands above it. Of the parts of their
    work, only the last one that a file ends with is here.
    """
    place = pl.format("{}:{} in {}", text_of("stopped_file"), "stopped_line", text_of("stopped_in"))
    stopped = debugger.sort("source", "line").with_columns(
        what=place.forward_fill().over("source"), rank=pl.col("stopped_rank").forward_fill().over("source")
    )
    rows = {
        "debugger": stopped,
        "question": question,
        "lock": lock_wait.with_columns(what=text_of("lock"), waited=text_of("waited")),
        "resources": resource_wait.with_columns(what=text_of("resources")),
        "join": group_join.with_columns(
            rank="joining_rank",
            what=pl.coalesce(text_of("absent_peers").str.replace_all("'", "", literal=True), text_of("absent_peer")),
        ),
    }
    standing = last_phase.filter(pl.col("phase") != "first_steps")  # a healthy run passed its first step, too
    parts = standing.partition_by("phase", maintain_order=True, as_dict=True)
    rows |= {str(part): of_part for (part,), of_part in parts.items()}
    columns = [*ORIGIN, "kind", pl.col("form").cast(pl.String), "rank", "what", "waited"]
    empty = {name: pl.lit(None, STAND[name]) for name in ("form", "rank", "what", "waited")}
    stands = pl.concat(
        frame.with_columns(**{name: value for name, value in empty.items() if name not in frame.columns})
        .with_columns(kind=pl.lit(kind), rank=_rank(frame))
        .select(columns)
        for kind, frame in rows.items()
    )
    asked = process_exit.filter(pl.col("signal").is_in(REQUESTED_ENDS))
    given_up = job_end.filter(text_of("form").is_in(GIVEN_UP))
    late = worker_end.filter(form=LATE_IN_RAY)
    stops = pl.concat(
        rows.select("source", "line", stop="line", most=pl.lit(most))
        for most, kinds in ((LAST_LINES, (work_timeout, asked, given_up)), (TRACEBACK_LINES, (late,)))
        for rows in kinds
    )
    placed = stands.join(source.select("source", "lines", "hint", "blank_end"), on="source").sort("line")
    placed = placed.with_columns(rank=pl.coalesce("rank", pl.col("hint").cast(pl.Int32)))
    placed = placed.join_asof(stops.sort("line"), on="line", by="source", strategy="forward", check_sortedness=False)
    is_of_every_run = pl.col("kind").is_in(OF_EVERY_RUN)
    limit, most = (pl.when(is_of_every_run).then(1).otherwise(lines) for lines in (LAST_LINES, pl.col("most")))
    is_stopped = (pl.col("stop") - pl.col("line") <= most).fill_null(value=False)
    is_last = (count_behind() - pl.col("blank_end") < limit) | is_stopped
    # All ranks come to the start of a process group one behind the other.
    is_last = pl.when(kind="join").then(is_last.any().over("source", "kind")).otherwise(is_last)
    # Where watchdogs time out, they say more than how far a program came; a build has no watchdog.
    says_less = pl.col("kind").is_in(PHASES) & (pl.col("kind") != "build") & pl.lit(work_timeout.height > 0)
    last = placed.filter(is_last & ~says_less)
    order = pl.col("kind").replace_strict({name: place for place, name in enumerate(PHASES)}, default=None)
    is_before = (order < order.max()).fill_null(value=False)
    return last.filter(~is_before).select(STAND.keys()).sort("source", "line")


def _rank(rows: pl.DataFrame) -> pl.Expr:
    names = [name for name in ("rank", "launcher_rank") if name in rows.columns]
    return pl.coalesce(names).cast(pl.Int32)
