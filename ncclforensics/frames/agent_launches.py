"""Launches and attempts of torchrun that ended before the last one in the same text, by what its agents print.

An agent starts the ranks of its node. When one fails it ends the others, and starts all again or gives up.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, text_of
from ncclforensics.frames.launch_order import OF_ONE, REPORTS, STEP, after_ends, with_last_before
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.step_order import BUFFERED_LINES, STEPS_OF_RUN, counted_step, step_time
from ncclforensics.frames.time_range import as_time

OF_RANKS = (REPORTS, "exception", "gpu_exception")
LATE_STEP = 60  # seconds behind the report of an agent; what a rank of another node still prints is not so late
AGENT, STARTS_WORKERS = "torch/distributed/launcher/api.py", "_initialize_workers"  # file, function
# Forms of `elastic_failure`: which of its workers failed first, that the agent was told to end, its table at the end.
FAILED, ASKED, OF_TABLE = "failed", "terminated", ("summary", "root_cause", "exit_code", "first_entry")
ROOT_CAUSE = "root_cause"  # form of `elastic_failure` that a report has once


def begins(run: Frames, agents: pl.DataFrame, ended: pl.DataFrame) -> list[pl.DataFrame]:
    """The lines of a launch or attempt that began after another one had ended: `source`, `pos`, `line`, `end`.

    `agents`: where an agent says that it starts; `ended`: the ends of launches as a whole.
    """
    calls = run["traceback_frame"].filter(pl.col("rank").is_null()).select("source", "pos", "file", "frame_function")
    gave_up = calls.filter(text_of("file").str.ends_with(AGENT)).select("source", "pos")
    refused = calls.filter(frame_function=STARTS_WORKERS)
    if not any(rows.height for rows in (agents, run[REPORTS], gave_up, refused)):  # as where torchrun started nothing
        return []
    numbered = run[STEP].select(*ORIGIN, step=counted_step()).drop_nulls()
    made = pl.concat([numbered, run["training_progress"].select(*ORIGIN, step="counted")]).sort("pos")
    shown = (_agents_again(run, agents, ended), _steps_after_reports(run), _steps_behind_several(run))
    placed = (_behind_agents(run, gave_up, made), _behind_unstarted(run, refused, made), _restarted(run, gave_up))
    return [*(after_ends(rows, ended) for rows in shown), *placed]


def _agents_again(run: Frames, agents: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """Starts of torchrun between two reports of one rank; or, where every agent had ended, between any of its lines.

    Logs of several nodes may stand in one file, one below the other, each with other ranks. None of these ends well,
    so that a start is of another launch, too, if every agent had ended before it, and the program did so behind it.
    """
    starts = agents.sort("pos").select("source", "pos", "line", before=pl.int_range(pl.len()).over("source"))
    reports = ended.filter(text_of("form") == ROOT_CAUSE).sort("pos")
    counted = reports.select("source", "pos", ends=pl.int_range(1, pl.len() + 1).over("source"))
    single = with_last_before(starts, counted).filter(pl.col("ends") >= pl.col("before"))
    successes = run["stated_end"].filter(~text_of("form").is_in(OF_ONE))
    last = successes.group_by("source").agg(success=pl.col("pos").max())
    found = [_within_lines(starts, run, (REPORTS,)), _within_lines(single, run, OF_RANKS)]
    found.append(single.join(last, on="source").filter(pl.col("pos") < pl.col("success")))
    return pl.concat([rows.select("source", "pos", "line") for rows in found])


def _within_lines(starts: pl.DataFrame, run: Frames, frames: tuple[str, ...]) -> pl.DataFrame:
    """The starts between two lines of one rank in these frames, in their input."""
    named = pl.concat([run[name].select("source", "rank", at="pos") for name in frames]).drop_nulls("rank")
    spans = named.group_by("source", "rank").agg(first=pl.col("at").min(), last=pl.col("at").max())
    is_between = (pl.col("first") < pl.col("pos")) & (pl.col("pos") < pl.col("last"))
    return starts.join(starts.join(spans, on="source").filter(is_between), on=["source", "pos"], how="semi")


def _steps_after_reports(run: Frames) -> pl.DataFrame:
    """Steps whose time is later than that of the report of an agent above them.

    An agent reports once, when it gives up; those of other nodes end then, too, and what they print has no later time.
    """
    failed = as_time(text_of("time").str.replace("_", " ", literal=True), 1970)
    reports = run[REPORTS].filter(form="time").select("source", "pos", failed=failed.dt.epoch("us") / 1e6)
    steps = run[STEP].select("source", "pos", "line", at=step_time())
    later = with_last_before(steps, reports.drop_nulls("failed"))
    return later.filter(pl.col("at") - pl.col("failed") > LATE_STEP).select("source", "pos", "line")


def _steps_behind_several(run: Frames) -> pl.DataFrame:
    """Steps far behind the last of several reports of one rank, each by another agent: launch follows upon launch."""
    reports = run[REPORTS].drop_nulls("rank")
    several = reports.filter(pl.len().over("source", "rank") > 1).group_by("source").agg(end=pl.col("pos").max())
    steps = run[STEP].select("source", "pos", "line", "step").drop_nulls("step").join(several, on="source")
    further = steps.filter(pl.col("pos") - pl.col("end") > BUFFERED_LINES)
    return further.filter(pl.col("step").n_unique().over("source") >= STEPS_OF_RUN).drop("end", "step")


def _behind_unstarted(run: Frames, refused: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Steps `made`, or ends of ranks, behind the traceback of an agent that could start no rank: `refused`."""
    workers = run[REPORTS].drop_nulls("pid").select(*ORIGIN, "pid")
    unstarted = with_last_before(refused, workers.drop("line")).filter(pl.col("pid").is_null())
    later, ended = (after_ends(rows, unstarted.select("source", "pos")) for rows in (made, workers))
    later = later.filter(pl.len().over("source") >= STEPS_OF_RUN)
    return pl.concat(rows.select(*ORIGIN, "end") for rows in (later, ended))


def _behind_agents(run: Frames, gave_up: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
    """Steps `made` behind the traceback of an agent whose ranks had all ended: `gave_up`.

    Or behind its line on the first of them that failed: it may start them again. It had started all that the text
    names, and the steps begin anew, or for the first time with an earlier one, and come further than before: stdout may
    stand below stderr, ranks of other nodes and other jobs that print into the same file go on.
    """
    failures = run[REPORTS].filter(form=FAILED).select("source", "pos")
    agents = pl.concat([gave_up, failures]).sort("pos")
    of_agent = with_last_before(
        run[REPORTS].select("source", -pl.col("pos"), "pid"),
        agents.select("source", -pl.col("pos"), agent="pos"),
    )
    sizes = of_agent.group_by("source", "agent").agg(pl.col("pid").n_unique()).group_by("source").max()
    ranks = pl.concat([run[name].select("source", "rank") for name in OF_RANKS]).group_by("source").max()
    others = ranks.join(sizes, on="source", how="left").filter(pl.col("rank") >= pl.col("pid").fill_null(0))
    begin, reached = pl.col("step").first(), pl.col("step").shift()
    made = made.with_columns(begin.over("source").alias("begin"), reached.over("source").alias("reached"))
    made = made.with_columns(backs=(pl.col("step") < pl.col("reached")).cum_sum().over("source"))
    later = after_ends(made.join(others, on="source", how="anti", maintain_order="left"), agents)
    is_first_time = (pl.col("step") <= pl.col("begin")) | (pl.col("backs") == 1)
    begins_again = is_first_time & (pl.col("step") < pl.col("reached"))
    comes_further = pl.col("step").max() > pl.col("reached").first()
    again = later.filter((begins_again.first() & comes_further).fill_null(value=False).over("source"))
    return again.filter(pl.len().over("source") >= STEPS_OF_RUN).select(*ORIGIN, "end")


def _restarted(run: Frames, gave_up: pl.DataFrame) -> pl.DataFrame:
    """The lines behind the failure of workers that an agent of torchrun started again.

    An agent that gives up prints a traceback and its table right behind the line on the first of them that failed.
    Without one, it had started them again if it is told to end later, and then ends processes that it had not named; or
    if much stands behind that line. `gave_up`: tracebacks of agents.
    """
    reports = run[REPORTS].sort("pos")
    failed = reports.filter(form=FAILED).select("source", "pos", "line")
    table = reports.filter(text_of("form").is_in(OF_TABLE)).select("source", "pos")
    tables = pl.concat([gave_up, table]).sort("pos").with_columns(table="pos")
    first = reports.drop_nulls("pid").group_by("source", "pid").agg(pl.col("pos").min())
    asked = reports.filter(form=ASKED).group_by("source").agg(asked=pl.col("pos").min())
    ended = first.join(asked, on="source").filter(pl.col("pos") > pl.col("asked")).select("source", "asked").unique()
    last = run["voice"].group_by("source").agg(last=pl.col("pos").max())
    placed = failed.join_asof(tables, on="pos", by="source", strategy="forward", check_sortedness=False)
    placed = placed.join(ended, on="source", how="left").join(last, on="source", how="left")
    is_over = (pl.col("table") < pl.col("asked").fill_null(pl.col("table") + 1)).fill_null(value=False)
    goes_on = (pl.col("asked") > pl.col("pos")) | (pl.col("last") - pl.col("pos") > BUFFERED_LINES)
    return placed.filter(~is_over & goes_on).select("source", pl.col("line") + 1, pos=pl.col("pos") + 1, end="pos")
