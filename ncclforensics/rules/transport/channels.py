"""Too few channels, and ranks that found different ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import PAIRWISE
from ncclforensics.data.thresholds import DEGRADED_LINK, FEW_CHANNELS, FULL_NODE, MANY_NODES, NORMAL_CHANNELS
from ncclforensics.data.tuning import CHANNEL_CAPS
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.grouping import together
from ncclforensics.rules.shared.machine_faults import fewer_nvlinks, narrow_links

RING = 4  # pattern of a search
ROOMY = ["NVSwitch", "multicast"]


def _caps(setting: pl.DataFrame) -> pl.DataFrame:
    """Variables that bind the number of channels from above, with the bound."""
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
    """A variable allows fewer channels than the machine has.

    Means: NCCL_MAX_NCHANNELS, NCCL_MAX_NRINGS or NCCL_MAX_CTAS binds the number of channels below what the search for
    rings found, or below what is normal for GPUs on NVSwitch; bandwidth is lost in proportion.
    Not when: the cap is no smaller than what NCCL opens without it, as 2 on GPUs that only PCIe links; the application
    itself asks for few CTAs to leave room for its own kernels (Comm config … set to).
    Do: unset the variable on all ranks, also in /etc/nccl.conf and ~/.nccl.conf, and run again.
    Sources: nccl: src/graph/connect.cc; nccl#522 (left over from a test).
    """
    larger = communicator_placement.filter(pl.col("nranks") > 1).select("job", "key", "nranks", "local", "nodes")
    opened = channels.join(larger, on=["job", "key"]).join(rank.select("job", "rank_id", *OWNER), on=["job", "rank_id"])
    bound = _caps(setting).join(opened.select(*OWNER, "key", "coll", "local", of="nranks"), on=OWNER)
    bound = bound.filter(pl.col("coll") == pl.col("cap"))
    found = graph_search.group_by(*OWNER, "key").agg(
        found=pl.col("channels").max(), at=pl.col("source").first(), on=pl.col("line").first()
    )
    roomy = (
        gpu_interconnect.filter(pl.col("interconnect").is_in(ROOMY))
        .select(*OWNER, is_roomy=pl.lit(value=True))
        .unique()
    )
    judged = bound.join(found, on=[*OWNER, "key"], how="left").join(roomy, on=OWNER, how="left")
    is_searched = (pl.col("found") > pl.col("cap")).fill_null(value=False)
    is_small = (pl.col("cap") < NORMAL_CHANNELS) & pl.col("is_roomy") & (pl.col("local") >= FULL_NODE)
    judged = judged.with_columns(
        is_searched=is_searched, is_small=is_small.fill_null(value=False) | (pl.col("cap") == 1)
    )
    for _, rows in judged.sort("source", "line").group_by("variable", "cap", maintain_order=True):
        variable, cap = rows["variable"][0], rows["cap"][0]
        most = max(rows.filter("is_searched")["found"].to_list(), default=0)
        is_open = not most and not rows["is_small"].any()
        certainty = "certain" if most or is_open else "likely"
        if most:
            detail = f"the search for rings found {most} channels, and {cap} are opened"
        elif is_open:
            detail = f"{cap} channels are opened; whether there could be more, these logs do not show"
        else:
            detail = f"{cap} channels are opened where {NORMAL_CHANNELS if cap > 1 else 2} and more are normal"
        finding = together(
            rows.unique(["source", "line"]), rank, f"{variable}={cap} caps the channels of {{who}}", detail, certainty
        )
        if is_open:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        for source, line in rows.filter("is_searched").select("at", "on").head(1).iter_rows():
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
) -> Iterator[Finding]:
    """A communicator has fewer channels than those that are made like it, or than its machines give.

    Means: the search for rings found little bandwidth: NICs or NVLinks are missing, or a PCIe link is degraded, on one
    of its hosts; the slowest rank binds all.
    Not when: a variable or the application asks for few; one GPU per node, GPUs on PCIe alone, sockets or very small
    communicators: 2 channels are normal there. Communicators that lie differently are not compared.
    Do: NCCL_DEBUG_SUBSYS=INIT,GRAPH and NCCL_TOPO_DUMP_FILE on the hosts named; compare maxBw and `Pattern` lines.
    Sources: nccl#652, nccl#524, nccl#1664; MLPerf logs (channels by machine); field guides.
    """
    found = _fewer_than_others(communicator_placement, setting, gpu_interconnect, member, transport)
    yield from explain_by_dumps(found, fewer_nvlinks(device_pair, gpu_link), narrow_links(machine_device))


def _fewer_than_others(
    communicator_placement: pl.DataFrame,
    setting: pl.DataFrame,
    gpu_interconnect: pl.DataFrame,
    member: pl.DataFrame,
    transport: pl.DataFrame,
) -> Iterator[Finding]:
    asked = setting.filter(text_of("field").str.contains("CTA", literal=True).fill_null(value=False))
    capped = pl.concat([_caps(setting).select("host", "pid"), asked.select("host", "pid")]).unique()
    by_hand = member.join(capped, on=OWNER, how="semi").select("job", "key").unique()
    free = communicator_placement.filter(
        (pl.col("nranks") > 1) & pl.col("coll").is_not_null() & pl.col("line").is_not_null()
    )
    free = free.join(by_hand, on=["job", "key"], how="anti")
    alike = ["job", "nranks", "nodes", "gpus", "nth"]
    said: set[str] = set()
    complete = free.filter(pl.col("ranks_seen") == pl.col("nranks"))
    unequal = complete.filter(pl.col("coll").n_unique().over(alike) > 1)
    for _, same in unequal.sort("source", "line").group_by(alike, maintain_order=True):
        most = same["coll"].max()
        less = same.filter(pl.col("coll") < most)
        if less.is_empty() or less.height * 2 > same.height:
            continue
        for row in less.to_dicts():
            said.add(row["key"])
            other = same.filter(pl.col("coll") == most).row(0, named=True)
            yield _undercount(
                row, member, f"{row['coll']} channels, {other['coll']} on its sisters", "likely",
                "communicators of the same size, on the same GPUs of other hosts, have more",
                [Line(other["source"], other["line"], "a sister")],
            )  # fmt: skip
    full = free.filter(
        (pl.col("local") >= FULL_NODE)
        & (pl.col("nranks") == pl.col("local") * pl.col("nodes"))
        & (pl.col("coll") <= FEW_CHANNELS)
    )
    if full.is_empty():
        return
    roomy = member.join(gpu_interconnect.filter(pl.col("interconnect").is_in(ROOMY)), on=OWNER, how="semi")[
        "key"
    ].unique()
    networks = set(transport.filter(pl.col("medium") == "NET")["network"].cast(pl.String).drop_nulls())
    is_fast = (pl.col("nodes") == 1) | pl.lit(networks == {"IB"})
    full = full.filter(pl.col("key").is_in(roomy.implode()) & is_fast)
    for row in full.to_dicts():
        if row["key"] not in said:
            yield _undercount(
                row, member, f"{row['coll']} channels where {NORMAL_CHANNELS} and more are normal", "possible",
                f"{row['local']} GPUs per node on NVSwitch, and no variable asks for few", [],
            )  # fmt: skip


def _undercount(
    row: dict[str, Any], member: pl.DataFrame, title: str, certainty: str, detail: str, more: list[Line]
) -> Finding:
    ours = member.filter((pl.col("job") == row["job"]) & (pl.col("key") == row["key"]))
    hosts = sorted(ours["host"].cast(pl.String).unique())
    return Finding(
        title=f"a communicator of {row['nranks']} ranks on {', '.join(hosts[:4])} has {title}",
        detail=detail,
        certainty=certainty,
        hosts=hosts,
        communicator=row["key"],
        evidence=[Line(row["source"], row["line"], "channels"), *more],
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
    """Ranks of one communicator found different rings, or opened different numbers of channels.

    Means: one host has fewer or slower links than the others (a NIC, an NVLink, a PCIe width), or another environment.
    The ranks agree on the least, so that it slows all; versions before 2.21 to 2.26 may hang.
    Not when: the hosts have different numbers of ranks, or are different machines on purpose.
    Do: on the hosts named compare nvidia-smi topo -m, nvidia-smi nvlink -s, ibstat and NCCL variables with the others.
    Sources: nccl release notes 2.21.5, 2.22.3, 2.24.3, 2.26.2; nccl: src/graph/connect.cc.
    """
    found = _differing(graph_search, channels, member, rank)
    yield from explain_by_dumps(found, fewer_nvlinks(device_pair, gpu_link), narrow_links(machine_device))


def _differing(
    graph_search: pl.DataFrame, channels: pl.DataFrame, member: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    here = pl.len().over("job", "key", "host")
    memberships = member.with_columns(here=here).select("job", "key", "rank_id", "here")
    rings = graph_search.filter(pl.col("pattern") == RING).join(memberships, on=["job", "key", "rank_id"])
    rings = rings.with_columns(total=pl.col("channels") * pl.min_horizontal("bw_intra", "bw_inter"))
    unequal = rings.filter(pl.col("total").n_unique().over("job", "key") > 1)
    worst: dict[str, pl.DataFrame] = {}
    for (job, _), rows in unequal.sort("source", "line").group_by("job", "key", maintain_order=True):
        hosts = rows.group_by("host", maintain_order=True).agg(pl.col("total").min())
        most, least = hosts["total"].max(), hosts["total"].min()
        below = hosts.filter(pl.col("total") <= DEGRADED_LINK * pl.lit(most))["host"]
        if rows["here"].n_unique() > 1 or most == least or not 0 < below.len() * 2 <= hosts.height:
            continue
        name = " ".join(sorted(below.cast(pl.String)))
        worst.setdefault(f"{job} {name}", rows.with_columns(is_slow=pl.col("host").is_in(below.implode())))
    for rows in worst.values():
        slow, others = rows.filter("is_slow"), rows.filter(~pl.col("is_slow"))
        finding = together(
            slow, rank, "the search for rings found less bandwidth on {who} than on the others",
            f"{_found(slow)} against {_found(others)}; the least binds all ranks", "likely",
        )  # fmt: skip
        finding.evidence.append(Line(others["source"][0], others["line"][0], "another host"))
        yield finding
    both = channels.join(member.select("job", "key", "rank_id", "host", "pid"), on=["job", "key", "rank_id"])
    both = both.filter(pl.col("coll").n_unique().over("job", "key") > 1)
    for _, rows in both.sort("source", "line").group_by("job", "key", maintain_order=True):
        counts = rows["coll"].value_counts().sort("count", "coll")
        odd = rows.filter(pl.col("coll") == counts["coll"][0])
        usual = counts["coll"][-1]
        finding = together(
            odd, rank, f"{{who}} opened {counts['coll'][0]} channels, the other ranks {usual}",
            "ranks of one communicator must open equally many", "likely", communicator=rows["key"][0],
        )  # fmt: skip
        other = rows.filter(pl.col("coll") == usual)
        finding.evidence.append(Line(other["source"][0], other["line"][0], "another rank"))
        yield finding


def _found(rows: pl.DataFrame) -> str:
    row = rows.sort("total").row(0, named=True)
    return f"{row['channels']} channels of {row['bw_intra']:g}/{row['bw_inter']:g} GB/s"


@rule(Category.CHANNEL_UNDERCOUNT, Severity.INFO, of=("channel_count",))
def chan_alltoall_few_per_peer(
    channel_count: pl.DataFrame, call_template: pl.DataFrame, placement: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Send and receive over many nodes, with one channel per peer.

    Means: since 2.20 NCCL gives each peer few channels; all-to-all over eight nodes and more can be slower for it.
    Not when: no call is a Send, Recv or all-to-all; fewer nodes; it is measured to be fast enough.
    Do: measure with NCCL_NCHANNELS_PER_NET_PEER=4.
    Sources: nccl#1272.
    """
    pairwise = call_template.filter(pl.col("called").is_in(PAIRWISE))
    nodes = placement["nnodes"].max()
    few = channel_count.filter(pl.col("perpeer") == 1)
    if pairwise.is_empty() or few.is_empty() or not isinstance(nodes, int) or nodes < MANY_NODES:
        return
    yield together(
        few, rank, "one channel per peer for Send and Recv on {who}",
        f"{nodes} nodes, and the calls go from peer to peer", "possible", role=Role.CONTEXT,
    )  # fmt: skip
