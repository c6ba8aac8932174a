"""Channels: fewer than the machine allows, and numbers that differ between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import PAIRWISE, count_of
from ncclforensics.data.thresholds import DEGRADED_LINK, FEW_CHANNELS, FULL_NODE, MANY_NODES, NORMAL_CHANNELS
from ncclforensics.data.tuning import CHANNEL_CAPS
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.grouping import first_value, group_finding
from ncclforensics.rules.shared.machine_faults import fewer_nvlinks, narrow_links

RING = 4  # pattern of the graph search
NVSWITCH = ["NVSwitch", "multicast"]


def _caps(setting: pl.DataFrame) -> pl.DataFrame:
    """Settings that limit the number of channels, with the limit as `cap`."""
    return (
        setting.filter(pl.col("variable").is_in(CHANNEL_CAPS))
        .with_columns(cap=text_of("value").cast(pl.Int64, strict=False))
        .filter(pl.col("cap") > 0)
    )


@rule(Category.CHANNEL_UNDERCOUNT, Severity.WARNING, of=("setting",))
def chan_capped_by_env(
    setting: pl.DataFrame,
    channels: pl.DataFrame,
    graph_search: pl.DataFrame,
    communicator_placement: pl.DataFrame,
    gpu_interconnect: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A variable limits the channels to fewer than the machine allows.

    Means: NCCL_MAX_NCHANNELS, NCCL_MAX_NRINGS or NCCL_MAX_CTAS limits the number of channels to less than NCCL's graph
    search found, or than is normal for GPUs on NVSwitch; bandwidth is lost in proportion.
    Not when: NCCL opens no more channels without the limit, such as 2 for GPUs on PCIe alone; the application itself
    requests few CTAs to leave room for its own kernels (Comm config … set to).
    Do: unset the variable on all ranks, also in /etc/nccl.conf and ~/.nccl.conf, and run again.
    Sources: nccl: src/graph/connect.cc; nccl#522 (left over from a test).
    """
    communicators = communicator_placement.filter(pl.col("nranks") > 1).select("job", "key", "nranks", "local", "nodes")
    opened = channels.join(communicators, on=["job", "key"]).join(
        rank.select("job", "rank_id", *OWNER), on=["job", "rank_id"]
    )
    capped = _caps(setting).join(opened.select(*OWNER, "key", "coll", "local"), on=OWNER)
    capped = capped.filter(pl.col("coll") == pl.col("cap"))
    searches = graph_search.group_by(*OWNER, "key").agg(
        found=pl.col("channels").max(), at=pl.col("source").first(), on=pl.col("line").first()
    )
    on_nvswitch = (
        gpu_interconnect.filter(pl.col("interconnect").is_in(NVSWITCH))
        .select(*OWNER, has_nvswitch=pl.lit(value=True))
        .unique()
    )
    rated = capped.join(searches, on=[*OWNER, "key"], how="left").join(on_nvswitch, on=OWNER, how="left")
    is_below_search = (pl.col("found") > pl.col("cap")).fill_null(value=False)
    is_small = (pl.col("cap") < NORMAL_CHANNELS) & pl.col("has_nvswitch") & (pl.col("local") >= FULL_NODE)
    rated = rated.with_columns(
        is_below_search=is_below_search, is_small=is_small.fill_null(value=False) | (pl.col("cap") == 1)
    )
    for _, rows in rated.sort("source", "line").group_by("variable", "cap", maintain_order=True):
        variable, cap = rows["variable"][0], rows["cap"][0]
        opened_text = "1 channel is opened" if cap == 1 else f"{cap} channels are opened"
        most = max(rows.filter("is_below_search")["found"].to_list(), default=0)
        is_undecided = not most and not rows["is_small"].any()
        certainty = "certain" if most or is_undecided else "likely"
        if most:
            detail = f"NCCL's graph search found {most} channels, and {cap} {'is' if cap == 1 else 'are'} opened"
        elif is_undecided:
            detail = f"{opened_text}; these logs do not show whether more are possible"
        else:
            detail = f"{opened_text}; {NORMAL_CHANNELS if cap > 1 else 2} or more are normal"
        finding = group_finding(
            rows.unique(["source", "line"]),
            rank,
            f"{variable}={cap} limits the channels of {{processes}}",
            detail,
            certainty,
        )
        if is_undecided:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        for source, line in rows.filter("is_below_search").select("at", "on").head(1).iter_rows():
            finding.evidence.append(Line(source, line, "search"))
        yield finding


@rule(Category.CHANNEL_UNDERCOUNT, Severity.WARNING, of=("communicator_placement",))
def chan_undercount(
    communicator_placement: pl.DataFrame,
    setting: pl.DataFrame,
    gpu_interconnect: pl.DataFrame,
    member: pl.DataFrame,
    transport: pl.DataFrame,
    device_pair: pl.DataFrame,
    gpu_link: pl.DataFrame,
    machine_device: pl.DataFrame,
    expected_machine: pl.DataFrame,
) -> Iterator[Finding]:
    """A communicator has fewer channels than similar communicators, or than is normal for its machines.

    Means: NCCL's graph search found little bandwidth: NICs or NVLinks are missing, or a PCIe link is degraded, on one
    of its hosts; the slowest rank limits all. What is normal is the site's own figure where its configuration has one.
    Not when: a variable or the application requests few; one GPU per node, GPUs on PCIe alone, sockets or very small
    communicators: 2 channels are normal there. Communicators with different placement are not compared.
    Do: set NCCL_DEBUG_SUBSYS=INIT,GRAPH and NCCL_TOPO_DUMP_FILE on the hosts named; compare maxBw and `Pattern` lines.
    Sources: nccl#652, nccl#524, nccl#1664; MLPerf logs (channels by machine); field guides.
    """
    found = _fewer_than_others(communicator_placement, setting, gpu_interconnect, member, transport, expected_machine)
    yield from explain_by_dumps(found, fewer_nvlinks(device_pair, gpu_link), narrow_links(machine_device))


def _fewer_than_others(
    communicator_placement: pl.DataFrame,
    setting: pl.DataFrame,
    gpu_interconnect: pl.DataFrame,
    member: pl.DataFrame,
    transport: pl.DataFrame,
    expected_machine: pl.DataFrame,
) -> Iterator[Finding]:
    requested = setting.filter(text_of("field").str.contains("CTA", literal=True).fill_null(value=False))
    limited = pl.concat([_caps(setting).select("host", "pid"), requested.select("host", "pid")]).unique()
    limited_keys = member.join(limited, on=OWNER, how="semi").select("job", "key").unique()
    free = communicator_placement.filter(
        (pl.col("nranks") > 1) & pl.col("coll").is_not_null() & pl.col("line").is_not_null()
    )
    free = free.join(limited_keys, on=["job", "key"], how="anti")
    alike = ["job", "nranks", "nodes", "gpus", "nth"]
    reported: set[str] = set()
    complete = free.filter(pl.col("ranks_seen") == pl.col("nranks"))
    unequal = complete.filter(pl.col("coll").n_unique().over(alike) > 1)
    for _, similar in unequal.sort("source", "line").group_by(alike, maintain_order=True):
        most = similar["coll"].max()
        fewer = similar.filter(pl.col("coll") < most)
        if fewer.is_empty() or fewer.height * 2 > similar.height:
            continue
        for row in fewer.to_dicts():
            reported.add(row["key"])
            other = similar.filter(pl.col("coll") == most).row(0, named=True)
            yield _undercount(
                row, member, f"{count_of(row['coll'], 'channel')}, {other['coll']} on similar communicators", "likely",
                "communicators of the same size on the same GPUs of other hosts have more",
                [Line(other["source"], other["line"], "a similar one")],
            )  # fmt: skip
    gpus = first_value(expected_machine["gpus"]) or FULL_NODE
    of_all_gpus = free.filter((pl.col("local") >= gpus) & (pl.col("nranks") == pl.col("local") * pl.col("nodes")))
    for nodes, column in ((pl.col("nodes") == 1, "channels"), (pl.col("nodes") > 1, "channels_between_hosts")):
        if expected := first_value(expected_machine[column]):
            for row in of_all_gpus.filter(nodes & (pl.col("coll") < expected)).to_dicts():
                if row["key"] not in reported:
                    yield _undercount(
                        row, member, f"{count_of(row['coll'], 'channel')} where the site expects {expected}", "likely",
                        "the site's configuration has the number, and no variable limits the channels", [],
                    )  # fmt: skip
            of_all_gpus = of_all_gpus.filter(~nodes)
    full = of_all_gpus.filter(pl.col("coll") <= FEW_CHANNELS)
    if full.is_empty():
        return
    on_nvswitch = gpu_interconnect.filter(pl.col("interconnect").is_in(NVSWITCH))
    keys = member.join(on_nvswitch, on=OWNER, how="semi")["key"].unique()
    networks = set(transport.filter(pl.col("medium") == "NET")["network"].cast(pl.String).drop_nulls())
    is_fast = (pl.col("nodes") == 1) | pl.lit(networks == {"IB"})
    full = full.filter(pl.col("key").is_in(keys.implode()) & is_fast)
    for row in full.to_dicts():
        if row["key"] not in reported:
            yield _undercount(
                row, member,
                f"{count_of(row['coll'], 'channel')} where {NORMAL_CHANNELS} or more are normal", "possible",
                f"{row['local']} GPUs per node on NVSwitch, and no variable limits the channels", [],
            )  # fmt: skip


def _undercount(
    row: dict[str, Any], member: pl.DataFrame, title: str, certainty: str, detail: str, evidence: list[Line]
) -> Finding:
    members = member.filter((pl.col("job") == row["job"]) & (pl.col("key") == row["key"]))
    hosts = sorted(members["host"].cast(pl.String).unique())
    return Finding(
        title=f"a communicator of {row['nranks']} ranks on {', '.join(hosts[:4])} has {title}",
        detail=detail,
        certainty=certainty,
        hosts=hosts,
        communicator=row["key"],
        evidence=[Line(row["source"], row["line"], "channels"), *evidence],
    )


@rule(Category.CHANNEL_UNDERCOUNT, Severity.WARNING, of=("graph_search", "channels"))
def chan_differs_across_ranks(
    graph_search: pl.DataFrame,
    channels: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
    device_pair: pl.DataFrame,
    gpu_link: pl.DataFrame,
    machine_device: pl.DataFrame,
) -> Iterator[Finding]:
    """The graph search of ranks of one communicator differs in bandwidth, or their number of channels differs.

    Means: one host has fewer or slower links than the others (a NIC, an NVLink, a PCIe width), or other settings. All
    ranks use the smallest result, which slows all; versions before 2.21 to 2.26 may hang.
    Not when: the hosts have different numbers of ranks, or are different machines by design.
    Do: on the hosts named compare nvidia-smi topo -m, nvidia-smi nvlink -s, ibstat and NCCL variables with the others.
    Sources: nccl release notes 2.21.5, 2.22.3, 2.24.3, 2.26.2; nccl: src/graph/connect.cc.
    """
    found = _differing(graph_search, channels, member, rank)
    yield from explain_by_dumps(found, fewer_nvlinks(device_pair, gpu_link), narrow_links(machine_device))


def _differing(
    graph_search: pl.DataFrame, channels: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    on_host = pl.len().over("job", "key", "host")
    memberships = member.with_columns(on_host=on_host).select("job", "key", "rank_id", "on_host")
    rings = graph_search.filter(pl.col("pattern") == RING).join(memberships, on=["job", "key", "rank_id"])
    rings = rings.with_columns(total=pl.col("channels") * pl.min_horizontal("bw_intra", "bw_inter"))
    unequal = rings.filter(pl.col("total").n_unique().over("job", "key") > 1)
    worst: dict[str, pl.DataFrame] = {}
    for (job, _), rows in unequal.sort("source", "line").group_by("job", "key", maintain_order=True):
        hosts = rows.group_by("host", maintain_order=True).agg(pl.col("total").min())
        most, least = hosts["total"].max(), hosts["total"].min()
        below = hosts.filter(pl.col("total") <= DEGRADED_LINK * pl.lit(most))["host"]
        if rows["on_host"].n_unique() > 1 or most == least or not 0 < below.len() * 2 <= hosts.height:
            continue
        name = " ".join(sorted(below.cast(pl.String)))
        worst.setdefault(f"{job} {name}", rows.with_columns(is_slow=pl.col("host").is_in(below.implode())))
    for rows in worst.values():
        slow, others = rows.filter("is_slow"), rows.filter(~pl.col("is_slow"))
        finding = group_finding(
            slow, rank, "NCCL's graph search found less bandwidth on {processes} than on the other ranks",
            f"{_search_text(slow)} against {_search_text(others)}; the smallest result limits all ranks", "likely",
        )  # fmt: skip
        finding.evidence.append(Line(others["source"][0], others["line"][0], "another host"))
        yield finding
    opened = channels.join(member.select("job", "key", "rank_id", "host", "pid"), on=["job", "key", "rank_id"])
    opened = opened.filter(pl.col("coll").n_unique().over("job", "key") > 1)
    for _, rows in opened.sort("source", "line").group_by("job", "key", maintain_order=True):
        counts = rows["coll"].value_counts().sort("count", "coll")
        outliers = rows.filter(pl.col("coll") == counts["coll"][0])
        usual = counts["coll"][-1]
        finding = group_finding(
            outliers, rank, f"{{processes}} opened {count_of(counts['coll'][0], 'channel')}, the other ranks {usual}",
            "all ranks of a communicator must open the same number", "likely", communicator=rows["key"][0],
        )  # fmt: skip
        other = rows.filter(pl.col("coll") == usual)
        finding.evidence.append(Line(other["source"][0], other["line"][0], "another rank"))
        yield finding


def _search_text(rows: pl.DataFrame) -> str:
    row = rows.sort("total").row(0, named=True)
    return f"{count_of(row['channels'], 'channel')} of {row['bw_intra']:g}/{row['bw_inter']:g} GB/s"


@rule(Category.CHANNEL_UNDERCOUNT, Severity.INFO, of=("channel_count",))
def chan_alltoall_few_per_peer(
    channel_count: pl.DataFrame, call_template: pl.DataFrame, placement: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Send and Recv run over many nodes with one channel per peer.

    Means: since 2.20 NCCL gives each peer few channels; all-to-all over eight or more nodes can be slower for it.
    Not when: no call is a Send, Recv or all-to-all; there are fewer nodes; the measured speed suffices.
    Do: measure with NCCL_NCHANNELS_PER_NET_PEER=4.
    Sources: nccl#1272.
    """
    pairwise = call_template.filter(pl.col("called").is_in(PAIRWISE))
    nodes = placement["nnodes"].max()
    few = channel_count.filter(pl.col("perpeer") == 1)
    if pairwise.is_empty() or few.is_empty() or not isinstance(nodes, int) or nodes < MANY_NODES:
        return
    yield group_finding(
        few, rank, "one channel per peer for Send and Recv on {processes}",
        f"{nodes} nodes, and the job calls Send, Recv or all-to-all", "possible", role=Role.CONTEXT,
    )  # fmt: skip
