"""The network that each process uses, the reason for that choice, and whether it uses GPUDirect RDMA.

The line `Using network` proves the choice; the lines before it show candidates that NCCL tried. The network matters
only for jobs on several nodes: on a single node, NCCL initialises the first network that works and does not use it.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.networks import EFA, MOST_GPUS, RDMA, SOCKET, TCP_PROVIDERS
from ncclforensics.frames.columns import LINE, OWNER, PLACE, PROCESS, text_of
from ncclforensics.frames.registry import analysis

REPORTED_NETWORK = {
    **PROCESS,
    "network": pl.String(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first line that names it
}

CHOSEN_NETWORK = {
    "job": pl.Int32(),  # null where no communicator of the process is seen
    **PROCESS,
    "network": pl.String(),  # as NCCL names it: IB, Socket, AWS Libfabric
    "family": pl.String(),  # without version: some lines have IBext, others IBext_v8
    "provider": pl.String(),  # of Libfabric
    "is_rdma": pl.Boolean(),  # bypasses the TCP stack of the kernel
    "spans_nodes": pl.Boolean(),  # its job runs on several nodes
    "is_on_one_node": pl.Boolean(),  # all ranks of its job are known to be on one node
    "carries_data": pl.Boolean(),  # the log of some process of the job shows connections over it
    "is_network_unneeded": pl.Boolean(),  # all nodes are in one NVLink domain
    "reason": pl.String(),  # why not InfiniBand: one of REASONS
    "variable": pl.String(),  # the setting behind it, as NAME=value
    "reason_source": pl.Int32(),
    "reason_line": pl.Int32(),
    **LINE,
}
CHOSEN = "chosen"  # a variable requests sockets
PRESENT = "present"  # NCCL lists InfiniBand devices and does not use them
UNOPENED = "unopened"  # NCCL cannot open the devices
PLUGIN = "plugin"  # the network plugin failed
LIBRARY = "library"  # libibverbs cannot be loaded
NO_DEVICE = "no-device"
UNTRIED = "untried"  # no line shows an attempt to use InfiniBand: it may be switched off by a variable
REASONS = [CHOSEN, PRESENT, UNOPENED, PLUGIN, LIBRARY, NO_DEVICE, UNTRIED]  # by precedence

GDR_CONNECTIONS = {
    "job": pl.Int32(),
    **PROCESS,
    "network": pl.String(),
    "receives": pl.Int64(),  # receive connections of this process over it
    "direct": pl.Int64(),  # of which with GPUDirect RDMA
    "sends": pl.Int64(),
    "is_closed": pl.Boolean(),  # NCCL found neither a kernel module nor DMA-BUF
    "is_open": pl.Boolean(),  # a line shows that the NIC can access GPU memory
    "is_far": pl.Boolean(),  # GPU and NIC are farther apart than NCCL allows
    "is_small_instance": pl.Boolean(),  # EFA with one NIC: of these, AWS's newest alone have GPUDirect RDMA
    "level": pl.String(),  # setting of NCCL_NET_GDR_LEVEL or its predecessors, as NAME=value
    "reason_source": pl.Int32(),
    "reason_line": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of a receive without GPUDirect RDMA; else of the first connection
}


@analysis(REPORTED_NETWORK, of=("milestone", "plugin", "connection"))
def reported_network(milestone: pl.DataFrame, plugin: pl.DataFrame, connection: pl.DataFrame) -> pl.DataFrame:
    """One row per process and network, from the best evidence: `Using network`, an assigned plugin, connections."""
    named = milestone.filter(pl.col("network").is_not_null()).select(*PLACE, text_of("network"))
    assigned = plugin.filter(
        (pl.col("form") == "assigned") & pl.col("kind").fill_null("NET").eq("NET") & pl.col("plugin").is_not_null()
    ).select(*PLACE, network=text_of("plugin"))
    reported = named
    for weaker in (assigned, _used_networks(connection)):
        unknown = weaker.join(reported, on=OWNER, how="anti")
        reported = pl.concat([reported, unknown], how="vertical_relaxed")
    return (
        reported.sort("source", "line")
        .group_by(*OWNER, "network", maintain_order=True)
        .agg(pl.col("source", "line").first())
        .with_columns(network=pl.col("network").str.strip_chars())
    )


@analysis(REPORTED_NETWORK, of=("reported_network",))
def network_mismatch(reported_network: pl.DataFrame) -> pl.DataFrame:
    """The rows of `reported_network` if the processes report different networks; else no rows."""
    return reported_network.filter(pl.col("network").n_unique() > 1)


def _used_networks(connection: pl.DataFrame) -> pl.DataFrame:
    """The networks that connections use, one row per connection."""
    over_network = connection.filter((pl.col("form") == "net") & pl.col("network").is_not_null())
    return over_network.select(*PLACE, network=text_of("network"))


@analysis(CHOSEN_NETWORK, of=("reported_network",))
def chosen_network(
    reported_network: pl.DataFrame,
    plugin: pl.DataFrame,
    connection: pl.DataFrame,
    placement: pl.DataFrame,
    rank: pl.DataFrame,
    member: pl.DataFrame,
    setting: pl.DataFrame,
    net_devices: pl.DataFrame,
    shared_library: pl.DataFrame,
    ib_unusable: pl.DataFrame,
    libfabric: pl.DataFrame,
    libfabric_error: pl.DataFrame,
    exported_variable: pl.DataFrame,
    ring: pl.DataFrame,
    version: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process and network, with the reason for it and whether the job needs a network."""
    rows, used = reported_network, _used_networks(connection)
    jobs = rank.select(*OWNER, "job").unique(OWNER)
    rows = rows.join(jobs, on=OWNER, how="left")
    is_amd = text_of("form").str.starts_with("rccl")
    large = _in_large_rings(ring) if version.filter(is_amd).is_empty() else rows.select(OWNER).clear()
    rows = rows.join(_network_need(rows, used, placement, large, rank, member), on=OWNER, how="left")
    providers = (
        libfabric.filter(pl.col("form") == "provider")
        .group_by(OWNER)
        .agg(provider=text_of("provider").drop_nulls().last())
    )
    commanded = _commanded_settings(exported_variable, reported_network)
    settings = pl.concat([setting.select(*PLACE, text_of("variable"), text_of("value")), commanded])
    reasons = _reasons(settings, net_devices, shared_library, ib_unusable, libfabric_error, plugin)
    rows = rows.join(providers, on=OWNER, how="left").join(reasons, on=OWNER, how="left")
    # UNTRIED rests on absent lines: it is dropped where another process of the job has a better reason.
    is_known = (pl.col("reason") != UNTRIED).fill_null(value=False).any().over("job", "network")
    is_unfounded = ((pl.col("reason") == UNTRIED) & is_known).fill_null(value=False)
    rows = rows.with_columns(
        pl.when(is_unfounded.not_()).then(name).alias(name) for name in ("reason", "reason_source", "reason_line")
    )
    for group in (["job", "host"], ["job"]):  # a process with incomplete logs takes the reason of its neighbours
        rows = rows.with_columns(
            pl.coalesce(name, pl.col(name).drop_nulls().first().over(*group, "network")).alias(name)
            for name in ("reason", "variable", "reason_source", "reason_line")
        )
    family = pl.col("network").str.split("_v").list.first()
    return rows.with_columns(
        family=family,
        is_rdma=family.is_in(RDMA) & pl.col("provider").fill_null("").is_in(TCP_PROVIDERS).not_(),
        variable=pl.when(pl.col("reason").is_in([CHOSEN, NO_DEVICE])).then("variable"),
    ).select(list(CHOSEN_NETWORK))


def _commanded_settings(exported_variable: pl.DataFrame, reported_network: pl.DataFrame) -> pl.DataFrame:
    """Variables that a command gives to the processes whose lines follow it in its source, as rows of `setting`."""
    commands = exported_variable.filter("is_in_command").rename({"line": "command_line"})
    given = reported_network.select(*OWNER, "source", "line").join(commands, on="source")
    return (
        given.filter(pl.col("command_line") < pl.col("line"))
        .select(*OWNER, "source", "variable", "value", line="command_line")
        .select(*PLACE, "variable", "value")
    )


def _in_large_rings(ring: pl.DataFrame) -> pl.DataFrame:
    """Processes that print a ring of more ranks than a host has GPUs."""
    ranks = text_of("order").str.strip_chars(" .").str.split(" ").list.eval(pl.element() != "").list.sum()
    return ring.filter(ranks > MOST_GPUS).select(OWNER).unique()


def _network_need(
    rows: pl.DataFrame,
    used: pl.DataFrame,
    placement: pl.DataFrame,
    large: pl.DataFrame,
    rank: pl.DataFrame,
    member: pl.DataFrame,
) -> pl.DataFrame:
    """Whether the job of each process spans several nodes, and whether its data goes over the network.

    Processes without a job (the log shows no communicator of theirs) count as one job.
    """
    memberships = rows.select(*OWNER, "job").unique(OWNER)
    placements = placement.group_by(OWNER).agg(pl.col("nnodes").max(), pl.col("mnnvl").max())
    sizes = member.group_by("job").agg(nranks=pl.col("nranks").max())
    seen = rank.group_by("job").agg(seen=pl.len())
    carrying = used.select(OWNER).unique().with_columns(carries_data=pl.lit(value=True))
    processes = (
        memberships.join(placements, on=OWNER, how="left")
        .join(carrying, on=OWNER, how="left")
        .join(large.with_columns(is_large=pl.lit(value=True)), on=OWNER, how="left")
        .join(sizes, on="job", how="left")
        .join(seen, on="job", how="left")
    )
    has_hosts = pl.col("host").n_unique().over("job") > 1
    carries_data = pl.col("carries_data").fill_null(value=False).any().over("job")
    is_alone = pl.col("job").is_null() & carries_data.not_()
    absent = (pl.col("nranks") > pl.col("seen")).fill_null(value=False) & pl.col("nnodes").is_null()
    is_whole = (pl.col("nranks") <= pl.col("seen")).any().over("job") | (pl.col("nnodes").max().over("job") == 1)
    return processes.select(
        *OWNER,
        spans_nodes=(
            (has_hosts & is_alone.not_())
            | (pl.col("is_large").any().over("job") & pl.col("nnodes").is_null())
            | (pl.col("nnodes").max().over("job") > 1)
            | (absent & carries_data)
        ).fill_null(value=False),
        is_on_one_node=(is_whole & has_hosts.not_()).fill_null(value=False),
        carries_data=carries_data,
        is_network_unneeded=(pl.col("mnnvl").max().over("job") > 0).fill_null(value=False) & carries_data.not_(),
    )


def _reasons(
    setting: pl.DataFrame,
    net_devices: pl.DataFrame,
    shared_library: pl.DataFrame,
    ib_unusable: pl.DataFrame,
    libfabric_error: pl.DataFrame,
    plugin: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process: the first of REASONS that its lines support, with setting and line."""
    value, variable = text_of("value").str.to_lowercase(), text_of("variable")
    is_choice = ((variable == "NCCL_NET") & (value == "socket")) | ((variable == "NCCL_IB_DISABLE") & (value == "1"))
    assignment = pl.concat_str(variable, pl.lit("="), text_of("value"))
    form, missing = pl.col("form"), ["not_opened", "not_found"]
    is_verbs = text_of("library").str.contains("libibverbs", literal=True)
    lost = ["no_provider", "getinfo", "too_old"]
    failed = (pl.col("form") == "failed") & (pl.col("kind") == "NET") & pl.col("plugin").is_in(["IB", SOCKET]).not_()
    evidence = [
        (CHOSEN, setting.filter(is_choice).with_columns(setting_text=assignment)),
        (PRESENT, net_devices.filter(form == "ib")),
        (UNOPENED, ib_unusable.filter(form.is_in(["open", "query"]))),
        (PLUGIN, libfabric_error.filter(pl.col("form").is_in(lost))),
        (PLUGIN, plugin.filter(failed)),
        (LIBRARY, shared_library.filter(pl.col("form").is_in(missing) & is_verbs)),
        (NO_DEVICE, net_devices.filter(form.is_in(["ib_none", "ib_empty"]))),
        (UNTRIED, net_devices.filter(form == "socket")),
    ]
    candidates = pl.concat(
        [
            rows.select(
                *PLACE,
                reason=pl.lit(reason),
                precedence=pl.lit(REASONS.index(reason)),
                setting_text=pl.col("setting_text") if "setting_text" in rows else pl.lit(None, pl.String),
            )
            for reason, rows in evidence
        ],
        how="vertical_relaxed",
    )
    first = (
        candidates.sort("precedence", "source", "line", maintain_order=True)
        .group_by(OWNER, maintain_order=True)
        .agg(
            pl.col("reason").first(),
            pl.col("setting_text").first(),
            reason_source=pl.col("source").first(),
            reason_line=pl.col("line").first(),
        )
    )
    device_lists = setting.filter(variable == "NCCL_IB_HCA").group_by(OWNER).agg(ib_hca=assignment.first())
    return (
        first.join(device_lists, on=OWNER, how="left")
        .with_columns(variable=pl.when(pl.col("reason") == CHOSEN).then("setting_text").otherwise("ib_hca"))
        .drop("setting_text", "ib_hca")
    )


@analysis(GDR_CONNECTIONS, of=("chosen_network",))
def gdr_connections(
    chosen_network: pl.DataFrame,
    connection: pl.DataFrame,
    gpu_direct: pl.DataFrame,
    libfabric_error: pl.DataFrame,
    setting: pl.DataFrame,
    libfabric: pl.DataFrame,
    rocm: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process of a job on several nodes with RDMA, if the log shows its connections.

    Only receives prove whether GPUDirect RDMA works: on many machines NCCL does not use it for sends, because reading
    GPU memory over PCIe is slow there.
    """
    memberships = chosen_network.filter("is_rdma", "spans_nodes").unique(OWNER, keep="first", maintain_order=True)
    over_network = connection.filter(pl.col("form").is_in(["net", "collnet"])).with_columns(
        is_receive=pl.col("direction").fill_null("receive") == "receive", is_direct=pl.col("gdr").is_not_null()
    )
    is_receive, is_direct = pl.col("is_receive"), pl.col("is_direct")
    counted = (
        over_network.sort(is_receive & is_direct.not_(), "line", descending=[True, False])
        .group_by(OWNER, maintain_order=True)
        .agg(
            receives=is_receive.sum().cast(pl.Int64),
            direct=(is_receive & is_direct).sum().cast(pl.Int64),
            sends=is_receive.not_().sum().cast(pl.Int64),
            at=pl.col("source").first(),
            on=pl.col("line").first(),
        )
    )
    form, state = pl.col("form"), pl.col("state")
    capabilities = gpu_direct.filter(pl.col("net").fill_null("").is_in([SOCKET]).not_())
    closed = pl.concat(
        [
            capabilities.filter((form.is_in(["hca", "gpu_unable"])) & (state == "Disabled")).select(PLACE),
            libfabric_error.filter(form == "gdr_off").select(PLACE),
            rocm.filter(form == "no_gdr").select(PLACE),
        ]
    )
    is_open = (state == "Enabled") | form.is_in(["dmabuf", "hca_module", "data_direct"])
    open_processes = capabilities.filter(is_open).select(OWNER).unique().with_columns(is_open=pl.lit(value=True))
    far = capabilities.filter(form.is_in(["gpu", "gpu_rank"]) & (state == "Disabled")).select(PLACE)
    # The plugin has settings for the large types of instances, and prints their name.
    large = libfabric.filter(text_of("platform").is_not_null()).select(OWNER)
    small = libfabric.filter((text_of("provider") == EFA) & (pl.col("nics") == 1)).join(large, on=OWNER, how="anti")
    levels = setting.filter(
        pl.col("variable").is_in(["NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT"])
    )
    level = levels.group_by(OWNER).agg(
        level=pl.concat_str(text_of("variable"), pl.lit("="), text_of("value")).first(),
        at_level=pl.col("source").first(),
        on_level=pl.col("line").first(),
    )
    return (
        memberships.drop("source", "line", "reason_source", "reason_line")
        .join(counted, on=OWNER)
        .join(_first(closed, "closed"), on=OWNER, how="left")
        .join(open_processes, on=OWNER, how="left")
        .join(_first(far, "far"), on=OWNER, how="left")
        .join(level, on=OWNER, how="left")
        .join(small.select(OWNER).unique().with_columns(is_small_instance=True), on=OWNER, how="left")
        .with_columns(
            pl.col("is_small_instance").fill_null(value=False),
            pl.col("is_open").fill_null(value=False),
            is_closed=pl.col("at_closed").is_not_null(),
            is_far=pl.col("at_far").is_not_null(),
            reason_source=pl.coalesce("at_closed", "at_level", "at_far"),
            reason_line=pl.coalesce("on_closed", "on_level", "on_far"),
            source="at",
            line="on",
        )
        .select(list(GDR_CONNECTIONS))
    )


def _first(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The first line of each process, as columns `at_NAME` (source) and `on_NAME` (line)."""
    return rows.group_by(OWNER).agg(
        pl.col("source").first().alias(f"at_{name}"), pl.col("line").first().alias(f"on_{name}")
    )
