"""When hosts made their calls, by Flight Recorder dumps and by lines of NCCL with times.

These times say nothing of the GPU, and those of different hosts are as good as their clocks.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.recorder_groups import size_of
from ncclforensics.data.collectives import WAITS_FOR_ALL, collective_named
from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis

HOST_CALL = {
    "tool": pl.String(),  # recorder, log
    "rank": pl.Int32(),
    "host": pl.String(),  # null: not known
    "key": pl.String(),  # of the group
    "size": pl.Int32(),  # ranks of the group
    "groups": pl.Int32(),  # of the job, in which ranks wait for each other
    "nth": pl.Int64(),  # among the calls of the group, equal on all members
    "kind": pl.String(),  # operation and number of elements
    "time_us": pl.Float64(),
    "resolution_us": pl.Float64(),  # of these times
    **LINE,
}


@analysis(HOST_CALL, of=("recorder_call", "lag"))
def host_call(
    recorder_call: pl.DataFrame,
    recorder_group: pl.DataFrame,
    recorded_rank: pl.DataFrame,
    lag: pl.DataFrame,
    call: pl.DataFrame,
    call_line: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank and call in which all ranks of a group wait for each other."""
    return pl.concat(
        [_of_dumps(recorder_call, recorder_group, recorded_rank), _of_lines(lag, call, call_line, member, rank)]
    )


def _of_dumps(calls: pl.DataFrame, groups: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    used = ranks.filter("is_used").drop_nulls("rank").select("source", "rank")
    lists = groups.select("source", text_of("group_name"), listed=text_of("ranks").str.strip_chars("[]"))
    lists = lists.drop_nulls("listed").unique(["source", "group_name"], keep="first")
    single = lists.filter(pl.len().over("source") == 1).select("source", only="listed")
    known = calls.select(
        "source", "line", text_of("group_name"), text_of("profiling_name"), nth="collective_seq",
        kind=pl.concat_str(text_of("profiling_name"), text_of("input_sizes"), separator=" ", ignore_nulls=True),
        time_us=pl.col("created_ns") / 1000,
    ).drop_nulls(["nth", "time_us", "profiling_name"])  # fmt: skip
    names = known["profiling_name"].unique()
    waiting = [name for name in names if collective_named(name) in WAITS_FOR_ALL]
    known = known.filter(pl.col("profiling_name").is_in(waiting)).join(used, on="source")
    known = known.join(lists, on=["source", "group_name"], how="left").join(single, on="source", how="left")
    known = known.with_columns(listed=pl.coalesce("listed", "only"))
    known = known.with_columns(
        size=pl.col("listed").map_elements(size_of, return_dtype=pl.Int32).fill_null(used["rank"].n_unique()),
        key=pl.concat_str("group_name", "listed", separator=" of ", ignore_nulls=True),
    ).filter(pl.col("size") > 1)
    return known.select(
        tool=pl.lit("recorder"), rank="rank", host=pl.lit(None, pl.String), key="key", size="size",
        groups=pl.lit(known["key"].n_unique(), pl.Int32), nth=pl.col("nth").cast(pl.Int64), kind="kind",
        time_us="time_us", resolution_us=pl.lit(0.0), source="source", line="line",
    )  # fmt: skip


def _of_lines(
    lag: pl.DataFrame, call: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame
) -> pl.DataFrame:
    """Those of NCCL's lines, of a single job: several have no steps in common."""
    collectives = call.drop_nulls("nth")
    lines = call_line[collectives["call_line"]]
    named = collectives.select("rank_id", "key", "nth").hstack(
        lines.select(kind=pl.format("{} {}", text_of("name"), pl.col("count").fill_null(-1)))
    )
    sizes = member.filter(pl.col("nranks") > 1).group_by("key").agg(size=pl.col("nranks").max())
    groups = named.join(sizes, on="key", how="semi")["key"].n_unique()
    one_job = lag.filter(pl.col("job").n_unique() == 1)
    rows = one_job.join(named, on=["rank_id", "key", "nth"]).join(sizes, on="key")
    rows = rows.join(rank.select("rank_id", "rank"), on="rank_id").drop_nulls("rank")
    return rows.select(
        tool=pl.lit("log"), rank="rank", host=text_of("host"), key=text_of("key"), size="size",
        groups=pl.lit(groups, pl.Int32), nth=pl.col("nth").cast(pl.Int64), kind="kind", time_us="time_us",
        resolution_us=1e6 * pl.col("clock_resolution"), source="source", line="line",
    )  # fmt: skip
