"""The order of training steps in a file, and when they were made, as step lines of all frameworks tell it."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import count_behind
from ncclforensics.frames.time_range import as_time

AMERICAN = "%m/%d/%Y %H:%M:%S"
LINES_OF_END = 500  # tracebacks of other processes, and what they print as they end, stand behind an interruption
LINES_OF_MESSAGE = 20  # of an error, behind its first line
STEPS_OF_RUN = 3
# Python writes stdout to a file 8 KB at a time: what is left then stands behind the error that ended the process.
BUFFERED_LINES = 100


def counted_step() -> pl.Expr:
    """The step of a line of `training_step`, counted from the start of the training where the line counts in epochs."""
    before = pl.coalesce((pl.col("in_epoch") - 1).clip(0), "epochs_before") * pl.col("total_steps")
    return pl.coalesce(pl.col("global_step").cast(pl.Int64), pl.col("step") + before.fill_null(0))


def step_rank() -> pl.Expr:
    """The rank that printed a line of `training_step`, or the one in the name of its file: `hint` of the source.

    The label of a launcher in front of it is a rank only where no line shows another one behind its label: where srun
    starts torchrun, it numbers the nodes.
    """
    printed = pl.coalesce("global_rank", "rank", pl.when(pl.col("log_rank") >= 0).then("log_rank"))
    label = pl.when((printed == pl.col("launcher_rank")).all()).then("launcher_rank")
    return pl.coalesce(printed, label, "hint").cast(pl.Int32)


def last_steps(training_step: pl.DataFrame) -> pl.DataFrame:
    """`last_step`: the `pos` in each input in front of which several steps were still to be made.

    A step may have been on its way on another rank: the last but one of a file is the last that counts.
    """
    last_but_one = pl.col("pos").sort(descending=True).get(1, null_on_oob=True)
    return training_step.group_by("source").agg(last_step=last_but_one)


def without_steps_behind(rows: pl.DataFrame, training_step: pl.DataFrame) -> pl.DataFrame:
    """Leave out lines behind which their file shows several steps: the job, or a later one, went on."""
    placed = rows.join(last_steps(training_step), on="source", how="left", maintain_order="left")
    return placed.filter((pl.col("pos") < pl.col("last_step")).fill_null(value=False).not_()).drop("last_step")


def of_last_run(exception: pl.DataFrame, training_step: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """Return the interruptions but those of an earlier run: steps, or many lines, stand behind the last one of a file.

    One of a notebook ended a cell; lines behind it are of others.
    """
    in_cell = pl.when(form="traceback").then(pl.col("cell_error").is_not_null()).forward_fill().over("source")
    interrupts = exception.sort("pos").with_columns(in_cell=in_cell).filter(form="interrupt")
    placed = without_steps_behind(interrupts, training_step).join(source.select("source", "lines"), on="source")
    is_last = count_behind().min().over("source") <= LINES_OF_END
    is_of_earlier_cell = pl.col("in_cell").fill_null(value=False) & (count_behind() > LINES_OF_MESSAGE)
    return placed.filter(is_last & ~is_of_earlier_cell).drop("lines", "in_cell")


def goes_on(training_step: pl.DataFrame, source: pl.DataFrame, number: int, left: int) -> bool:
    """Whether an input shows steps in its last lines, of which so many are left: the job, or a later one, went on.

    Other ranks may still print one or two.
    """
    steps = training_step.filter(pl.col("source") == number).join(source.select("source", "lines"), on="source")
    made = steps.filter(count_behind() < left)["step"]
    return made.null_count() + made.drop_nulls().n_unique() >= STEPS_OF_RUN


def step_time() -> pl.Expr:
    """Seconds since 1970 of a line of `training_step`, as the first clock tells that it shows."""
    text = pl.col("step_time").str.replace(",", ".", literal=True).str.replace("T", " ", literal=True)
    american = text.str.strptime(pl.Datetime("us"), AMERICAN, strict=False)
    collected = as_time(pl.col("launcher_time"), 1970)
    printed = pl.coalesce(as_time(text, 1970), american, collected).dt.epoch("us") / 1e6
    return pl.coalesce(pl.col("unix_ms") / 1e3, "printed_seconds", printed)
