"""Launches that ended before the last one in the same text: a log that a queue or a retry appends to holds several.

What an ended launch printed accuses no process of the next one. Nodes and ranks of one launch share a text, too, and
not all of them end at once, so that a later line alone shows no new launch: see `_begins`.
"""

from __future__ import annotations

from functools import cache

import polars as pl

from ncclforensics.data.processes import SECOND_HAND_CLASSES
from ncclforensics.frames import ended_files
from ncclforensics.frames.assemble import with_positions
from ncclforensics.frames.columns import ORIGIN, OWNER, SOURCE_BITS, no_rows, text_of
from ncclforensics.frames.launch_order import REPORTS, STEP, after_ends, with_last_before
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.step_order import counted_step, step_time
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
STARTS = ("program_start", "launched_process", "unstarted_program", "job_summary")
HEADING = "traceback"  # form of `exception`: the error stands below it
TORCHRUN = "torchrun"  # form of `program_start` that every node of a launch prints
TRACKER = "wandb"  # form of `program_start` of a process that records what it does with a tracker of experiments
SRUN = "srun"  # form of `program_start` of a job: it waits for the nodes
REFUSED = "arguments"  # form of `unstarted_program`: every rank prints it, and none begins
WHOLE_JOB = "JOB "  # how Slurm names a job and not a step of it
UNCOMPILED = ("SyntaxError", "IndentationError", "TabError")  # without a traceback: of the program itself
NEAREST_FRAME = 8  # lines above such an error, where it is of a module that the program imports


def find(run: Frames) -> pl.DataFrame:
    """Return a row for each input in which a launch ended, and another one followed, in it or in another input."""
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
    over = ended_files.find(run, ended, _frames_of_launches())
    if begins.is_empty() and over.is_empty():
        return no_rows(EARLIER_LAUNCH_COLUMNS)
    begins = begins.filter(~pl.col("source").is_in(over.implode()))
    behind_last = begins.filter(pl.col("end") == pl.col("end").max().over("source"))
    last = behind_last.group_by("source").agg(pl.all().sort_by("pos").first())
    apart = pl.DataFrame({"source": over}).with_columns(
        pos=(pl.col("source").cast(pl.Int64) + 1) * (1 << SOURCE_BITS) - 1
    )
    last = pl.concat([last, apart.cast({"source": last.schema["source"]})], how="diagonal")
    for lines, name in ((failed, "failure_line"), (ended, "end_line")):
        last = with_last_before(last, lines.select("source", "pos", pl.col("line").alias(name)))
    return last.sort("source").select(*EARLIER_LAUNCH_COLUMNS)


def _begins(run: Frames, ended: pl.DataFrame, failed: pl.DataFrame) -> pl.DataFrame:
    """The lines that only a launch prints that began after another one had ended: `source`, `pos`, `line`, `end`.

    What a launch wrote to stdout may stand behind what it wrote to stderr: steps behind an end, or the start of a
    process or a server behind an error, show no other launch by themselves.
    """
    from ncclforensics.frames import agent_launches  # of most runs there is none

    starts = run["program_start"].select("source", "pos", "line", "form")
    agents, tracked, jobs = (starts.filter(text_of("form") == form) for form in (TORCHRUN, TRACKER, SRUN))
    begun = starts.filter(~text_of("form").is_in([TORCHRUN, SRUN]))
    programs = begun.filter(text_of("form") != TRACKER)
    groups = run["launched_process"].filter(form="ray", world_rank=0).select("source", "pos", "line")
    by_scheduler = ended.filter(~text_of("form").is_in(LAUNCHER_ENDS[REPORTS]))
    of_script = _whole_jobs(run)
    shown = (_other_processes(run, ended), _steps_again(run, by_scheduler))
    uncompiled = _uncompiled(run)
    before = failed.join(uncompiled, on=["source", "line"], how="anti")
    rows = [*(after_ends(rows, ended) for rows in shown), _other_jobs(run), _summed_up(run)]
    rows.append(_behind_refusals(run, begun, ended))
    rows += [after_ends(tracked, run["tracker_end"]), after_ends(jobs, failed)]
    rows += [after_ends(_trained_again(run), failed), *agent_launches.begins(run, agents, ended)]
    rows += [after_ends(started, _behind_first(failed, started)) for started in (programs, groups)]
    rows += [after_ends(uncompiled, before), after_ends(_tables_again(run, of_script), of_script)]
    return pl.concat([found.select("source", "pos", "line", "end") for found in rows])


def _behind_first(failed: pl.DataFrame, started: pl.DataFrame) -> pl.DataFrame:
    """The errors behind the first of these starts in each input: of a program, or of Ray Train's workers."""
    first = started.group_by("source").agg(first=pl.col("pos").min())
    return failed.join(first, on="source").filter(pl.col("pos") > pl.col("first"))


def _behind_refusals(run: Frames, begun: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """The lines behind a refusal of arguments, and what launchers print of it, where a program began behind it."""
    refused = run["unstarted_program"].filter(form=REFUSED).select("source", "pos", "line")
    if refused.is_empty():
        return after_ends(refused, refused)
    errors = run["exception"].filter(text_of("form") != HEADING)
    is_passed_on = text_of("exception").str.split(".").list.last().is_in(SECOND_HAND_CLASSES)
    passed_on, own = (errors.filter(kind).select("source", "pos", "line") for kind in (is_passed_on, ~is_passed_on))
    steps = run["training_step"].select("source", "pos", "line")
    later = after_ends(pl.concat([begun.select("source", "pos", "line"), steps, own]), refused)
    first = later.group_by("source").agg(pl.col("pos").min())
    ends = pl.concat([refused, passed_on, ended.select("source", "pos", "line")])
    last = with_last_before(first, ends.with_columns(end="pos"))
    return last.select("source", "end", pl.col("line") + 1, pos=pl.col("end") + 1)


def _uncompiled(run: Frames) -> pl.DataFrame:
    """The errors of programs that Python could not compile: a process prints nothing before one, and ends with it."""
    if not run.has("exception"):
        return run["program_start"].select("source", "pos", "line").clear()
    errors = run["exception"].filter(pl.concat_str(text_of("exception"), pl.lit("Error")).is_in(UNCOMPILED))
    frames = run["traceback_frame"].select("source", "pos", frame_pos="pos")
    placed = with_last_before(errors.select("source", "pos", "line"), frames)
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


def _summed_up(run: Frames) -> pl.DataFrame:
    """The lines behind the last but one of LSF's summaries in each input; or its last one, where output follows it."""
    lines = run["job_summary"].select("source", "pos", "line", "form").sort("pos")
    above = lines.filter(form="above").filter(pl.col("pos") < pl.col("pos").max().over("source"))
    summed = above.group_by("source").agg(pl.col("pos", "line").max() + 1, end=pl.col("pos").max())
    followed = lines.filter(form="follows")["source"].unique().implode()
    senders = lines.filter(form="sender").filter(pl.col("source").is_in(followed))
    later = senders.filter(pl.col("pos") > pl.col("pos").min().over("source"))
    begun = later.group_by("source").agg(pl.col("pos", "line").max(), end=pl.col("pos").max() - 1)
    return pl.concat([rows.select("source", "pos", "line", "end") for rows in (summed, begun)])


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
