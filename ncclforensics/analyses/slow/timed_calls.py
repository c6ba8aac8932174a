"""The calls of all ranks with their times: which rank made each, in which group, and the how manieth it was there.

A group is known by its name and its ranks. Where a trace does not name it (traces of gloo, and of PyTorch before 2.4),
the Flight Recorder dump of the same rank does, or the job has only one group; else all calls are taken to be of the
group of all ranks, which the ends of the calls confirm or refute (`own_time`).
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.recorder_groups import members_of, size_of
from ncclforensics.analyses.slow.alignment import shift_of
from ncclforensics.data.collectives import ALL_OF_OUTPUT, ELEMENT_BYTES, WAITS_FOR_ALL, collective_named
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

RANKED_PROCESS = {
    "source": pl.Int32(),
    "rank": pl.Int32(),
    "host": pl.String(),  # null: the trace does not name it
    "world": pl.Int32(),  # ranks of the job; null: not known
    "began_us": pl.Float64(),
    "ended_us": pl.Float64(),
    "tool": pl.String(),
    "gpu": pl.String(),  # model; null: not known
}

TIMED_CALL = {
    "rank": pl.Int32(),
    "source": pl.Int32(),
    "key": pl.String(),  # of the group: its name and its ranks
    "group_desc": pl.String(),
    "size": pl.Int32(),  # ranks of the group
    "is_group_known": pl.Boolean(),  # false: taken to be that of all ranks
    "operation": pl.String(),  # as nccl-tests names it; empty: another
    "waits_for_all": pl.Boolean(),  # no rank ends it before all have begun it
    "bytes": pl.Int64(),
    "nth": pl.Int32(),  # among the calls of its group, equal on all members
    "start_us": pl.Float64(),  # on the clock of the host
    "end_us": pl.Float64(),
    "duration_us": pl.Float64(),
    "exposed_us": pl.Float64(),  # neither hidden behind a kernel that computes nor behind an earlier call
    "busy_us": pl.Float64(),  # how long kernels have computed until its end
    "unlaunched_us": pl.Float64(),  # how long until then none ran because the host had launched none; null: not known
}

CALL_GROUP = {
    "key": pl.String(),
    "label": pl.String(),  # its description, or else its name
    "kind": pl.String(),  # its description; null: there is none
    "members": pl.List(pl.Int32()),
    "is_known": pl.Boolean(),  # as `is_group_known`
    "is_one_of_several": pl.Boolean(),  # not known, and the traces list several groups
}
NAME_AND_RANKS = " of "
RANKS_AT_ONCE = 32  # of which calls are described
CALL_COLUMNS = (
    "source", "elements_in", "elements_out", "sequence", "start_us", "duration_us", "exposed_us", "busy_us",
    "unlaunched_us",
)  # fmt: skip


@analysis(RANKED_PROCESS, of=("profiled_process",))
def ranked_process(profiled_process: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row per rank with a trace: of several traces of one rank, the longest. Not those whose rank is not known."""
    hints = source.select("source", "hint")
    rows = profiled_process.join(hints, on="source").with_columns(
        rank=pl.coalesce("rank", "hint"), host=text_of("host"), tool=text_of("tool"), gpu=text_of("gpu")
    )
    known = rows.drop_nulls(["rank", "began_us"]).with_columns(length=pl.col("ended_us") - pl.col("began_us"))
    return known.sort("rank", "length", descending=[False, True]).unique("rank", keep="first", maintain_order=True)


@analysis(TIMED_CALL, of=("profiled_call",))
def timed_call(
    ranked_process: pl.DataFrame,
    profiled_call: pl.DataFrame,
    profiled_group: pl.DataFrame,
    recorder_call: pl.DataFrame,
    recorder_group: pl.DataFrame,
    recorded_rank: pl.DataFrame,
) -> pl.DataFrame:
    """Every call of the traces, in the order of ranks and starts."""
    of_dumps = _groups_of_dumps(recorder_call, recorder_group, recorded_rank)
    # Where no trace tells how many ranks the job has, these are taken to be all of them.
    world = pl.coalesce("world", pl.col("world").max(), pl.col("rank").max() + 1)
    processes = ranked_process.select("source", "rank", world=world).sort("rank")
    # Of millions of calls, what is needed in between takes several times the memory of the result.
    parts = [
        _described(profiled_call, some, profiled_group, of_dumps).select(*TIMED_CALL, "sequence")
        for some in processes.iter_slices(RANKS_AT_ONCE)
    ]
    return _aligned(pl.concat(parts)) if parts else pl.DataFrame(schema=TIMED_CALL)


@analysis(CALL_GROUP, of=("profiled_call",))
def call_group(timed_call: pl.DataFrame, profiled_group: pl.DataFrame) -> pl.DataFrame:
    """One row per group of the calls: its members stand here once, not with each of its calls."""
    groups = timed_call.unique("key").sort("key")
    lists_several = bool(
        (profiled_group.group_by("source").agg(pl.col("group_name").n_unique())["group_name"] > 1).any()
    )
    rows = []
    for key, described, is_known in groups.select("key", "group_desc", "is_group_known").iter_rows():
        name, _, ranks = key.rpartition(NAME_AND_RANKS)
        kind = None if described == "undefined" else described
        is_one_of_several = lists_several and not is_known
        rows.append((key, f"group {kind or name}", kind, list(members_of(ranks)), is_known, is_one_of_several))
    return pl.DataFrame(rows, schema=CALL_GROUP, orient="row")


def _described(
    calls: pl.DataFrame, processes: pl.DataFrame, groups: pl.DataFrame, of_dumps: pl.DataFrame
) -> pl.DataFrame:
    """The calls of some processes, in the order of ranks and starts; those of a group are numbered."""
    words = ("operation", "dtype", "group_name", "ranks")
    own = calls.select(*CALL_COLUMNS, *words).join(processes, on="source").with_columns(pl.col(words).cast(pl.String))
    own = _with_groups(own, groups, of_dumps)
    named = {name: collective_named(name) for name in own["operation"].unique()}
    is_output = pl.col("operation").is_in(ALL_OF_OUTPUT)
    own = own.with_columns(
        pl.col("operation").replace_strict(named, return_dtype=pl.String),
    ).with_columns(
        end_us=pl.col("start_us") + pl.col("duration_us"),
        bytes=pl.when(is_output).then("elements_out").otherwise("elements_in")
        * pl.col("dtype").replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64),
        waits_for_all=pl.col("operation").is_in(WAITS_FOR_ALL),
    )
    return own.sort("rank", "start_us").with_columns(
        nth=pl.int_range(pl.len(), dtype=pl.Int32).over("rank", "key", "waits_for_all")
    )


def _with_groups(calls: pl.DataFrame, groups: pl.DataFrame, of_dumps: pl.DataFrame) -> pl.DataFrame:
    """Add `key`, `size`, `group_desc` and `is_group_known`."""
    named = groups.select(
        "source", text_of("group_name"), listed=text_of("ranks"), group_desc=text_of("group_desc")
    ).unique(["source", "group_name"], keep="first")
    single = named.filter(pl.len().over("source") == 1).select("source", only="group_name")
    calls = calls.join(of_dumps, on=["rank", "operation", "elements_in"], how="left").join(
        single, on="source", how="left"
    )
    calls = calls.with_columns(group_name=pl.coalesce("group_name", "dumped_name", "only"))
    calls = calls.join(named, on=["source", "group_name"], how="left")
    listed, everyone = pl.coalesce("listed", "ranks", "dumped"), pl.format("0-{}", pl.col("world") - 1)
    calls = calls.with_columns(
        is_group_known=listed.is_not_null(),
        listed=pl.coalesce(listed, everyone),
        group_name=pl.when(listed.is_null()).then(pl.lit("")).otherwise(pl.col("group_name").fill_null("")),
    ).drop_nulls("listed")
    return calls.with_columns(
        key=pl.concat_str("group_name", pl.lit(NAME_AND_RANKS), "listed"),
        size=pl.col("listed").map_elements(size_of, return_dtype=pl.Int32),
    )


def _groups_of_dumps(calls: pl.DataFrame, groups: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """The group of each kind of call in Flight Recorder dumps; not of kinds that several groups share."""
    used = ranks.filter("is_used").select("source", "rank")
    sizes = text_of("input_sizes").str.strip_chars("[]").str.split(",")
    elements = sizes.list.eval(pl.element().cast(pl.Int64, strict=False).product()).list.first()
    known = calls.join(used, on="source").select(
        "source", "rank", text_of("group_name"), operation=text_of("profiling_name"), elements_in=elements
    )
    kinds = known.unique().filter(pl.len().over("source", "operation", "elements_in") == 1)
    lists = groups.select("source", text_of("group_name"), dumped=text_of("ranks")).unique(["source", "group_name"])
    return kinds.join(lists, on=["source", "group_name"], how="left").select(
        "rank", "operation", "elements_in", "dumped", dumped_name="group_name"
    )


def _aligned(calls: pl.DataFrame) -> pl.DataFrame:
    """Number the calls of a group alike on all members, where the traces of some begin a call earlier or end later."""
    if calls["sequence"].null_count() == 0 and calls.height:
        return calls.with_columns(nth=pl.col("sequence").cast(pl.Int32))
    waiting = calls.filter("waits_for_all")
    kind = pl.format("{} {}", "operation", pl.col("bytes").fill_null(-1))
    lists = waiting.group_by("key", "rank", maintain_order=True).agg(kinds=kind, ends=pl.col("end_us"))
    shifts = []
    for _, own in lists.group_by("key"):
        first, *others = own.sort("rank").rows(named=True)
        shifts.append((first["key"], first["rank"], 0))
        shifts += [
            (row["key"], row["rank"], shift_of(first["kinds"], first["ends"], row["kinds"], row["ends"]))
            for row in others
        ]
    moved = pl.DataFrame(shifts, schema={"key": pl.String(), "rank": pl.Int32(), "shift": pl.Int32()}, orient="row")
    return calls.join(moved, on=["key", "rank"], how="left", maintain_order="left").with_columns(
        nth=pl.col("nth") + pl.when("waits_for_all").then("shift").otherwise(0).fill_null(0)
    )
