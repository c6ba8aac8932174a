"""Launches that ended before the last one in the same text: a log that a queue or a retry appends to holds several.

What an ended launch printed accuses no process of the next one. Nodes and ranks of one launch share a text, too, and
not all of them end at once, so that a later line alone shows no new launch: see `_begins`.
"""

from __future__ import annotations

from functools import cache

import polars as pl

from ncclforensics.data.processes import SECOND_HAND_CLASSES
from ncclforensics.frames.assemble import with_positions
from ncclforensics.frames.columns import ORIGIN, OWNER, no_rows, text_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.step_order import BUFFERED_LINES, STEPS_OF_RUN, counted_step, step_time
from ncclforensics.frames.time_range import as_time
from ncclforensics.grammar.grammar_file import load
from ncclforensics.parsing.load import EARLIER_LAUNCH

EARLIER_LAUNCH_COLUMNS = {**ORIGIN, **EARLIER_LAUNCH}
# What programs of a job print; the kernel's lines, settings and lines of NCCL are of a host or of a process.
GRAMMARS = ("job", "pytorch", "c10d", "engines", "openmpi", "stated", "steps", "unread")
NOT_OF_LAUNCHES = (
    "kernel_kill", "kernel_line", "hardware_event", "process_listed",
    "exported", "library_variable", "launch_command", "engine_nccl",
)  # fmt: skip
# Forms of lines by which a launch ends as a whole.
LAUNCHER_ENDS = {
    "elastic_failure": ("summary", "root_cause", "first_entry"),
    "job_end": ("cancelled", "time_limit", "mpirun", "mpirun_status"),
}
ERRORS = ("exception", "gpu_exception", "unstarted_program", "engine_wait", "crash", "process_end")
STARTS = ("program_start", "launched_process", "unstarted_program")
STEP = "training_step"
PLACES = ("source", "pos", "line")
HEADING = "traceback"  # form of `exception`: the error stands below it
TORCHRUN = "torchrun"  # form of `program_start` that every node of a launch prints
TRACKER = "wandb"  # form of `program_start` of a process that records what it does with a tracker of experiments
SRUN = "srun"  # form of `program_start` of a job: it waits for the nodes
REFUSED = "arguments"  # form of `unstarted_program`: every rank prints it, and none begins
REPORTS = "elastic_failure"
OF_RANKS = (REPORTS, "exception", "gpu_exception")
OF_ONE = ("process", "rank")  # forms of `program_success` that are not of the whole program
LATE_STEP = 60  # seconds behind the report of an agent; what a rank of another node still prints is not so late
WHOLE_JOB = "JOB "  # how Slurm names a job and not a step of it
UNCOMPILED = ("SyntaxError", "IndentationError", "TabError")  # without a traceback: of the program itself
NEAREST_FRAME = 8  # lines above such an error, where it is of a module that the program imports
AGENT, STARTS_WORKERS = "torch/distributed/launcher/api.py", "_initialize_workers"  # file, function
# Forms of `elastic_failure`: which of its workers failed first, that the agent was told to end, its table at the end.
FAILED, ASKED, OF_TABLE = "failed", "terminated", ("summary", "root_cause", "exit_code", "first_entry")
ROOT_CAUSE = "root_cause"  # form of `elastic_failure` that a report has once


def find(run: Frames) -> pl.DataFrame:
    """Return a row for each input in which a launch ended, and another one followed."""
    ends = [
        run[name].filter(text_of("form").is_in(forms)).select("source", "pos", "line", "form")
        for name, forms in LAUNCHER_ENDS.items()
        if run.has(name)
    ]
    errors = [
        run[name].filter(text_of("form") != HEADING).select("source", "pos", "line") for name in ERRORS if run.has(name)
    ]
    if not ends and not (errors and any(run.has(name) for name in (*STARTS, STEP))):
        return no_rows(EARLIER_LAUNCH_COLUMNS)
    ended = pl.concat(ends) if ends else run["job_end"].select("source", "pos", "line", "form").clear()
    failed = pl.concat(errors) if errors else ended.drop("form").clear()
    begins = _begins(run, ended, failed)
    if begins.is_empty():
        return no_rows(EARLIER_LAUNCH_COLUMNS)
    behind_last = begins.filter(pl.col("end") == pl.col("end").max().over("source"))
    last = behind_last.group_by("source").agg(pl.all().sort_by("pos").first())
    for lines, name in ((failed, "failure_line"), (ended, "end_line")):
        last = _with_last_before(last, lines.select("source", "pos", pl.col("line").alias(name)))
    return last.sort("source").select(*EARLIER_LAUNCH_COLUMNS)


def _begins(run: Frames, ended: pl.DataFrame, failed: pl.DataFrame) -> pl.DataFrame:
    """The lines that only a launch prints that began after another one had ended: `source`, `pos`, `line`, `end`.

    What a launch wrote to stdout may stand behind what it wrote to stderr: steps behind an end, or the start of a
    process or a server behind an error, show no other launch by themselves.
    """
    starts = run["program_start"].select("source", "pos", "line", "form")
    agents, tracked, jobs = (starts.filter(text_of("form") == form) for form in (TORCHRUN, TRACKER, SRUN))
    begun = starts.filter(~text_of("form").is_in([TORCHRUN, SRUN]))
    programs = begun.filter(text_of("form") != TRACKER)
    groups = run["launched_process"].filter(form="ray", world_rank=0).select("source", "pos", "line")
    by_scheduler = ended.filter(~text_of("form").is_in(LAUNCHER_ENDS[REPORTS]))
    of_script = _whole_jobs(run)
    shown = (_other_processes(run, ended), _steps_again(run, by_scheduler), _agents_again(run, agents, ended))
    uncompiled = _uncompiled(run)
    before = failed.join(uncompiled, on=["source", "line"], how="anti")
    rows = [*(_after_ends(rows, ended) for rows in shown), _other_jobs(run), _behind_refusals(run, begun, ended)]
    rows += [_after_ends(tracked, run["tracker_end"]), _after_ends(jobs, failed)]
    rows += [_after_ends(_trained_again(run), failed), _after_ends(_steps_after_reports(run), ended)]
    rows += [_after_ends(started, _behind_first(failed, started)) for started in (programs, groups)]
    rows += [_after_ends(_steps_behind_several(run), ended), _behind_agents(run), _restarted(run)]
    rows += [_behind_unstarted(run)]
    rows += [_after_ends(uncompiled, before), _after_ends(_tables_again(run, of_script), of_script)]
    return pl.concat([found.select("source", "pos", "line", "end") for found in rows])


def _behind_first(failed: pl.DataFrame, started: pl.DataFrame) -> pl.DataFrame:
    """The errors behind the first of these starts in each input: of a program, or of Ray Train's workers."""
    first = started.group_by("source").agg(first=pl.col("pos").min())
    return failed.join(first, on="source").filter(pl.col("pos") > pl.col("first"))


def _behind_refusals(run: Frames, begun: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """The lines behind a refusal of arguments, and what launchers print of it, where a program began behind it."""
    refused = run["unstarted_program"].filter(form=REFUSED).select("source", "pos", "line")
    if refused.is_empty():
        return _after_ends(refused, refused)
    errors = run["exception"].filter(text_of("form") != HEADING)
    is_passed_on = text_of("exception").str.split(".").list.last().is_in(SECOND_HAND_CLASSES)
    passed_on, own = (errors.filter(kind).select("source", "pos", "line") for kind in (is_passed_on, ~is_passed_on))
    steps = run["training_step"].select("source", "pos", "line")
    later = _after_ends(pl.concat([begun.select("source", "pos", "line"), steps, own]), refused)
    first = later.group_by("source").agg(pl.col("pos").min())
    ends = pl.concat([refused, passed_on, ended.select("source", "pos", "line")])
    last = _with_last_before(first, ends.with_columns(end="pos"))
    return last.select("source", "end", pl.col("line") + 1, pos=pl.col("end") + 1)


def _uncompiled(run: Frames) -> pl.DataFrame:
    """The errors of programs that Python could not compile: a process prints nothing before one, and ends with it."""
    if not run.has("exception"):
        return run["program_start"].select("source", "pos", "line").clear()
    errors = run["exception"].filter(pl.concat_str(text_of("exception"), pl.lit("Error")).is_in(UNCOMPILED))
    frames = run["traceback_frame"].select("source", "pos", frame_pos="pos")
    placed = _with_last_before(errors.select("source", "pos", "line"), frames)
    is_of_module = (pl.col("pos") - pl.col("frame_pos") <= NEAREST_FRAME).fill_null(value=False)
    return placed.filter(~is_of_module).select("source", "pos", "line")


def _other_jobs(run: Frames) -> pl.DataFrame:
    """The lines behind the last end that Slurm prints of another job than the one whose end it prints last."""
    ends = run["job_end"].drop_nulls("step").sort("pos")
    job = pl.col("step").cast(pl.String).str.split(" ").list.last().str.split(".").list.first()
    jobs = ends.with_columns(job=job.str.split("+").list.first())
    others = jobs.filter((pl.col("job") != pl.col("job").last()).over("source"))
    last = others.group_by("source").agg(pl.col("pos", "line").last(), end=pl.col("pos").last())
    return last.with_columns(pl.col("pos", "line") + 1)


def _whole_jobs(run: Frames) -> pl.DataFrame:
    """The lines with which Slurm ends a job with its script, and no step alone."""
    return run["job_end"].filter(text_of("step").str.starts_with(WHOLE_JOB)).select("source", "pos", "line")


def _tables_again(run: Frames, ended: pl.DataFrame) -> pl.DataFrame:
    """Tables of nvidia-smi in inputs where one stands before the first of these ends: the job's script prints it."""
    if ended.is_empty() or not run.has("use_gpu"):
        return ended.clear()
    tables = run["use_gpu"].select("source", "pos", "line")
    first = tables.group_by("source").agg(first=pl.col("pos").min())
    begun = first.join(ended.group_by("source").agg(end=pl.col("pos").min()), on="source")
    return tables.join(begun.filter(pl.col("first") < pl.col("end")), on="source", how="semi")


def _after_ends(rows: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """The rows behind the last end that has one behind it, in each input, with the place of that `end`."""
    placed = _with_last_before(rows, ended.select("source", "pos", end="pos")).drop_nulls("end")
    return placed.filter(pl.col("end") == pl.col("end").max().over("source"))


def _other_processes(run: Frames, ended: pl.DataFrame) -> pl.DataFrame:
    """The first lines of processes of NCCL, where they are all ranks, and none is one that torchrun had reported."""
    communicators = run["communicator"].drop_nulls([*OWNER, "rank", "nranks"])
    largest = communicators.filter(pl.col("nranks") == pl.col("nranks").max().over("source"))
    all_ranks = largest.group_by("source").agg(
        pl.col("rank").n_unique(), pl.col("nranks").first(), pl.col("pid"), created=pl.col("pos").min()
    )
    reports = run[REPORTS].drop_nulls("pid").join(all_ranks.select("source", "created"), on="source")
    before = reports.filter(pl.col("pos") < pl.col("created"))
    others = all_ranks.join(before.group_by("source").agg(reported=pl.col("pid")), on="source").filter(
        (pl.col("rank") == pl.col("nranks")) & (pl.col("pid").list.set_intersection("reported").list.len() == 0)
    )
    new = run["speaker"].drop_nulls(OWNER).join(others.select("source"), on="source")
    first = new.group_by("source").agg(pl.col("pos", "line").sort_by("pos").first())
    return first.join(ended.select("source").unique(), on="source")


def _steps_again(run: Frames, ended: pl.DataFrame) -> pl.DataFrame:
    """Steps behind the first end of a launch that begin with one that was made before, where each was printed once."""
    after = ended.group_by("source").agg(end=pl.col("pos").min())
    steps = run["training_step"].select("source", "pos", "line", "step").drop_nulls("step").join(after, on="source")
    is_later = pl.col("pos") > pl.col("end")
    before = (
        steps.filter(~is_later)
        .group_by("source")
        .agg(pl.len(), pl.col("step").n_unique(), reached=pl.col("step").max())
    )
    later = steps.filter(is_later).join(before.filter(pl.col("len") == pl.col("step")), on="source")
    is_again = (pl.col("step").first() <= pl.col("reached").first()).over("source")
    return later.filter(is_again & (pl.len().over("source") > 1)).drop("end")


def _trained_again(run: Frames) -> pl.DataFrame:
    """Steps with which a training began anew: at or before the first step of the file, and later than all before.

    What several ranks print of one step, and what a process had still to print of earlier ones, has no later time.
    """
    steps = run[STEP].select("source", "pos", "line", step=counted_step(), at=step_time()).drop_nulls(["step", "at"])
    made = steps.sort("source", "pos").with_columns(
        first=pl.col("step").first().over("source"),
        reached=pl.col("step").cum_max().shift().over("source"),
        until=pl.col("at").cum_max().shift().over("source"),
    )
    again = (pl.col("step") <= pl.col("first")) & (pl.col("step") < pl.col("reached"))
    return made.filter(again & (pl.col("at") > pl.col("until"))).select("source", "pos", "line")


def _agents_again(run: Frames, agents: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """Starts of torchrun between two reports of one rank; or, where every agent had ended, between any of its lines.

    Logs of several nodes may stand in one file, one below the other, each with other ranks. None of these ends well,
    so that a start is of another launch, too, if every agent had ended before it, and the program did so behind it.
    """
    starts = agents.sort("pos").select("source", "pos", "line", before=pl.int_range(pl.len()).over("source"))
    reports = ended.filter(text_of("form") == ROOT_CAUSE).sort("pos")
    counted = reports.select("source", "pos", ends=pl.int_range(1, pl.len() + 1).over("source"))
    single = _with_last_before(starts, counted).filter(pl.col("ends") >= pl.col("before"))
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
    later = _with_last_before(steps, reports.drop_nulls("failed"))
    return later.filter(pl.col("at") - pl.col("failed") > LATE_STEP).select("source", "pos", "line")


def _steps_behind_several(run: Frames) -> pl.DataFrame:
    """Steps far behind the last of several reports of one rank, each by another agent: launch follows upon launch."""
    reports = run[REPORTS].drop_nulls("rank")
    several = reports.filter(pl.len().over("source", "rank") > 1).group_by("source").agg(end=pl.col("pos").max())
    steps = run[STEP].select("source", "pos", "line", "step").drop_nulls("step").join(several, on="source")
    further = steps.filter(pl.col("pos") - pl.col("end") > BUFFERED_LINES)
    return further.filter(pl.col("step").n_unique().over("source") >= STEPS_OF_RUN).drop("end", "step")


def _agent_frames(run: Frames) -> pl.DataFrame:
    """The calls in tracebacks of torchrun's agents, and of other programs that name no rank."""
    return run["traceback_frame"].filter(pl.col("rank").is_null()).select("source", "pos", "file", "frame_function")


def _made_steps(run: Frames) -> pl.DataFrame:
    """The steps in any words, in order."""
    numbered = run[STEP].select(*PLACES, step=counted_step()).drop_nulls()
    return pl.concat([numbered, run["training_progress"].select(*PLACES, step="counted")]).sort("pos")


def _behind_unstarted(run: Frames) -> pl.DataFrame:
    """Steps, or ends of ranks, behind the traceback of an agent of torchrun that could start no rank."""
    workers = run[REPORTS].drop_nulls("pid").select(*PLACES, "pid")
    refused = _agent_frames(run).filter(frame_function=STARTS_WORKERS)
    unstarted = _with_last_before(refused, workers.drop("line")).filter(pl.col("pid").is_null())
    made, ended = (_after_ends(rows, unstarted.select("source", "pos")) for rows in (_made_steps(run), workers))
    made = made.filter(pl.len().over("source") >= STEPS_OF_RUN)
    return pl.concat(rows.select(*PLACES, "end") for rows in (made, ended))


def _behind_agents(run: Frames) -> pl.DataFrame:
    """Steps behind the traceback of an agent of torchrun whose ranks had all ended.

    Or behind its line on the first of them that failed: it may start them again. It had started all that the text
    names, and the steps begin anew, or for the first time with an earlier one, and come further than before: stdout may
    stand below stderr, ranks of other nodes and other jobs that print into the same file go on.
    """
    gave_up = _agent_frames(run).filter(text_of("file").str.ends_with(AGENT))
    failures = run[REPORTS].filter(form=FAILED)
    agents = pl.concat(rows.select("source", "pos") for rows in (gave_up, failures)).sort("pos")
    of_agent = _with_last_before(
        run[REPORTS].select("source", -pl.col("pos"), "pid"),
        agents.select("source", -pl.col("pos"), agent="pos"),
    )
    sizes = of_agent.group_by("source", "agent").agg(pl.col("pid").n_unique()).group_by("source").max()
    ranks = pl.concat([run[name].select("source", "rank") for name in OF_RANKS]).group_by("source").max()
    others = ranks.join(sizes, on="source", how="left").filter(pl.col("rank") >= pl.col("pid").fill_null(0))
    begin, reached = pl.col("step").first(), pl.col("step").shift()
    made = _made_steps(run).with_columns(begin.over("source").alias("begin"), reached.over("source").alias("reached"))
    made = made.with_columns(backs=(pl.col("step") < pl.col("reached")).cum_sum().over("source"))
    later = _after_ends(made.join(others, on="source", how="anti", maintain_order="left"), agents)
    is_first_time = (pl.col("step") <= pl.col("begin")) | (pl.col("backs") == 1)
    begins_again = is_first_time & (pl.col("step") < pl.col("reached"))
    comes_further = pl.col("step").max() > pl.col("reached").first()
    again = later.filter((begins_again.first() & comes_further).fill_null(value=False).over("source"))
    return again.filter(pl.len().over("source") >= STEPS_OF_RUN).select(*PLACES, "end")


def _restarted(run: Frames) -> pl.DataFrame:
    """The lines behind the failure of workers that an agent of torchrun started again.

    An agent that gives up prints a traceback and its table right behind the line on the first of them that failed.
    Without one, it had started them again if it is told to end later, and then ends processes that it had not named; or
    if much stands behind that line.
    """
    reports = run[REPORTS].sort("pos")
    failed = reports.filter(form=FAILED).select("source", "pos", "line")
    gave_up = _agent_frames(run).filter(text_of("file").str.ends_with(AGENT))
    both = (gave_up, reports.filter(text_of("form").is_in(OF_TABLE)))
    tables = pl.concat(rows.select("source", "pos", table="pos") for rows in both).sort("pos")
    first = reports.drop_nulls("pid").group_by("source", "pid").agg(pl.col("pos").min())
    asked = reports.filter(form=ASKED).group_by("source").agg(asked=pl.col("pos").min())
    ended = first.join(asked, on="source").filter(pl.col("pos") > pl.col("asked")).select("source", "asked").unique()
    last = run["voice"].group_by("source").agg(last=pl.col("pos").max())
    placed = failed.join_asof(tables, on="pos", by="source", strategy="forward", check_sortedness=False)
    placed = placed.join(ended, on="source", how="left").join(last, on="source", how="left")
    is_over = (pl.col("table") < pl.col("asked").fill_null(pl.col("table") + 1)).fill_null(value=False)
    goes_on = (pl.col("asked") > pl.col("pos")) | (pl.col("last") - pl.col("pos") > BUFFERED_LINES)
    return placed.filter(~is_over & goes_on).select("source", pl.col("line") + 1, pos=pl.col("pos") + 1, end="pos")


def _with_last_before(rows: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """Add to each row, by `pos`, the columns of the last one of `lines` before it in its input; null without one."""
    return rows.sort("pos").join_asof(lines.sort("pos"), on="pos", by="source", check_sortedness=False)


def without(rows: pl.DataFrame, name: str, *, earlier: pl.DataFrame, ends: pl.Series) -> pl.DataFrame:
    """The rows of a parsed frame of this name that launches before the last one of their input did not print."""
    if name not in _frames_of_launches() or rows.is_empty():
        return rows
    placed = rows if "pos" in rows.columns else with_positions(rows, ends)
    first = dict(earlier.select("source", "pos").iter_rows())
    begin = pl.col("source").replace_strict(first, default=None, return_dtype=pl.Int64)
    return rows.filter(placed.select((pl.col("pos") >= begin).fill_null(True)).to_series())


@cache
def _frames_of_launches() -> frozenset[str]:
    frames = {shape.frame for name in GRAMMARS for shape in load(name).shapes}
    return frozenset(frames.difference(NOT_OF_LAUNCHES))
