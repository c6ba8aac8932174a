"""Identify processes, the communicators they are members of, jobs, and the ranks of a job.

A communicator's pointer is valid in one process and is reused after a destroy; `commId` is equal on all ranks, but
children of a split print none from 2.23.4 on, no communicator does before 2.16.2, and 2.18 to 2.21 give two splits of
equal colour the same one (formats: NCCL's init lines, section 2; traps 8 and 9.1b).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from ncclforensics.analyses.job.identity.job_members import MEMBER
from ncclforensics.frames.columns import OWNER, Category, Owner, columns_of
from ncclforensics.frames.registry import analysis

if TYPE_CHECKING:
    from ncclforensics.analyses.job.text.stack_processes import RankIndex

MOST_PROCESSES = 1 << 17  # without a communicator; more than any job has

PROCESS = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "source": pl.Int32(),  # the file with most of its lines
    "sources": pl.List(pl.Int32()),
    "first_pos": pl.Int64(),
    "last_pos": pl.Int64(),
    "last_line": pl.Int32(),
    "last_source": pl.Int32(),
    "hint": pl.Int32(),  # the rank that the launcher or the file name suggests
    "reported": pl.Int32(),  # the rank that PyTorch's lines beside it in its file print
    "is_cut": pl.Boolean(),  # its last line is incomplete
}


class Rank(NamedTuple):
    """A rank of a job, or a process without one: a row of `rank`."""

    job: int
    rank_id: int
    rank: int | None  # in the largest communicator of the job
    host: Category
    pid: int | None
    cudadev: int | None
    busid: Category | None
    source: int
    is_hinted: bool | None  # the rank number comes from a file name
    dump: int | None  # the dump of stacks that alone shows it

    @property
    def owner(self) -> Owner:
        """Its host and process."""
        return self.host, self.pid


@analysis(PROCESS, of=("speaker", "journal_process"))
def process(
    source: pl.DataFrame,
    speaker: pl.DataFrame,
    journal_process: pl.DataFrame,
    work: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
    calls_without_init: pl.DataFrame,
    exception: pl.DataFrame,
    unread_error: pl.DataFrame,
) -> pl.DataFrame:
    """Every process with NCCL lines or a journal, and its files; not of too many without a communicator."""
    with_communicator = pl.concat([rows.select(OWNER) for rows in (communicator_lifetime, calls_without_init)])
    read = speaker.select(*journal_process.columns, "ends_unread")
    stretches = pl.concat([read, journal_process.with_columns(ends_unread=False)])
    per_file = (
        _bounded(stretches, with_communicator)
        .sort("last_pos")
        .group_by("host", "pid", "source")
        .agg(
            pl.col("lines").sum(),
            pl.col("pos").min().alias("first_pos"),
            pl.col("last_pos").max(),
            pl.col("last").last().alias("last_line"),
            pl.col("ends_unread").last(),
            pl.col("launcher_ranks").explode().drop_nulls().unique(),
        )
    )
    is_only_process = pl.struct("host", "pid").n_unique().over("source") == 1
    # If a launcher's label is not one-to-one with processes, it numbers something else, such as nodes.
    label = pl.when(pl.col("launcher_ranks").list.len() == 1).then(pl.col("launcher_ranks").list.first())
    is_rank = ~pl.col("source").is_in(_labelled_otherwise(exception, unread_error).implode())
    launched = pl.when(is_rank & (pl.struct("host", "pid").n_unique().over(label) == 1)).then(label)
    rank_of_file = work.group_by("source").agg(pl.col("rank").unique()).filter(pl.col("rank").list.len() == 1)
    hints = (
        source.select("source", "hint", length="lines", cut="is_cut")
        .join(rank_of_file.select("source", reported=pl.col("rank").list.first()), on="source", how="left")
        .with_columns(hint=pl.coalesce("reported", "hint"))
    )
    # A copied text may end within a line, behind which the copy ends its last line.
    is_last = (pl.col("last_line") == pl.col("length")) | (pl.col("last_line") == -1)
    return (
        per_file.join(hints, on="source")
        .with_columns(cut=pl.col("cut") | (pl.col("ends_unread") & is_last).fill_null(value=False))
        .with_columns(pl.when(is_only_process).then(name).alias(name) for name in ("hint", "reported"))
        .with_columns(hint=pl.coalesce(launched, "hint"))
        .sort("last_pos")
        .group_by("host", "pid")
        .agg(
            pl.col("source").sort_by("lines").last(),
            pl.col("source").sort().alias("sources"),
            pl.col("first_pos").min(),
            pl.col("last_pos").max(),
            pl.col("last_line").last(),
            pl.col("source").last().alias("last_source"),
            pl.col("hint", "reported").sort_by("lines").last(),
            pl.col("cut").last().alias("is_cut"),
        )
        .sort("first_pos", "pid")  # a torn line begins several processes
    )


def _labelled_otherwise(exception: pl.DataFrame, unread_error: pl.DataFrame) -> pl.Series:
    """Return the sources in which a launcher's label is another number than the rank that PyTorch prints behind it."""
    tags = ("rank_of_level", "rank_of_note", "rank_of_words", "rank_of_stack")
    tagged = (unread_error.select("source", "launcher_rank", rank=tag) for tag in tags)
    ranks = [exception.select("source", "launcher_rank", "rank"), *tagged]
    printed = pl.concat([rows.cast({"rank": pl.Int32, "launcher_rank": pl.Int32}) for rows in ranks])
    return printed.filter(pl.col("rank") != pl.col("launcher_rank"))["source"].unique()


def _bounded(stretches: pl.DataFrame, with_communicator: pl.DataFrame) -> pl.DataFrame:
    """The rows of processes with a communicator, and of MOST_PROCESSES others: those that print most, then first."""
    if stretches.height <= MOST_PROCESSES:
        return stretches
    others = stretches.select(*OWNER, "lines", "pos").join(with_communicator, on=OWNER, how="anti")
    printed = others.group_by(OWNER).agg(pl.col("lines").sum(), pl.col("pos").min())
    if printed.height <= MOST_PROCESSES:
        return stretches
    kept = printed.sort("lines", "pos", descending=[True, False]).head(MOST_PROCESSES).select(OWNER)
    return stretches.join(pl.concat([with_communicator, kept]), on=OWNER, how="semi", nulls_equal=True)


@analysis(MEMBER, of=("job_member",))
def member(job_member: pl.DataFrame) -> pl.DataFrame:
    """Every membership: a communicator of a process, with its job-wide key and the rank of the job."""
    return job_member.filter(~pl.col("is_alone") & pl.col("rank_id").is_not_null()).select(list(MEMBER))


@analysis(Rank, of=("job_member", "work", "ras_member", "torch_rank", "stack_process", "recorded_rank"))
def rank(
    job_member: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
    process: pl.DataFrame,
    work: pl.DataFrame,
    ras_member: pl.DataFrame,
    torch_rank: pl.DataFrame,
    stack_process: pl.DataFrame,
    recorded_rank: pl.DataFrame,
) -> pl.DataFrame:
    """The ranks of every job: one row per GPU that a process drives, numbered by `rank_id` over all jobs.

    A rank that only PyTorch or its Flight Recorder reports has neither host nor process; for a rank that only RAS
    shows, `host` is an address.
    """
    sources = process.select(*OWNER, "source")
    known = job_member.filter(pl.col("is_hinted").is_not_null()).drop("source", "rank").sort("rank_id")
    known = known.join(sources, on=OWNER, how="left", nulls_equal=True, maintain_order="left").rename(
        {"job_rank": "rank"}
    )
    rank_rows = known.select(name for name in Rank._fields if name != "dump").to_dicts()
    jobs, numbers = {rank_id["job"] for rank_id in rank_rows}, {rank_id["rank"] for rank_id in rank_rows}
    others = (work, ras_member, torch_rank, stack_process, recorded_rank)
    if len(jobs) < 2 and any(rows.height for rows in others):
        largest = communicator_lifetime["nranks"].max()
        ras_members = ras_member if largest is None else ras_member.filter(pl.col("nranks") == largest)
        ras_ranks = ras_members.select("rank", "source", host="node", pid="process", cudadev="gpu")
        reported = [ras_ranks, work.select("rank", "source").unique("rank", keep="first")]
        if numbers <= {None} and ras_ranks.is_empty():  # NCCL's lines tell no numbers: PyTorch's text alone does
            reported.append(torch_rank)
        reported.append(recorded_rank.filter("is_used").select("rank", "source"))
        unseen = pl.concat(reported, how="diagonal_relaxed")
        unseen = pl.concat(
            [unseen, _dumped_ranks(stack_process, [*rank_rows, *unseen.to_dicts()])], how="diagonal_relaxed"
        )
        unseen = unseen.filter(~pl.col("rank").is_in(numbers - {None}).fill_null(False))
        is_first = pl.col("rank").is_null() | pl.col("rank").is_first_distinct()
        default_columns = {"job": min(jobs, default=0), "is_hinted": False}
        from ncclforensics.analyses.job.text.stack_processes import RankIndex  # most jobs have no stacks

        dumped = RankIndex(stack_process.filter(~pl.col("is_helper")).unique(["rank", "host", "pid"]).to_dicts())
        rank_rows += [
            {**default_columns, "rank_id": len(rank_rows) + number, **_with_process(row, dumped)}
            for number, row in enumerate(unseen.filter(is_first).sort("rank", nulls_last=True).to_dicts())
        ]
    return pl.DataFrame(rank_rows, schema=columns_of(Rank))


def _with_process(row: dict[str, Any], dumped: RankIndex) -> dict[str, Any]:
    """Add to a rank that other lines show the host and the pid that a dump of its stack shows."""
    process = dumped.find({**row, "first_dump": row.get("dump")}) if row.get("pid") is None else None
    return {**row, "pid": process["pid"], "host": row.get("host") or process["host"]} if process else row


def _dumped_ranks(stack_process: pl.DataFrame, known: list[dict[str, Any]]) -> pl.DataFrame:
    """Return the ranks that only a stack shows: those with a number; all processes where no other line shows any."""
    from ncclforensics.analyses.job.text.stack_processes import STACK_PROCESS, RankIndex

    index = RankIndex(known)
    rows = [
        row
        for row in stack_process.filter(~pl.col("is_helper") & pl.col("kind").is_not_null()).to_dicts()
        if index.find(row) is None and (row["rank"] is not None or not known)
    ]
    is_named = pl.col("rank").is_not_null() | pl.col("pid").is_not_null()
    dumped = pl.DataFrame(rows, schema=STACK_PROCESS).select(
        *(pl.col(name).cast(columns_of(Rank)[name]) for name in ("rank", "source", "host", "pid")),
        dump=pl.when(~is_named).then("first_dump"),
    )
    return dumped.unique(["rank", "host", "pid", "dump"], keep="first", maintain_order=True)
