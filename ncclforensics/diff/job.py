"""The job as it was set up: versions, variables, ranks and nodes, what it called."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.difference_weights import OF_LOGGING, OF_ONE_RUN
from ncclforensics.data.names import ranks_text, version_text
from ncclforensics.diff import Kind, topic
from ncclforensics.diff.ranks import of_rank, roles
from ncclforensics.frames.columns import text_of, with_line

_INIT = "NCCL_DEBUG=INFO (NCCL_DEBUG_SUBSYS unset, or with INIT in it)"


@topic(unit="process", needs=f"{_INIT}; NCCL_DEBUG=VERSION is enough")
def versions(
    version: pl.DataFrame,
    milestone: pl.DataFrame,
    plugin: pl.DataFrame,
    rocm_version: pl.DataFrame,
    benchmark: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """Another release decides by other tables and has other defects; `explain` and the release notes tell which."""
    place = ["source", "line"]
    full = text_of("version")
    printed = version.select(*place, text_of("host"), what=pl.lit("NCCL"), value=full)
    of_tests = benchmark.filter(pl.col("library").is_not_null()).select(
        *place,
        what=pl.lit("NCCL of the benchmark"),
        value=pl.col("library").map_elements(version_text, return_dtype=pl.String),
    )
    tests = benchmark.filter(pl.col("version").is_not_null()).select(*place, what=pl.lit("nccl-tests"), value="version")
    models = benchmark.filter(pl.col("gpus").list.len() > 0).select(
        *place, what=pl.lit("GPU model"), value=pl.col("gpus").list.sort().list.join(", ")
    )
    drivers = milestone.filter(pl.col("driver").is_not_null()).select(
        *place, "host", "pid", what=pl.lit("CUDA driver"), value=pl.col("driver").cast(pl.String)
    )
    # The network's own is the topic of that name.
    other = plugin.filter((pl.col("form") == "assigned") & (text_of("kind") != "NET") & pl.col("plugin").is_not_null())
    loaded = other.unique(["host", "pid", "kind", "plugin"], keep="first", maintain_order=True).select(
        *place, "host", "pid", what=pl.format("{} plugin", text_of("kind")), value=text_of("plugin")
    )
    rocm = rocm_version.unpivot(["hip", "rocm"], index=place, variable_name="what").drop_nulls("value")
    seated = pl.concat([of_rank(one, rank).drop("pid") for one in (drivers, loaded)])
    named = rocm.with_columns(pl.col("what").str.to_uppercase())
    return pl.concat([printed, of_tests, tests, models, named, seated], how="diagonal")


@topic(unit="rank", needs="NCCL_DEBUG_SUBSYS=INIT,ENV, which echoes each variable that NCCL reads", absence_tells=True)
def environment(setting: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """A variable of NCCL was set in one of both runs only, or otherwise; what it moves is listed below it."""
    variable = text_of("variable")
    echoed = setting.filter(
        pl.col("form").is_in(["environment", "adopted"])
        & variable.is_not_null()
        & variable.is_in([*OF_LOGGING, *OF_ONE_RUN]).not_()
    )
    once = echoed.unique(["host", "pid", "variable"], keep="last", maintain_order=True)
    return of_rank(once, rank).select("rank", "host", "source", "line", what=variable, value=text_of("value"))


@topic(unit="job", needs=_INIT)
def shape(communicator_placement: pl.DataFrame, member: pl.DataFrame, benchmark: pl.DataFrame) -> pl.DataFrame:
    """Another number of ranks or nodes is another job: what else differs may follow from it alone."""
    first = member.group_by("job", "key").agg(pl.col("source", "line").first())
    told = communicator_placement.drop("source", "line").join(first, on=["job", "key"])
    largest = (
        told.sort("nranks", "nth", "key", descending=[True, False, False])
        .unique("job", keep="first", maintain_order=True)
        .select("source", "line", "nranks", "nodes", "local")
        .rename({"nranks": "ranks", "local": "ranks on a node"})
        .unpivot(["ranks", "nodes", "ranks on a node"], index=["source", "line"], variable_name="what")
        .drop_nulls("value")
        .with_columns(pl.col("value").cast(pl.String))
    )
    tested = benchmark.filter(pl.col("nranks").is_not_null()).select(
        "source",
        "line",
        what=pl.format("ranks of {}", pl.col("collective").fill_null("a test")),
        value=pl.col("nranks").cast(pl.String),
    )
    return pl.concat([largest, tested], how="diagonal")


@topic(unit="job", needs=_INIT)
def groups(member: pl.DataFrame) -> pl.DataFrame:
    """The job is divided into another number of groups: another parallelism, or one run came further than the other."""
    first = member.unique(["job", "key"], keep="first", maintain_order=True).join(roles(member), on=["job", "key"])
    counted = first.group_by("job", "role", maintain_order=True).agg(pl.len(), pl.col("source", "line").first())
    return counted.select(
        "source", "line", what=pl.format("communicators: {}", "role"), value=pl.col("len").cast(pl.String)
    )


@topic(unit="job", needs=_INIT)
def placement(member: pl.DataFrame, communicator_placement: pl.DataFrame) -> pl.DataFrame:
    """Ranks lie on the nodes in another order: neighbours in rings and groups are no longer on one node."""
    whole = communicator_placement.filter((pl.col("ranks_seen") == pl.col("nranks")) & (pl.col("nodes") > 1))
    largest = whole.sort("nranks", "nth", "key", descending=[True, False, False]).unique("job", keep="first")
    memberships = member.join(largest.select("job", "key"), on=["job", "key"], how="semi")
    nodes = (
        memberships.sort("rank")
        .group_by("job", "host", maintain_order=True)
        .agg(pl.col("rank"), pl.col("source", "line").first())
        .with_columns(
            pl.col("rank").map_elements(lambda ranks: ranks_text(ranks).partition(" ")[2], return_dtype=pl.String)
        )
    )
    return (
        nodes.group_by("job", maintain_order=True)
        .agg(
            pl.lit("ranks of each node").alias("what"),
            pl.col("rank").str.join(" | ").alias("value"),
            pl.col("source", "line").first(),
        )
        .drop("job")
    )


@topic(unit="rank", needs="NCCL_DEBUG_SUBSYS=INIT,COLL", kind=Kind.CONTEXT)
def calls(last_call: pl.DataFrame, member: pl.DataFrame, call: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """One of both runs made more calls: it ran longer, or the other stopped; bandwidths and choices are not touched."""
    begun = call.group_by("member").agg(pl.col("rank_id", "key").first(), pl.col("pos").min())
    first = with_line(begun.group_by("rank_id", "key").agg(pl.col("pos").min())).drop("pos")
    memberships = rank.select("rank_id", "rank", text_of("host"))
    named = member.select("job", "key", "rank_id").unique().join(roles(member), on=["job", "key"])
    return (
        last_call.join(named, on=["rank_id", "key"])
        .join(first, on=["rank_id", "key"])
        .join(memberships, on="rank_id")
        .select(
            "rank",
            "host",
            "source",
            "line",
            key=text_of("key"),
            what=pl.format("collectives on the {}", "role"),
            value=pl.col("calls").cast(pl.String),
        )
    )


@topic(unit="job", needs=_INIT, kind=Kind.CONTEXT)
def hosts(process: pl.DataFrame, benchmark: pl.DataFrame) -> pl.DataFrame:
    """The runs were on other hosts: no difference by itself, but hardware may differ where no log tells it."""
    named = process.filter(pl.col("host").is_not_null()).sort(text_of("host"))
    logged = named.select(
        what=pl.lit("hosts"),
        value=text_of("host").unique(maintain_order=True).str.join(", "),
        source=pl.col("last_source").first(),
        line=pl.col("last_line").first(),
    ).filter(pl.col("value") != "")
    tested = benchmark.filter(pl.col("hosts").list.len() > 0).select(
        what=pl.lit("hosts of the benchmarks"),
        value=pl.col("hosts").explode().unique().sort().str.join(", "),
        source=pl.col("source").first(),
        line=pl.col("line").first(),
    )
    return pl.concat([logged, tested.filter(pl.col("value") != "")])
