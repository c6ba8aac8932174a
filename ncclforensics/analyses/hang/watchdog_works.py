"""Join the lines of PyTorch's watchdogs into what each rank reports of each process group."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.hang.watchdog_attempts import of_latest_attempt
from ncclforensics.analyses.job.ends.exit_rows import INTERRUPTS
from ncclforensics.frames.columns import Category, Large, text_of
from ncclforensics.frames.registry import analysis

WORLD = ("", "0")  # guids of the group of all ranks; PyTorch up to 2.2 prints none
ERRORS = ("cuda", "nccl", "async_error", "backend_error")  # forms of lines of a watchdog that found an error
ASKED = ("signalled", "relayed")  # forms of status lines of ranks that were asked for a dump
# Fields that are not the first value which a line of the rank gives.
JOINED = ("rank", "guid", "has_timed_out", "is_timeout", "has_error", "interrupted")
UNSET = 1 << 40  # larger counter values were never set
# Each member passes its part and receives all, or the other way round: the ratio of both is the size of the group.
GATHERED = ("_ALLGATHER_BASE", "ALLGATHER", "GATHER", "COALESCED")
SCATTERED = ("_REDUCE_SCATTER_BASE", "REDUCE_SCATTER", "SCATTER", "COALESCED")


class Timeout(NamedTuple):
    """What the watchdog of a rank reports of one process group: a row of `work`."""

    rank: int  # in the job
    guid: str  # the group's name, equal on all members; empty where none is printed
    group: str | None
    group_rank: Large | None
    sequence: Large | None  # of the work that timed out
    enqueued: Large | None
    completed: Large | None
    operation: str | None
    library: str | None  # NCCL, or what takes its place on other devices: HCCL, XCCL
    numel: Large | None  # input elements
    members: int | None  # of its process group; null where the operation does not show it
    has_timed_out: bool  # this rank reports the time-out itself
    is_timeout: bool  # a line says that time ran out; others stand for an error or a time-out
    waited: Large | None  # milliseconds, until time ran out
    has_error: bool  # its watchdog found an error of NCCL or CUDA
    first_rank: Large | None  # whose time-out it relays
    launcher_pid: int | None
    launcher_node: Category | None
    launcher_repeats: int | None  # lines like it, of other processes, that the launcher left out
    interrupted: int | None  # the line above it at which a process was interrupted, without a training step behind that
    source: int
    line: int

    @property
    def is_idle(self) -> bool:
        """Whether the rank had completed all that it had enqueued."""
        return self.completed is not None and self.enqueued is not None and self.completed >= self.enqueued

    @property
    def known_completed(self) -> int:
        """The last work that it completed: works of a group complete in order, up to the one that timed out."""
        if self.completed is not None:
            return self.completed
        return self.sequence - 1 if self.has_timed_out and self.sequence and self.guid else 0


@analysis(Timeout, of=("work_timeout", "work_status"))
def work(
    work_timeout: pl.DataFrame,
    work_status: pl.DataFrame,
    watchdog: pl.DataFrame,
    source: pl.DataFrame,
    run_start: pl.DataFrame,
    exception: pl.DataFrame,
    crash: pl.DataFrame,
    training_step: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank and process group that reports a time-out; PyTorch prints a message up to four times.

    A request for dumps is worded as that of a time-out, and is sent at an error as well (ProcessGroupNCCL.cpp,
    `broadcastDumpSignal`, of torch 2.3 to 2.15): it shows a time-out only if no watchdog found an error.
    """
    with_errors = ranks_with_errors(watchdog)
    has_work = pl.col("sequence").is_not_null() | pl.col("enqueued").is_not_null()
    states = work_status.filter(has_work | (text_of("form") == "begun"))
    known = ["global_rank", "launcher_rank", "guid", "group", "group_rank", "sequence", "pos", "source", "line"]
    known += ["moment", "launcher_time", "library", "launcher_pid", "launcher_node", "launcher_repeats"]
    reports = pl.concat(
        [
            work_timeout.select(
                *known,
                "operation",
                "timeout",
                waited="ran_for",
                numel="numel_in",
                members=_members(),
                has_timed_out=pl.lit(True),
                is_timeout=pl.lit(True),
            ),
            states.select(
                *known,
                "enqueued",
                "completed",
                first_rank="reporter",
                has_timed_out=pl.col("sequence").is_not_null(),
                is_timeout=(text_of("form") == "timeout") | (text_of("form").is_in(ASKED) & (not with_errors)),
            ),
        ],
        how="diagonal",
    )
    reports = reports.with_columns(
        guid=text_of("guid").fill_null(""),
        library=text_of("library"),
        rank=pl.coalesce("global_rank", "launcher_rank").cast(pl.Int32),
    ).sort("pos")
    interruptions = _interruptions(exception, crash, training_step)
    reports = reports.join_asof(interruptions, on="pos", by="source", check_sortedness=False)
    # If no line names a global rank or another group, there is one group, and its ranks are those of the job.
    is_one_group = pl.col("guid").is_in(WORLD).all()
    rank = pl.coalesce("rank", pl.when(is_one_group).then(pl.col("group_rank").cast(pl.Int32)))
    guid = pl.when(is_one_group).then(pl.col("guid").max()).otherwise("guid").alias("guid")
    others = [name for name in Timeout._fields if name not in JOINED]
    first_values = [pl.col(name).drop_nulls().first() for name in others] + [pl.col("interrupted").first()]
    reports = reports.with_columns(guid, rank=rank, operation=_operation_of_group())
    is_impossible = (pl.col("completed") > pl.col("enqueued")).fill_null(value=False)  # it was never set, either
    return (
        of_latest_attempt(reports.filter(pl.col("rank").is_not_null()), source, run_start)
        .with_columns(_guid_of_same_timeout())
        .filter(has_work | pl.col("has_timed_out"))
        .group_by("rank", "guid", maintain_order=True)
        .agg(*first_values, pl.col("has_timed_out").any(), pl.col("is_timeout").any())
        .with_columns(has_error=pl.col("rank").is_in(with_errors - {None}))
        .select(Timeout._fields)
        .with_columns(
            pl.when(pl.col(name).is_between(-1, UNSET)).then(name).alias(name) for name in ("enqueued", "completed")
        )
        .with_columns(completed=pl.when(~is_impossible).then("completed"))
    )


def _interruptions(exception: pl.DataFrame, crash: pl.DataFrame, training_step: pl.DataFrame) -> pl.DataFrame:
    """Where processes were interrupted, and where a step shows that the job, or a later one, went on: no line there."""
    interrupts = exception.filter(text_of("form").is_in(INTERRUPTS))
    requested = crash.filter(text_of("ended_from_outside") == "Terminated")
    lines = [rows.select("source", "pos", interrupted="line") for rows in (interrupts, requested)]
    return pl.concat([*lines, training_step.select("source", "pos")], how="diagonal").sort("pos")


def ranks_with_errors(watchdog: pl.DataFrame) -> set[int | None]:
    """Return the ranks whose watchdogs found an error of NCCL or CUDA; None for lines that name no rank."""
    return set(watchdog.filter(text_of("form").is_in(ERRORS))["global_rank"])


def _operation_of_group() -> pl.Expr:
    """Name the operation where the lines of a rank do not, and all others of its group at this work name the same one.

    They may be lines of ranks that are known in their group alone.
    """
    operation, place = text_of("operation"), ("guid", "sequence")
    is_known = (pl.col("guid") != "") & pl.col("sequence").is_not_null()
    named = operation.drop_nulls()
    of_group = pl.when(is_known & (named.n_unique().over(place) == 1)).then(named.first().over(place))
    return pl.coalesce(operation, of_group)


def _members() -> pl.Expr:
    """Return the size of the group that the elements in and out of a time-out show; null where they show none."""
    taken, given, operation = pl.col("numel_in"), pl.col("numel_out"), text_of("operation")
    ratios = [
        pl.when(operation.is_in(operations) & (part > 0) & (total > part) & (total % part == 0)).then(total // part)
        for operations, part, total in ((GATHERED, taken, given), (SCATTERED, given, taken))
    ]
    return pl.coalesce(ratios).cast(pl.Int32, strict=False)


def _guid_of_same_timeout() -> pl.Expr:
    """Take the group of a time-out, whose line names none, from the status line of the same rank.

    That line may be cut before its work; then it stands for the only group without one that the rank names.
    """
    guid, sequence = pl.col("guid"), pl.col("sequence")
    guid_of_status = guid.filter(guid != "").first().over("rank", "sequence")
    cut = guid.filter((guid != "") & sequence.is_null() & pl.col("enqueued").is_null() & ~pl.col("has_timed_out"))
    guid_of_cut = pl.when(cut.n_unique().over("rank") == 1).then(cut.first().over("rank"))
    of_timeout = pl.when(sequence.is_not_null()).then(pl.coalesce(guid_of_status, guid_of_cut))
    return pl.when(guid == "").then(of_timeout.fill_null("")).otherwise("guid").alias("guid")
