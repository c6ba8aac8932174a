"""Which network carries the data of each process, why that one, and whether it reaches the GPUs' memory.

What proves the choice is `Using network`; the lines before it are candidates that were tried. A network matters only
where a job spans several nodes: a process alone on its host takes the first one that works and never uses it.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.networks import RDMA, SOCKET, TCP_PROVIDERS
from ncclforensics.frames.columns import OWNER, PLACE, text_of
from ncclforensics.frames.registry import analysis

TOLD_NETWORK = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "network": pl.String(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first that names it
}

CHOSEN_NETWORK = {
    "job": pl.Int32(),  # null where no communicator of the process is seen
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "network": pl.String(),  # as NCCL names it: IB, Socket, AWS Libfabric
    "family": pl.String(),  # the same without its version: IBext on one line, IBext_v8 on another
    "provider": pl.String(),  # of Libfabric
    "is_rdma": pl.Boolean(),  # known to move data without the kernel's TCP
    "spans_nodes": pl.Boolean(),  # its job runs on several nodes
    "carries_data": pl.Boolean(),  # connections over it are seen, in this process or in another of the job
    "is_network_unneeded": pl.Boolean(),  # all nodes are in one NVLink domain
    "reason": pl.String(),  # why not InfiniBand: one of the words below
    "variable": pl.String(),  # that had a part in it, with its value
    "reason_source": pl.Int32(),
    "reason_line": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}
CHOSEN = "chosen"  # a variable says so
PRESENT = "present"  # devices are listed, and yet not used
UNOPENED = "unopened"  # devices are there, and cannot be opened
PLUGIN = "plugin"  # the plugin that should carry the data failed
LIBRARY = "library"  # no libibverbs
NO_DEVICE = "no-device"
UNTRIED = "untried"  # sockets were set up, and InfiniBand was not even looked for: switched off, unseen
REASONS = [CHOSEN, PRESENT, UNOPENED, PLUGIN, LIBRARY, NO_DEVICE, UNTRIED]  # the first that holds is the reason

DIRECT_ACCESS = {
    "job": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "network": pl.String(),
    "receives": pl.Int64(),  # connections over it that this process receives by
    "direct": pl.Int64(),  # of which into GPU memory
    "sends": pl.Int64(),
    "sends_direct": pl.Int64(),
    "is_closed": pl.Boolean(),  # NCCL found no kernel module, nor DMA-BUF
    "is_open": pl.Boolean(),  # some line says that the NIC can reach GPU memory
    "is_far": pl.Boolean(),  # GPU and NIC are further apart than allowed
    "level": pl.String(),  # of NCCL_NET_GDR_LEVEL
    "reason_source": pl.Int32(),
    "reason_line": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of a receive that is not direct; else of the first one
}


@analysis(TOLD_NETWORK, of=("milestone", "plugin", "connection"))
def reported_network(milestone: pl.DataFrame, plugin: pl.DataFrame, connection: pl.DataFrame) -> pl.DataFrame:
    """One row per process and network, by the lines that tell best: those before them are candidates."""
    named = milestone.filter(pl.col("network").is_not_null()).select(*PLACE, text_of("network"))
    assigned = plugin.filter(
        (pl.col("form") == "assigned") & pl.col("kind").fill_null("NET").eq("NET") & pl.col("plugin").is_not_null()
    ).select(*PLACE, network=text_of("plugin"))
    told = named
    for more in (assigned, _used(connection)):
        told = pl.concat([told, more.join(told, on=OWNER, how="anti")], how="vertical_relaxed")
    return (
        told.sort("source", "line")
        .group_by(*OWNER, "network", maintain_order=True)
        .agg(pl.col("source", "line").first())
        .with_columns(network=pl.col("network").str.strip_chars())
    )


@analysis(TOLD_NETWORK, of=("reported_network",))
def network_mismatch(reported_network: pl.DataFrame) -> pl.DataFrame:
    """The same, if it is not the same network for all."""
    return reported_network.filter(pl.col("network").n_unique() > 1)


def _used(connection: pl.DataFrame) -> pl.DataFrame:
    """The networks that connections go over."""
    over = connection.filter((pl.col("form") == "net") & pl.col("network").is_not_null())
    return over.select(*PLACE, network=text_of("network"))


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
) -> pl.DataFrame:
    """One row per process and network."""
    rows, used = reported_network, _used(connection)
    jobs = rank.select(*OWNER, "job").unique(OWNER)
    rows = rows.join(jobs, on=OWNER, how="left")
    rows = rows.join(_spanning(rows, used, placement, rank, member), on=OWNER, how="left")
    providers = (
        libfabric.filter(pl.col("form") == "provider")
        .group_by(OWNER)
        .agg(provider=text_of("provider").drop_nulls().last())
    )
    why = _reasons(setting, net_devices, shared_library, ib_unusable, libfabric_error, plugin)
    rows = rows.join(providers, on=OWNER, how="left").join(why, on=OWNER, how="left")
    # That InfiniBand was not looked for shows by a line that is absent: it says nothing where others have a reason.
    is_told = (pl.col("reason") != UNTRIED).fill_null(value=False).any().over("job", "network")
    is_absent = ((pl.col("reason") == UNTRIED) & is_told).fill_null(value=False)
    rows = rows.with_columns(
        pl.when(is_absent.not_()).then(name).alias(name) for name in ("reason", "reason_source", "reason_line")
    )
    for group in (["job", "host"], ["job"]):  # a process whose own lines were cut has the reason of its neighbours
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


def _spanning(
    rows: pl.DataFrame, used: pl.DataFrame, placement: pl.DataFrame, rank: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """Which processes belong to a job on several nodes, and whether anything of it goes over the network.

    Processes without a job (their communicators were cut out of the log) count as one.
    """
    memberships = rows.select(*OWNER, "job").unique(OWNER)
    placed = placement.group_by(OWNER).agg(pl.col("nnodes").max(), pl.col("mnnvl").max())
    sizes = member.group_by("job").agg(nranks=pl.col("nranks").max())
    seen = rank.group_by("job").agg(seen=pl.len())
    carrying = used.select(OWNER).unique().with_columns(carries_data=pl.lit(value=True))
    told = (
        memberships.join(placed, on=OWNER, how="left")
        .join(carrying, on=OWNER, how="left")
        .join(sizes, on="job", how="left")
        .join(seen, on="job", how="left")
    )
    is_apart = pl.col("host").n_unique().over("job") > 1
    carries_data = pl.col("carries_data").fill_null(value=False).any().over("job")
    is_alone = pl.col("job").is_null() & carries_data.not_()
    absent = (pl.col("nranks") > pl.col("seen")).fill_null(value=False) & pl.col("nnodes").is_null()
    return told.select(
        *OWNER,
        spans_nodes=(
            (is_apart & is_alone.not_()) | (pl.col("nnodes").max().over("job") > 1) | (absent & carries_data)
        ).fill_null(value=False),
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
    """The first of REASONS that a process's lines give."""
    value, variable = text_of("value").str.to_lowercase(), text_of("variable")
    is_choice = ((variable == "NCCL_NET") & (value == "socket")) | ((variable == "NCCL_IB_DISABLE") & (value == "1"))
    spoken = pl.concat_str(variable, pl.lit("="), text_of("value"))
    devices, missing = pl.col("form"), ["not_opened", "not_found"]
    is_verbs = text_of("library").str.contains("libibverbs", literal=True)
    lost = ["no_provider", "getinfo", "too_old"]
    failed = (pl.col("form") == "failed") & (pl.col("kind") == "NET") & pl.col("plugin").is_in(["IB", SOCKET]).not_()
    found = [
        (CHOSEN, setting.filter(is_choice).with_columns(said=spoken)),
        (PRESENT, net_devices.filter(devices == "ib")),
        (UNOPENED, ib_unusable.filter(devices.is_in(["open", "query"]))),
        (PLUGIN, libfabric_error.filter(pl.col("form").is_in(lost))),
        (PLUGIN, plugin.filter(failed)),
        (LIBRARY, shared_library.filter(pl.col("form").is_in(missing) & is_verbs)),
        (NO_DEVICE, net_devices.filter(devices.is_in(["ib_none", "ib_empty"]))),
        (UNTRIED, net_devices.filter(devices == "socket")),
    ]
    said = pl.concat(
        [
            rows.select(
                *PLACE,
                reason=pl.lit(reason),
                rank=pl.lit(REASONS.index(reason)),
                said=pl.col("said") if "said" in rows else pl.lit(None, pl.String),
            )
            for reason, rows in found
        ],
        how="vertical_relaxed",
    )
    first = (
        said.sort("rank", "source", "line", maintain_order=True)
        .group_by(OWNER, maintain_order=True)
        .agg(
            pl.col("reason").first(),
            pl.col("said").first(),
            reason_source=pl.col("source").first(),
            reason_line=pl.col("line").first(),
        )
    )
    lists = setting.filter(variable == "NCCL_IB_HCA").group_by(OWNER).agg(listed=spoken.first())
    return (
        first.join(lists, on=OWNER, how="left")
        .with_columns(variable=pl.when(pl.col("reason") == CHOSEN).then("said").otherwise("listed"))
        .drop("said", "listed")
    )


@analysis(DIRECT_ACCESS, of=("chosen_network",))
def gdr_connections(
    chosen_network: pl.DataFrame,
    connection: pl.DataFrame,
    gpu_direct: pl.DataFrame,
    libfabric_error: pl.DataFrame,
    setting: pl.DataFrame,
    rocm: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process whose data goes over RDMA to other nodes, where its connections are seen.

    Sends read GPU memory over PCIe, which NCCL avoids on many machines: only receives tell whether GPUDirect is there.
    """
    memberships = chosen_network.filter("is_rdma", "spans_nodes").unique(OWNER, keep="first", maintain_order=True)
    over = connection.filter(pl.col("form").is_in(["net", "collnet"])).with_columns(
        is_receive=pl.col("direction").fill_null("receive") == "receive", is_direct=pl.col("gdr").is_not_null()
    )
    is_receive, is_direct = pl.col("is_receive"), pl.col("is_direct")
    counted = (
        over.sort(is_receive & is_direct.not_(), "line", descending=[True, False])
        .group_by(OWNER, maintain_order=True)
        .agg(
            receives=is_receive.sum().cast(pl.Int64),
            direct=(is_receive & is_direct).sum().cast(pl.Int64),
            sends=is_receive.not_().sum().cast(pl.Int64),
            sends_direct=(is_receive.not_() & is_direct).sum().cast(pl.Int64),
            at=pl.col("source").first(),
            on=pl.col("line").first(),
        )
    )
    form, state = pl.col("form"), pl.col("state")
    able = gpu_direct.filter(pl.col("net").fill_null("").is_in([SOCKET]).not_())
    closed = pl.concat(
        [
            able.filter((form.is_in(["hca", "gpu_unable"])) & (state == "Disabled")).select(PLACE),
            libfabric_error.filter(form == "gdr_off").select(PLACE),
            rocm.filter(form == "no_gdr").select(PLACE),
        ]
    )
    is_open = (state == "Enabled") | form.is_in(["dmabuf", "hca_module", "data_direct"])
    far = able.filter(form.is_in(["gpu", "gpu_rank"]) & (state == "Disabled")).select(PLACE)
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
        .join(
            able.filter(is_open).select(OWNER).unique().with_columns(is_open=pl.lit(value=True)), on=OWNER, how="left"
        )
        .join(_first(far, "far"), on=OWNER, how="left")
        .join(level, on=OWNER, how="left")
        .with_columns(
            pl.col("is_open").fill_null(value=False),
            is_closed=pl.col("at_closed").is_not_null(),
            is_far=pl.col("at_far").is_not_null(),
            reason_source=pl.coalesce("at_closed", "at_level", "at_far"),
            reason_line=pl.coalesce("on_closed", "on_level", "on_far"),
            source="at",
            line="on",
        )
        .select(list(DIRECT_ACCESS))
    )


def _first(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """The first line of each process."""
    return rows.group_by(OWNER).agg(
        pl.col("source").first().alias(f"at_{name}"), pl.col("line").first().alias(f"on_{name}")
    )
