"""When each rank made its last call, and when the last line of the job was printed, where lines carry times.

Times are compared by one clock: that of the launcher or collector if it stamps the calls, for it stamps the lines of
the application too; else NCCL's own (NCCL_DEBUG_TIMESTAMP_FORMAT, 2.26 and later). A scheduler prints the local time of
its node, and a container may have another time zone. Zones differ by multiples of a quarter of an hour: so of a
difference between two clocks, only what is left after whole quarters is certain.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl

from ncclforensics.frames.columns import OWNER
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import of_template
from ncclforensics.frames.time_range import NO_YEAR, december_first, elapsed, time_of

LAST_TIME = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "called": pl.Datetime("us"),  # its last call
    "printed": pl.Datetime("us"),  # the last line of its log
    "ended": pl.Datetime("us"),  # the last line of the job
    "pace": pl.Float64(),  # seconds; the longest time between two of its calls
}

RECENT = 500  # calls of a rank by which its pace is measured
ZONE = timedelta(minutes=15)
LAUNCHER, OWN = "launcher_time", "stamp"


@analysis(LAST_TIME, of=("call",))
def last_time(
    call: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    rank: pl.DataFrame,
    process: pl.DataFrame,
    source: pl.DataFrame,
    failure: pl.DataFrame,
    warning: pl.DataFrame,
    ending: pl.DataFrame,
    job_end: pl.DataFrame,
    journal_exit: pl.DataFrame,
    hardware_event: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    kernel_report: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank with calls whose lines have a time; columns as in LAST_TIME."""
    clock = LAUNCHER if call_occurrence[LAUNCHER].null_count() < call_occurrence.height else OWN
    if clock == OWN and call_template[OWN].null_count() == call_template.height:
        return pl.DataFrame(schema=LAST_TIME)
    recent = call.select("rank_id", "pos").sort("pos").group_by("rank_id").tail(RECENT)
    lines = call_occurrence.filter(pl.col("pos").is_in(recent["pos"].implode()))
    if clock == OWN:
        lines = lines.with_columns(of_template(lines, call_template, OWN))
    times = lines.select("pos", time=december_first(_time(clock))).drop_nulls()
    timed = recent.join(times, on="pos").sort("pos")
    steps = pl.col("time").diff().dt.total_microseconds().max() / 1e6
    calls = timed.group_by("rank_id").agg(called=pl.col("time").max(), pace=steps.fill_null(0))
    printed = (
        _last_lines_of_files(process, source)
        if clock == LAUNCHER
        else _last_stamps([failure, warning, ending])
    )  # fmt: skip
    ranks = rank.select("job", "rank_id", *OWNER).join(calls, on="rank_id").join(printed, on=OWNER, how="left")
    last_call = ranks["called"].max()
    if not isinstance(last_call, datetime):
        return pl.DataFrame(schema=LAST_TIME)
    # Over New Year, a clock without a year goes back.
    printed_after = pl.lit(last_call) + elapsed(pl.col("printed"), last_call)
    ranks = ranks.with_columns(printed=pl.max_horizontal("called", printed_after))
    ends = ranks.group_by("job").agg(ended=pl.col("printed").max())
    if rank["job"].n_unique() == 1:  # what the launcher and the application print names no job
        of_kernels = (hardware_event, kernel_kill, kernel_report)
        kernel_logs = {source for frame in of_kernels for source in frame["source"]}  # go on after a job
        logs = source.filter(~pl.col("source").is_in(kernel_logs))
        ends = ends.with_columns(ended=pl.lit(_end_of_run(ends["ended"].max(), clock, logs, job_end, journal_exit)))
    return ranks.join(ends, on="job")


def _time(column: str) -> pl.Expr:
    return time_of(column, NO_YEAR)


def _last_lines_of_files(process: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The time of the last line of each process that prints alone into its last file."""
    only_speakers = process.select(*OWNER, source="last_source").filter(pl.len().over("source") == 1)
    times = source.select("source", printed=_time("last_time")).drop_nulls()
    return only_speakers.join(times, on="source").select(*OWNER, "printed")


def _last_stamps(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """The last time that each process printed in these frames."""
    rows = [frame.select(*OWNER, printed=_time(OWN)) for frame in frames if OWN in frame.columns]
    return pl.concat(rows).drop_nulls().group_by(OWNER).agg(pl.col("printed").max())


def _end_of_run(
    last: object, clock: str, source: pl.DataFrame, job_end: pl.DataFrame, journal_exit: pl.DataFrame
) -> datetime | None:
    """The last time of any input, or that at which a scheduler or a capture ended the job."""
    if not isinstance(last, datetime):
        return None
    if clock == LAUNCHER:
        others = source.select((pl.lit(last) + elapsed(_time("last_time"), last)).max()).item()
        last = max(last, others or last)
    ends = [job_end.select(_time("time").max()).item(), journal_exit.select(_time(OWN).max()).item()]
    return max([last, *(last + (end - last) % ZONE for end in ends if isinstance(end, datetime))])
