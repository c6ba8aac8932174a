"""Communicators of a process, from their creation to their end, and what shows that their init came to its end.

NCCL's own line about that is often not at hand: filtered away, cut off, or in a part of the file that was not read. A
call, connected rings, printed timings or the communicator's destruction show as much.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.identity.restarts import since_restart
from ncclforensics.data.nccl_sources import is_top_file
from ncclforensics.frames.columns import OWNER, PROCESS, SOURCE_BITS, text_of
from ncclforensics.frames.registry import analysis

COMMUNICATOR_LIFETIME = {
    **PROCESS,
    "comm": pl.Categorical(),
    "incarnation": pl.Int32(),
    "rank": pl.Int32(),
    "nranks": pl.Int32(),
    "cudadev": pl.Int32(),
    "busid": pl.Categorical(),
    "commid": pl.Categorical(),
    "parent": pl.Categorical(),
    "child": pl.Int32(),
    "color": pl.Int64(),
    "creator": pl.Categorical(),
    "created_pos": pl.Int64(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of its first line
    "has_met": pl.Boolean(),  # its log has lines of the init that need data of all ranks
    "is_complete": pl.Boolean(),  # its init ended without an error
    "end": pl.Categorical(),  # Destroy, Abort, Revoke
    "end_pos": pl.Int64(),
    "end_source": pl.Int32(),
    "end_line": pl.Int32(),
}

DUPLICATE_SOURCE = {"host": pl.Categorical(), "pid": pl.Int32(), "source": pl.Int32()}

_CREATION_COLUMNS = ["rank", "nranks", "cudadev", "busid", "commid", "parent", "child", "color", "creator"]
_ENDING_COLUMNS = ["rank", "nranks", "cudadev", "busid", "commid"]
_POINTER = [*OWNER, "comm"]
# Stands for a pointer that was left out of a text: what else a process knows its communicator by.
_SUBSTITUTE = pl.format("left out, rank {} of {}", "rank", "nranks")


@analysis(DUPLICATE_SOURCE, of=("communicator",))
def duplicate_source(communicator: pl.DataFrame) -> pl.DataFrame:
    """Sources that repeat the lines of a process from another source: its own file, and the output of the whole job.

    Their lines stand behind those of the first source, as if they had been printed later.
    """
    starts = communicator.filter(text_of("phase") == "START", pl.col("commid").is_not_null()).sort("pos")
    first = pl.col("source").first().over(*_POINTER, "rank", "commid")
    return starts.filter(pl.col("source") != first).select(*OWNER, "source").drop_nulls().unique(maintain_order=True)


@analysis(COMMUNICATOR_LIFETIME, of=("communicator", "ending", "journal_only_lifetime"))
def communicator_lifetime(
    communicator: pl.DataFrame,
    ending: pl.DataFrame,
    milestone: pl.DataFrame,
    init_timing: pl.DataFrame,
    placement: pl.DataFrame,
    channel_count: pl.DataFrame,
    ring: pl.DataFrame,
    bootstrap_timing: pl.DataFrame,
    gpu_direct: pl.DataFrame,
    journal_only_lifetime: pl.DataFrame,
    call_template: pl.DataFrame,
    call_line: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    source: pl.DataFrame,
    restart: pl.DataFrame,
    duplicate_source: pl.DataFrame,
    failure: pl.DataFrame,
) -> pl.DataFrame:
    """One row per communicator of a process, from creation to end. `incarnation` separates uses of one pointer.

    Of a process that was started again, only those since its last start; none whose init failed before the process
    completed that of another one, of no fewer ranks. Lines whose process is not known belong to no communicator.
    """
    event = pl.when(pl.col("form") == "begun").then(pl.lit("START")).otherwise(text_of("phase"))
    creations = since_restart(communicator, restart).select(
        "source", "line", "pos", *_POINTER, *_CREATION_COLUMNS, event=event
    )
    ends = since_restart(ending, restart).select(
        "source", "line", "pos", *_POINTER, *_ENDING_COLUMNS, event=pl.col("event").fill_null("Destroy COMPLETE")
    )
    is_end = ~pl.col("event").is_in(["START", "COMPLETE"])
    is_again = pl.int_range(pl.len()).over(*_POINTER, "event", "commid", "rank", "ends") > 0
    is_repeated = is_again & pl.col("commid").is_not_null() & ~is_end
    same_line = ["event", *_POINTER, "rank", "nranks", "commid", "parent", "child", "color"]
    events = (
        pl.concat([creations, ends.with_columns(text_of("event")), journal_only_lifetime], how="diagonal")
        .with_columns(comm=pl.coalesce("comm", _SUBSTITUTE.cast(pl.Categorical)))
        .drop_nulls(_POINTER)
        .with_columns(rank=pl.when((pl.col("rank") < pl.col("nranks")).fill_null(True)).then("rank"))  # else damaged
        .sort("pos")
        .with_columns(copy=pl.int_range(pl.len()).over(*same_line, "source"))
        .unique([*same_line, "copy"], keep="first", maintain_order=True)  # the same line in two files is one event
        .with_columns(ends=is_end.cum_sum().over(_POINTER))
        .filter(~is_repeated)  # no id is used twice: a collector delivered the line twice
        .with_columns(before=pl.col("event").shift().over(_POINTER))
        .with_columns(
            created=(pl.col("event") == "START")
            | (pl.col("event").eq("COMPLETE") & pl.col("before").ne_missing("START"))
        )
        .with_columns(incarnation=pl.col("created").cast(pl.Int64).cum_sum().over(_POINTER))
    )
    lifetimes = (
        events.group_by([*_POINTER, "incarnation"], maintain_order=True)
        .agg(
            *(pl.col(name).drop_nulls().first() for name in _CREATION_COLUMNS),
            pl.col("pos").first().alias("created_pos"),
            pl.col("source").first(),
            pl.col("line").first(),
            (pl.col("event") == "COMPLETE").any().alias("is_complete"),
            pl.col("event").filter(is_end).last().str.split(" ").list.first().cast(pl.Categorical).alias("end"),
            pl.col("pos").filter(is_end).last().alias("end_pos"),
            pl.col("source").filter(is_end).last().alias("end_source"),
            pl.col("line").filter(is_end).last().alias("end_line"),
        )
        .sort("created_pos")
    )
    lifetimes = _seen_only_at_their_end(lifetimes, call_line, source)
    proofs = [
        _connected_communicators(lifetimes, _without(duplicate_source, milestone)),
        _timed_communicators(lifetimes, _without(duplicate_source, init_timing)),
        _communicators_with_calls(lifetimes, call_template, call_line, call_occurrence),
    ]
    proven = pl.concat(proofs).unique().with_columns(proven=pl.lit(value=True))
    found_nics = gpu_direct.filter(form="hca")  # the topology is searched when all ranks have met
    later_steps = pl.concat(
        [
            _without(duplicate_source, frame).select("host", "pid", "pos")
            for frame in (placement, channel_count, ring, bootstrap_timing, found_nics)
        ]
    )
    met = _newest_communicators(lifetimes, later_steps).unique().with_columns(has_met=pl.lit(value=True))
    found = (
        lifetimes.join(proven, on=[*_POINTER, "incarnation"], how="left", maintain_order="left")
        .join(met, on=[*_POINTER, "incarnation"], how="left", maintain_order="left")
        .with_columns(
            has_met=pl.col("has_met").fill_null(False),
            is_complete=pl.col("is_complete") | pl.col("proven").fill_null(False),
        )
    )
    return _without_given_up(found, failure)


def _without_given_up(lifetimes: pl.DataFrame, failure: pl.DataFrame) -> pl.DataFrame:
    """Leave out those whose init NCCL left with an error, and behind which the process completed another one."""
    places = [place for place in failure["unwound"].cast(pl.String).unique().drop_nulls() if is_top_file(place)]
    if not places:
        return lifetimes
    errors = failure.filter(text_of("unwound").is_in(places)).select(*OWNER, "pos", error_pos="pos").sort("pos")
    completed = lifetimes.filter("is_complete")
    last = completed.group_by(OWNER).agg(later_pos=pl.col("created_pos").max(), most=pl.col("nranks").max())
    placed = (
        lifetimes.with_columns(pos="created_pos")
        .sort("pos")
        .join_asof(errors, on="pos", by=OWNER, strategy="forward", check_sortedness=False)
        .join(last, on=OWNER, how="left", maintain_order="left")
    )
    is_later = (pl.col("error_pos") < pl.col("later_pos")) & (pl.col("nranks") <= pl.col("most"))
    is_given_up = ~pl.col("is_complete") & pl.col("end").is_null() & is_later
    return placed.filter(is_given_up.fill_null(value=False).not_()).select(lifetimes.columns)


def _without(duplicate_source: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    return lines if duplicate_source.is_empty() else lines.join(duplicate_source, on=[*OWNER, "source"], how="anti")


def _seen_only_at_their_end(lifetimes: pl.DataFrame, call_line: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """Complete the rows of communicators of which only the end was printed: what ends was created.

    In files of which every line was read, because elsewhere the Init lines may stand in the part that was not; and
    not where calls name the pointer (`calls_without_init`).
    """
    is_read = pl.col("source").is_in(source.filter("is_closed")["source"].implode())
    without_init = lifetimes.filter((pl.col("incarnation") == 0) & pl.col("nranks").is_not_null())
    known = without_init.filter(is_read).join(call_line, on=_POINTER, how="anti").select(_POINTER, known=True)
    start_of_file = pl.col("created_pos") - pl.col("created_pos") % (1 << SOURCE_BITS)
    is_first = pl.col("incarnation") == 0
    is_known = is_first & pl.col("known").fill_null(False)
    return (
        lifetimes.join(known, on=_POINTER, how="left", maintain_order="left")
        .with_columns(
            nranks=pl.when(is_first & ~is_known).then(None).otherwise("nranks"),
            is_complete=pl.col("is_complete") | is_known,
            created_pos=pl.when(is_known).then(start_of_file).otherwise("created_pos"),
        )
        .drop("known")
        .sort("created_pos", maintain_order=True)
    )


def _connected_communicators(lifetimes: pl.DataFrame, milestone: pl.DataFrame) -> pl.DataFrame:
    """Rings are connected at the end of init, or at the first call: they imply a COMPLETE line that was lost."""
    return _newest_communicators(lifetimes, milestone.filter(pl.col("form").is_in(["rings", "trees"])))


def _newest_communicators(lifetimes: pl.DataFrame, lines: pl.DataFrame) -> pl.DataFrame:
    """The communicators that were the newest of their process when these lines were printed."""
    return (
        lines.select(*OWNER, "pos")
        .sort("pos")
        .join_asof(
            lifetimes.select(*_POINTER, "incarnation", "created_pos"),
            left_on="pos", right_on="created_pos", by=OWNER, strategy="backward", check_sortedness=False,
        )
        .select(*_POINTER, "incarnation")
        .drop_nulls()
    )  # fmt: skip


def _timed_communicators(lifetimes: pl.DataFrame, init_timing: pl.DataFrame) -> pl.DataFrame:
    """NCCL prints how long an init took once it is over."""
    same_rank = [*OWNER, "rank", "nranks"]
    return (
        init_timing.select(*same_rank, "pos")
        .sort("pos")
        .join_asof(
            lifetimes.select(*_POINTER, "incarnation", "created_pos", "rank", "nranks"),
            left_on="pos", right_on="created_pos", by=same_rank, strategy="backward", check_sortedness=False,
        )
        .select(*_POINTER, "incarnation")
        .drop_nulls()
    )  # fmt: skip


def _communicators_with_calls(
    lifetimes: pl.DataFrame, call_template: pl.DataFrame, call_line: pl.DataFrame, call_occurrence: pl.DataFrame
) -> pl.DataFrame:
    """A call is made on a communicator whose init is over."""
    inside = lifetimes.filter(~pl.col("is_complete")).select(*_POINTER, "incarnation", "created_pos")
    if inside.is_empty():
        return inside.select(*_POINTER, "incarnation")
    lines = call_line.with_row_index("call_line").head(call_template.height)  # the COLL lines stand first
    lines = lines.join(inside, on=_POINTER).select("call_line", *_POINTER, "incarnation", "created_pos")
    made = call_occurrence.select("pos", call_line="call_template").filter(
        pl.col("call_line").is_in(lines["call_line"].unique().implode())
    )
    last = made.group_by("call_line").agg(pl.col("pos").max())
    return (
        lines.join(last, on="call_line").filter(pl.col("pos") > pl.col("created_pos")).select(*_POINTER, "incarnation")
    )


def finished_processes(communicator_lifetime: pl.DataFrame) -> set[tuple[str, int]]:
    """Host and pid of the processes that destroyed or aborted all their communicators."""
    has_end = communicator_lifetime.group_by(text_of("host"), "pid").agg(pl.col("end").is_not_null().all())
    return set(has_end.filter("end").select(OWNER).iter_rows())
