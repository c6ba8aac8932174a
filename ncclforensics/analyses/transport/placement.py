"""Placement of communicators on nodes, results of NCCL's graph search, GPU interconnects, host order of rings."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.transport.connections import join_communicator
from ncclforensics.frames.columns import LINE, OWNER, PLACE, PROCESS, text_of
from ncclforensics.frames.registry import analysis

COMMUNICATOR_PLACEMENT = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "nranks": pl.Int32(),
    "ranks_seen": pl.Int32(),  # ranks with a log
    "nodes": pl.Int32(),  # null where the log does not print it and not all ranks have a log
    "local": pl.Int32(),  # most ranks on one node
    "gpus": pl.String(),  # PCI addresses of its GPUs, without the hosts
    "nth": pl.Int32(),  # index among the communicators of its first rank
    "coll": pl.Int32(),  # channels
    "nvls": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the channel counts
}

GRAPH_SEARCH = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "rank_id": pl.Int32(),
    **PROCESS,
    "pattern": pl.Int32(),
    "channels": pl.Int64(),
    "bw_intra": pl.Float64(),  # GB/s of one channel
    "bw_inter": pl.Float64(),
    "type_intra": pl.Categorical(),  # the worst path between GPUs: NVL, PIX, PHB, SYS
    "type_inter": pl.Categorical(),  # the worst path between GPU and NIC
    **LINE,
}

GPU_INTERCONNECT = {
    **PROCESS,
    "interconnect": pl.String(),  # NVLink, NVSwitch, multicast (an NVSwitch that also reduces)
    **LINE,
}


@analysis(COMMUNICATOR_PLACEMENT, of=("member",))
def communicator_placement(member: pl.DataFrame, placement: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """One row per communicator that was created."""
    printed = placement.group_by("host", "pid", "comm").agg(pl.col("nnodes", "localranks").max())
    opened = channels.select("job", "key", "rank_id", "coll", "nvls", at="source", on="line")
    memberships = (
        member.with_columns(nth=pl.int_range(pl.len(), dtype=pl.Int32).over("job", "rank_id", order_by="created_pos"))
        .join(printed, on=[*OWNER, "comm"], how="left")
        .join(opened, on=["job", "key", "rank_id"], how="left")
        .with_columns(ranks_on_host=pl.len().over("job", "key", "host"))
    )
    return (
        memberships.sort("rank")
        .group_by("job", "key", maintain_order=True)
        .agg(
            pl.col("nranks").first(),
            pl.len().cast(pl.Int32).alias("ranks_seen"),
            pl.col("nnodes").max(),
            pl.col("localranks").max(),
            pl.col("host").n_unique().cast(pl.Int32).alias("hosts"),
            pl.col("ranks_on_host").max().cast(pl.Int32),
            text_of("busid").sort().str.join(" ").alias("gpus"),
            pl.col("nth").first(),
            pl.col("coll").max(),
            pl.col("nvls").max(),
            pl.col("at").drop_nulls().first().alias("source"),
            pl.col("on").drop_nulls().first().alias("line"),
        )
        .with_columns(
            nodes=pl.coalesce("nnodes", pl.when(pl.col("ranks_seen") == pl.col("nranks")).then("hosts")),
            local=pl.coalesce("localranks", pl.when(pl.col("ranks_seen") == pl.col("nranks")).then("ranks_on_host")),
        )
    )


@analysis(GRAPH_SEARCH, of=("graph",))
def graph_search(graph: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """One row per rank, communicator and pattern of NCCL's graph search; pattern 4 is a ring."""
    results = graph.filter(pl.col("pattern").is_not_null())
    names = [name for name in GRAPH_SEARCH if name not in ("job", "key", "rank_id")]
    printed = results.select(*names, "pos", "tid")
    return (
        join_communicator(printed, communicator, member)
        .group_by("job", "key", "rank_id", "host", "pid", "pattern", maintain_order=True)
        .agg(pl.col(name).first() for name in names if name not in ("host", "pid", "pattern"))
    )


@analysis(GPU_INTERCONNECT, of=("topology_node", "graph", "nvls", "device_row"))
def gpu_interconnect(
    topology_node: pl.DataFrame, graph: pl.DataFrame, nvls: pl.DataFrame, device_pair: pl.DataFrame
) -> pl.DataFrame:
    """One row per process and interconnect of its GPUs, with the first line that shows it.

    NCCL prints the links of its topology and the paths of its graph search; multicast needs NVSwitch. nvidia-smi topo
    counts for a host (`pid` is null) if a launcher or a prompt names that host and if NVLink connects all of its GPUs:
    NCCL may number the GPUs in another order.
    """
    is_switch = pl.col("form") == "nvswitch"
    linked = topology_node.filter(pl.col("link") == "NVL").select(
        *PLACE, interconnect=pl.when(is_switch).then(pl.lit("NVSwitch")).otherwise(pl.lit("NVLink"))
    )
    rings = graph.filter((pl.col("pattern") == 4) & (pl.col("type_intra") == "NVL")).select(
        *PLACE, interconnect=pl.lit("NVLink")
    )
    multicast = nvls.filter(pl.col("form") == "multicast").select(*PLACE, interconnect=pl.lit("multicast"))
    between = device_pair.filter(
        (pl.col("table") == "path")
        & pl.col("host").is_not_null()
        & pl.col("device").str.starts_with("GPU")
        & pl.col("other").str.starts_with("GPU")
    )
    is_linked = pl.col("path").str.starts_with("NV")
    hosts = (
        between.group_by("host", "source", "dump", maintain_order=True)
        .agg(pl.col("line").min(), is_linked=is_linked.all())
        .filter("is_linked")
        .select(
            pl.col("host").cast(pl.Categorical),
            pl.lit(None, dtype=pl.Int32).alias("pid"),
            "source",
            "line",
            interconnect=pl.lit("NVLink"),
        )
    )
    return (
        pl.concat([linked, rings, multicast, hosts])
        .sort("source", "line")
        .group_by("host", "pid", "interconnect", maintain_order=True)
        .agg(pl.col("source", "line").first())
    )


RING_HOST = {
    "job": pl.Int32(),
    "key": pl.Categorical(),
    "channel": pl.Int32(),
    "nranks": pl.Int32(),
    "hosts": pl.Int32(),  # with ranks of the communicator
    "host_changes": pl.Int32(),  # hops between hosts along the closed ring
    "host_order": pl.String(),  # the first hosts in the order of the ring
    **LINE,
}


@analysis(RING_HOST, of=("ring",))
def ring_host(
    ring: pl.DataFrame, communicator: pl.DataFrame, member: pl.DataFrame, communicator_placement: pl.DataFrame
) -> pl.DataFrame:
    """One row per ring, with its hops between hosts.

    Only complete rings of communicators on several hosts with several ranks each.
    """
    spread = communicator_placement.filter(
        (pl.col("ranks_seen") == pl.col("nranks")) & (pl.col("nodes") > 1) & (pl.col("nranks") > pl.col("nodes"))
    )
    printed = join_communicator(
        ring.select("source", "line", "pos", "host", "pid", "tid", "channel", "order"), communicator, member
    )
    ordered = (
        printed.join(spread.select("job", "key", "nranks", "nodes"), on=["job", "key"])
        .with_columns(rank=text_of("order").str.strip_chars(" ").str.split(" "))
        .with_columns(pl.col("rank").list.eval(pl.element().cast(pl.Int32, strict=False).drop_nulls()))
        .filter(pl.col("rank").list.len() == pl.col("nranks"))
        .select("job", "key", "channel", "nranks", "nodes", "source", "line", "rank")
        .explode("rank")
        .join(member.select("job", "key", "rank", "host"), on=["job", "key", "rank"], maintain_order="left")
    )
    is_hop = pl.col("host") != pl.col("host").shift(1, fill_value=pl.col("host").last())
    return (
        ordered.with_columns(is_hop=is_hop.over("job", "key", "source", "line"))
        .group_by("job", "key", "channel", "nranks", "source", "line", maintain_order=True)
        .agg(
            pl.col("host").n_unique().cast(pl.Int32).alias("hosts"),
            pl.col("is_hop").sum().cast(pl.Int32).alias("host_changes"),
            text_of("host").head(8).str.join(" ").alias("host_order"),
            pl.col("nodes").first(),
        )
        .filter(pl.col("hosts") == pl.col("nodes"))
    )
