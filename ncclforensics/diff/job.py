"""Topics on the setup of a job: versions, variables, ranks and nodes, calls, hosts."""

from __future__ import annotations

import polars as pl

from ncclforensics.data.difference_weights import LOGGING_VARIABLES, RUN_VARIABLES
from ncclforensics.data.names import ranks_text, version_text
from ncclforensics.diff import Kind, topic
from ncclforensics.diff.ranks import add_rank, communicator_kinds
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
    """Another release chooses by other tables and has other defects; see its release notes."""
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
    # The NET plugin belongs to the topic `network`.
    other = plugin.filter((pl.col("form") == "assigned") & (text_of("kind") != "NET") & pl.col("plugin").is_not_null())
    loaded = other.unique(["host", "pid", "kind", "plugin"], keep="first", maintain_order=True).select(
        *place, "host", "pid", what=pl.format("{} plugin", text_of("kind")), value=text_of("plugin")
    )
    rocm = rocm_version.unpivot(["hip", "rocm"], index=place, variable_name="what").drop_nulls("value")
    of_processes = pl.concat([add_rank(rows, rank).drop("pid") for rows in (drivers, loaded)])
    named = rocm.with_columns(pl.col("what").str.to_uppercase())
    return pl.concat([printed, of_tests, tests, models, named, of_processes], how="diagonal")


@topic(
    unit="rank",
    needs="NCCL_DEBUG_SUBSYS=INIT,ENV, which echoes each variable that NCCL reads",
    is_absence_different=True,
)
def environment(setting: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """An NCCL variable is set in one run only, or to another value; differences that may follow from it are below."""
    variable = text_of("variable")
    echoed = setting.filter(
        pl.col("form").is_in(["environment", "adopted"])
        & variable.is_not_null()
        & variable.is_in([*LOGGING_VARIABLES, *RUN_VARIABLES]).not_()
    )
    once = echoed.unique(["host", "pid", "variable"], keep="last", maintain_order=True)
    return add_rank(once, rank).select("rank", "host", "source", "line", what=variable, value=text_of("value"))


@topic(
    unit="file",
    needs="the output of env, on a host of each run as its ranks see it (srun -N 1 env, kubectl exec POD -- env)",
    is_absence_different=True,
)
def exported_environment(
    exported_variable: pl.DataFrame, library_variable: pl.DataFrame, setting: pl.DataFrame
) -> pl.DataFrame:
    """A variable that NCCL does not echo, or that belongs to a library below it, is exported with another value."""
    of_libraries = library_variable.select(
        "source",
        "line",
        variable=text_of("library") + text_of("name"),
        value=text_of("value").fill_null("").str.strip_chars("\"'"),
    )
    shown = pl.concat([exported_variable.select(of_libraries.columns), of_libraries]).filter(
        pl.col("variable").is_in([*LOGGING_VARIABLES, *RUN_VARIABLES, *setting["variable"].drop_nulls()]).not_()
    )
    once = shown.unique(["source", "variable"], keep="last", maintain_order=True)
    return once.select("source", "line", "value", what="variable")


@topic(unit="job", needs=_INIT)
def shape(communicator_placement: pl.DataFrame, member: pl.DataFrame, benchmark: pl.DataFrame) -> pl.DataFrame:
    """The number of ranks or nodes differs: other differences may follow from that alone."""
    first = member.group_by("job", "key").agg(pl.col("source", "line").first())
    placements = communicator_placement.drop("source", "line").join(first, on=["job", "key"])
    largest = (
        placements.sort("nranks", "nth", "key", descending=[True, False, False])
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
    """The number of communicators differs: another parallelism, or one run got further than the other."""
    first = member.unique(["job", "key"], keep="first", maintain_order=True).join(
        communicator_kinds(member), on=["job", "key"]
    )
    counted = first.group_by("job", "kind", maintain_order=True).agg(pl.len(), pl.col("source", "line").first())
    return counted.select(
        "source", "line", what=pl.format("communicators: {}", "kind"), value=pl.col("len").cast(pl.String)
    )


@topic(unit="job", needs=_INIT)
def placement(member: pl.DataFrame, communicator_placement: pl.DataFrame) -> pl.DataFrame:
    """Ranks are placed on the nodes in another order: neighbours in rings and groups may be on different nodes."""
    complete = communicator_placement.filter((pl.col("ranks_seen") == pl.col("nranks")) & (pl.col("nodes") > 1))
    largest = complete.sort("nranks", "nth", "key", descending=[True, False, False]).unique("job", keep="first")
    memberships = member.join(largest.select("job", "key"), on=["job", "key"], how="semi")
    nodes = (
        memberships.drop_nulls("rank")
        .sort("rank")
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
    """One run made more calls: it ran longer, or the other stopped; bandwidth and NCCL's choices are not affected."""
    begun = call.group_by("member").agg(pl.col("rank_id", "key").first(), pl.col("pos").min())
    first = with_line(begun.group_by("rank_id", "key").agg(pl.col("pos").min())).drop("pos")
    memberships = rank.select("rank_id", "rank", text_of("host"))
    named = member.select("job", "key", "rank_id").unique().join(communicator_kinds(member), on=["job", "key"])
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
            what=pl.format("collectives on the {}", "kind"),
            value=pl.col("calls").cast(pl.String),
        )
    )


@topic(unit="job", needs=_INIT, kind=Kind.CONTEXT)
def hosts(process: pl.DataFrame, benchmark: pl.DataFrame) -> pl.DataFrame:
    """The runs used different hosts: no difference by itself, but their hardware may differ without a trace in logs."""
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
