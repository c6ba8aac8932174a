"""Where the program of a rank, or of all, came to its end: what NCCL warns of behind it is no failure of the job."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, OWNER
from ncclforensics.frames.launch_order import OF_ONE
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.step_order import STEPS_OF_RUN

PROGRAM_END = {
    "source": pl.Int32(),
    "host": pl.Categorical(),  # null where the program says it of all its ranks
    "pid": pl.Int32(),
    "pos": pl.Int64(),
}


REPORTED_SUCCESS = {
    "form": pl.Categorical(),  # of `program_success`
    "ended_pid": pl.Int32(),  # where it is of one process
    "ended_rank": pl.Int32(),  # where it is of one rank
    **ORIGIN,
}


@analysis(REPORTED_SUCCESS, of=("program_success",))
def stated_end(
    program_success: pl.DataFrame, training_step: pl.DataFrame, unstarted_program: pl.DataFrame
) -> pl.DataFrame:
    """The lines by which a program, a process or a rank says that it came to its end.

    Behind them stands no step, and no program that did not begin: that is of a later launch. MLPerf logs the speed of
    the last part of a run once it is over.
    """
    is_of_end = (pl.col("form") == "mllog") & (pl.col("pos").rank(descending=True).over("source") < STEPS_OF_RUN)
    steps = training_step.filter(~is_of_end)
    later = pl.concat([rows.select("source", "pos") for rows in (steps, unstarted_program)])
    last = later.group_by("source").agg(last=pl.col("pos").max())
    stated = program_success.join(last, on="source", how="left", maintain_order="left")
    goes_on = (pl.col("last") > pl.col("pos")).fill_null(value=False)
    return stated.filter(~goes_on).select(list(REPORTED_SUCCESS))


@analysis(PROGRAM_END, of=("group_note", "stated_end"))
def program_end(group_note: pl.DataFrame, stated_end: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """The first line in each input that shows the end: one row per process, and one for all of them.

    PyTorch warns where it destructs the groups of a program that ended without destroying them (ProcessGroupNCCL.cpp,
    2.4 and later), after an exception, too; the program itself reports success.
    """
    of_ranks = (
        group_note.filter(form="not_destroyed")
        .select("source", "pos", rank=pl.coalesce("global_rank", "launcher_rank"))
        .join(rank.select(*OWNER, "rank").drop_nulls(), on="rank", how="inner")
    )
    of_all = stated_end.filter(~pl.col("form").is_in(OF_ONE)).select("source", "pos")
    ends = pl.concat([of_ranks.select("source", "pos", *OWNER), of_all], how="diagonal_relaxed")
    return ends.group_by("source", *OWNER, maintain_order=True).agg(pl.col("pos").min()).select(*PROGRAM_END)


def last_success(stated_end: pl.DataFrame) -> dict[int, int]:
    """The last `pos` in each input at which a whole program reports that it came to its end."""
    of_all = stated_end.filter(~pl.col("form").is_in(OF_ONE))
    return dict(of_all.group_by("source").agg(pl.col("pos").max()).iter_rows())


@analysis(REPORTED_SUCCESS, of=("stated_end", "test_end"))
def reported_success(
    stated_end: pl.DataFrame, test_end: pl.DataFrame, benchmark: pl.DataFrame, benchmark_line: pl.DataFrame
) -> pl.DataFrame:
    """The lines by which a program reports that it came to its end: a benchmark does so by its footer.

    Where a benchmark in these files has no footer, or printed that a call failed, no footer shows anything.
    """
    if benchmark.is_empty() or not (benchmark["is_complete"] & ~benchmark["has_failed"]).all():
        return stated_end
    of_tables = benchmark_line.filter(pl.col("frame") == "test_end").select("source", "line")
    footers = test_end.filter(form="average").join(of_tables, on=["source", "line"], how="semi")
    return pl.concat([stated_end, footers.select("form", "source", "line", "pos")], how="diagonal_relaxed").select(
        *REPORTED_SUCCESS
    )


def add_program_end(rows: pl.DataFrame, program_end: pl.DataFrame) -> pl.DataFrame:
    """Add `own_end_pos`, where the program of the row's process ended, and `success_pos`, where all ranks' did."""
    if program_end.is_empty():
        position = pl.lit(None, pl.Int64)
        return rows.with_columns(own_end_pos=position, success_pos=position)
    of_all = program_end.filter(pl.col("pid").is_null()).select("source", success_pos="pos")
    of_process = program_end.filter(pl.col("pid").is_not_null()).select("source", *OWNER, own_end_pos="pos")
    return rows.join(of_all, on="source", how="left", maintain_order="left").join(
        of_process, on=["source", *OWNER], how="left", maintain_order="left"
    )
