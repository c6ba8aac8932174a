"""Topics on NCCL's choices: network, GPUDirect, transports, channels, rings, algorithms."""

from __future__ import annotations

import polars as pl

from ncclforensics.diff import topic
from ncclforensics.diff.ranks import add_rank, communicator_kinds
from ncclforensics.frames.columns import OWNER, text_of

_INIT = "NCCL_DEBUG=INFO (NCCL_DEBUG_SUBSYS unset, or with INIT in it)"
_GRAPH = "NCCL_DEBUG_SUBSYS=INIT,GRAPH"
# nccl: src/include/graph.h
_PATTERNS = {1: "balanced trees", 2: "split trees", 3: "trees", 4: "rings", 5: "NVLS", 6: "CollNet"}


@topic(unit="process", needs=_INIT)
def network(chosen_network: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Data between nodes uses another network; TCP sockets instead of RDMA cost most of the bandwidth."""
    spanning = add_rank(chosen_network.filter(pl.col("spans_nodes") & pl.col("is_network_unneeded").not_()), rank)
    value = pl.concat_str("family", "provider", separator=" over ", ignore_nulls=True)
    return spanning.select("rank", "host", "source", "line", what=pl.lit("network between nodes"), value=value)


@topic(unit="host", needs="NCCL_DEBUG_SUBSYS=INIT,NET")
def nics(
    connection: pl.DataFrame, net_devices: pl.DataFrame, link: pl.DataFrame, chosen_network: pl.DataFrame
) -> pl.DataFrame:
    """A host has or uses another number of NICs; each unused NIC costs its share of the bandwidth."""
    spanning = chosen_network.filter("spans_nodes").select("host").unique()
    over = connection.filter((pl.col("form") == "net") & pl.col("netdev").is_not_null())
    used = (
        over.join(spanning, on="host", how="semi")
        .group_by(text_of("host"), maintain_order=True)
        .agg(
            value=pl.col("netdev").n_unique().cast(pl.String),
            source=pl.col("source").first(),
            line=pl.col("line").first(),
        )
        .with_columns(what=pl.lit("NICs that carry connections"))
    )
    named = (
        net_devices.filter(pl.col("form") == "ib")
        .join(spanning, on="host", how="semi")
        .unique("host", keep="first", maintain_order=True)
        .select(
            "source",
            "line",
            text_of("host"),
            what=pl.lit("RDMA devices that NCCL found"),
            value=text_of("devices").str.count_matches("[", literal=True).cast(pl.String),
        )
    )
    rates = (
        link.filter(pl.col("kind") == "net")
        .sort("rate", descending=True)
        .group_by(text_of("host"), maintain_order=True)
        .agg(
            value=pl.col("rate").map_elements(lambda rate: f"{rate:g}", return_dtype=pl.String).str.join(", ")
            + " GB/s",
            source=pl.col("source").first(),
            line=pl.col("line").first(),
        )
        .with_columns(what=pl.lit("rate of the NICs"))
    )
    return pl.concat([used, named, rates], how="diagonal")


@topic(unit="process", needs=_INIT)
def gpudirect(gdr_connections: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """NICs access GPU memory directly in one run and copy through host memory in the other, which costs 30 to 60 %."""
    receives, direct = pl.col("receives"), pl.col("direct")
    value = (
        pl.when(direct == receives)
        .then(pl.lit("into GPU memory"))
        .when(direct == 0)
        .then(pl.lit("into host memory"))
        .otherwise(pl.lit("some into host memory"))
    )
    receivers = add_rank(gdr_connections.filter(receives > 0), rank)
    return receivers.select("rank", "host", "source", "line", what=pl.lit("receives from the network"), value=value)


@topic(unit="host", needs=_INIT)
def transports(transport: pl.DataFrame) -> pl.DataFrame:
    """Ranks are connected by another transport, such as shared memory instead of NVLink, or without GPUDirect."""
    # These lines number ranks within their communicator, so that the host at the other end is unknown.
    is_network = pl.col("medium").cast(pl.String).is_in(["NET", "COLLNET"])
    return transport.select(
        "source",
        "line",
        text_of("host"),
        what=pl.when(is_network)
        .then(pl.lit("connections over the network"))
        .otherwise(pl.lit("connections in a host")),
        value="transport",
    )


@topic(unit="rank", needs=_INIT)
def channels(channels: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Fewer channels use fewer links and less of each GPU: bandwidth is lower."""
    counts = channels.join(communicator_kinds(member), on=["job", "key"]).join(
        rank.select("rank_id", "rank", text_of("host")), on="rank_id"
    )
    kinds = {"coll": "channels", "nvls": "NVLS channels", "p2p": "p2p channels"}
    rows = counts.unpivot(
        list(kinds), index=["key", "kind", "rank", "host", "source", "line"], variable_name="ends"
    ).drop_nulls("value")
    return rows.select(
        "rank",
        "host",
        "source",
        "line",
        key=text_of("key"),
        what=pl.format("{} of the {}", pl.col("ends").replace_strict(kinds), "kind"),
        value=pl.col("value").cast(pl.String),
    )


@topic(unit="process", needs=_GRAPH)
def multicast(nvls: pl.DataFrame, channel_setting: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """The switch reduces in one run only (NVLS, SHARP), which speeds up AllReduce within a host by up to a third."""
    able = nvls.filter(pl.col("form").is_in(["multicast", "no_multicast"])).with_columns(
        what=pl.lit("NVLink multicast"),
        value=pl.when(pl.col("form") == "multicast").then(pl.lit("available")).otherwise(pl.lit("not available")),
    )
    connected = channel_setting.filter(pl.col("form").is_in(["collnet", "collnet_chain"])).with_columns(
        what=pl.lit("CollNet"), value=pl.lit("connected")
    )
    named = ["host", "pid", "source", "line", "what", "value"]
    states = pl.concat([able.select(named), connected.select(named)]).unique(
        [*OWNER, "what", "value"], keep="first", maintain_order=True
    )
    return add_rank(states, rank).drop("pid")


@topic(unit="rank", needs=_GRAPH)
def search(graph_search: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """NCCL's topology search found other rings or trees: it detected other links, paths or limits."""
    searches = graph_search.join(communicator_kinds(member), on=["job", "key"]).join(
        rank.select("rank_id", number="rank"), on="rank_id"
    )
    return searches.select(
        "source",
        "line",
        text_of("host"),
        rank="number",
        key=text_of("key"),
        what=pl.format(
            "search for {} in the {}",
            pl.col("pattern").replace_strict(
                _PATTERNS, default=pl.format("pattern {}", "pattern"), return_dtype=pl.String
            ),
            "kind",
        ),
        value=pl.format(
            "{} channels of {}/{} GB/s over {}/{}",
            "channels",
            "bw_intra",
            "bw_inter",
            text_of("type_intra").fill_null("?"),
            text_of("type_inter").fill_null("?"),
        ),
    )


@topic(unit="ring", needs=_INIT)
def rings(ring_host: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Rings change hosts another number of times; more often than there are hosts, data crosses the network again."""
    rings_of_kind = ring_host.join(communicator_kinds(member), on=["job", "key"])
    return rings_of_kind.select(
        "source",
        "line",
        key=text_of("key"),
        what=pl.format("changes of the host in a ring of the {}", "kind"),
        value=pl.col("host_changes").cast(pl.String),
    )


@topic(unit="call", needs="NCCL_DEBUG_SUBSYS=INIT,TUNING")
def algorithms(algorithm_choice: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """NCCL chose another algorithm or protocol for calls of the same size."""
    chosen = algorithm_choice.filter(pl.col("collective").is_not_null() & pl.col("bytes").is_not_null())
    width = pl.col("last_channel") - pl.col("first_channel") + 1
    value = pl.concat_str(
        text_of("algorithm"),
        text_of("protocol"),
        pl.when(width.is_not_null()).then(pl.format("on {} channels", width)),
        separator=" ",
        ignore_nulls=True,
    )
    choices = add_rank(chosen.with_columns(value=value).filter(pl.col("value") != ""), rank)
    return choices.select("rank", "host", "source", "line", "value", what=text_of("collective"), size="bytes")
