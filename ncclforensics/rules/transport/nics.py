"""The NICs that NCCL may use: fewer on some hosts than on others, or of kinds that do not go together."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import first, shown, together


@rule(Category.TOPOLOGY, Severity.ERROR, of=("failure",), hang=True)
def net_device_count_differs(
    failure: pl.DataFrame, net_device_count: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks see different numbers of network devices, and NCCL refuses to go on.

    Means: a NIC is missing on some hosts: dead, not given to the container, or named otherwise than NCCL_IB_HCA says.
    Not when: only CollNet devices differ, which NCCL ignores.
    Do: give all hosts the same HCAs, or restrict all of them with NCCL_IB_HCA. Do not set NCCL_IGNORE_NET_MISMATCH:
    ranks then wait for ever on the NIC that their peer lacks.
    Sources: nccl: src/init.cc (2.30 and later); nccl#2428.
    """
    refused = failure.filter(pl.col("form") == "device_counts")
    if refused.is_empty():
        return
    least, most = first(refused["least"].sort()), first(refused["most"].sort(descending=True))
    counts = net_device_count.filter((pl.col("form") == "rank") & (pl.col("net_kind") == "Net"))
    fewer = counts.filter(pl.col("count") == least).unique(OWNER, keep="first", maintain_order=True)
    detail = f"the ranks see between {least} and {most} network devices"
    if fewer.is_empty() or fewer.height == counts.select(OWNER).n_unique():
        yield together(refused, rank, "the hosts do not have the same number of network devices", detail, "certain")
        return
    finding = together(fewer, rank, f"{{who}} see {least} network devices, other ranks {most}", detail, "certain")
    finding.evidence = [*shown(refused, "refused")[:1], *finding.evidence[:3]]
    yield finding


@rule(Category.TOPOLOGY, Severity.WARNING, of=("failure", "ib_unusable"), hang=True)
def net_ignore_mismatch_silent_hang(
    setting: pl.DataFrame, failure: pl.DataFrame, ib_unusable: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks see different numbers of network devices, and a variable makes NCCL go on all the same.

    Means: channels on the extra NIC have no peer: init ends well, and the first transfer over them spins for ever
    without an error.
    Not when: the counts agree.
    Do: unset NCCL_IGNORE_NET_MISMATCH and mend the missing device (device plugin, cgroup, port state).
    Sources: nccl#2428 (2.30 and later).
    """
    form, variable = pl.col("form"), pl.col("variable")
    is_net = pl.col("network") == "Net"
    counts = failure.filter((form == "device_counts_ignored") & is_net)
    told = setting.filter((variable == "NCCL_IGNORE_NET_MISMATCH") & (pl.col("value") == "1"))
    shut = ib_unusable.filter(form == "open") if told.height else ib_unusable.clear()
    if counts.height:
        least, most = first(counts["least"].sort()), first(counts["most"].sort(descending=True))
        detail = f"NCCL_IGNORE_NET_MISMATCH is set, and the ranks see between {least} and {most} network devices"
        rows = counts
    elif shut.height and shut["host"].n_unique() < rank["host"].n_unique():
        detail = "NCCL_IGNORE_NET_MISMATCH is set, and these could not open a device that others have"
        rows = shut
    else:
        return
    finding = together(rows, rank, "{who}: a difference in network devices is ignored", detail, "likely")
    finding.evidence = [*shown(told, "set")[:1], *finding.evidence]
    yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("ib_incompatible",), hang=True)
def net_link_type_mix(ib_incompatible: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NICs that do not go together were to be connected: InfiniBand with RoCE.

    Means: the lists of NICs hold both link types, and the two ends of a connection took different ones; or a merged
    device has another number of ports on the other side.
    Not when: two local NICs merely could not be merged into one, which costs bandwidth but nothing else.
    Do: restrict NCCL_IB_HCA to the NICs of one link type, on every host.
    Sources: nccl: src/transport/net_ib; nccl#1412.
    """
    form = pl.col("form")
    apart = ib_incompatible.filter(form.is_in(["connect", "remote", "layers"]))
    if apart.height:
        first = apart.select(
            pl.col("device", "link", "other_device", "other_link").drop_nulls().first().cast(pl.String)
        )
        device, link, other, other_link = first.row(0)
        pair = f"{device} ({link}) and {other or 'the remote one'} ({other_link})" if device and link else "the NICs"
        detail = f"{pair} have different link types; one list holds both InfiniBand and RoCE"
        yield together(apart, rank, "{who} cannot connect NICs of different link types", detail, "certain")


@rule(Category.TOPOLOGY, Severity.WARNING, of=("net_devices",))
def net_fewer_nics_than_node_has(
    net_devices: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """One host uses fewer NICs than all the others of its job.

    Means: a port is down, NCCL_IB_HCA misses a name there, or the container got fewer devices; the whole job runs at
    the speed of that host.
    Not when: the hosts are of different kinds, so that no number of NICs is that of all others; a process was meant to
    see its own NIC only.
    Do: on that host compare ibdev2netdev or ibstat with a healthy one; a name mistyped in NCCL_IB_HCA is not reported.
    Sources: llm-d-benchmark#1862, nccl#652, nccl#977.
    """
    ours = chosen_network.filter("is_rdma", "spans_nodes").select(*OWNER, "job").unique()
    listed = net_devices.filter(pl.col("form") == "ib").join(ours, on=OWNER)
    devices = text_of("devices")
    ports = devices.str.count_matches("/IB", literal=True) + devices.str.count_matches("/RoCE", literal=True)
    hosts = (
        listed.with_columns(ports=ports).group_by("job", "host").agg(pl.col("ports").max(), least=pl.col("ports").min())
    )
    for (job,), rows in hosts.filter(pl.col("ports") == pl.col("least")).group_by("job", maintain_order=True):
        usual = first(rows["ports"].mode().sort(descending=True))
        poor = rows.filter(pl.col("ports") < usual)
        if not poor.height or rows.filter(pl.col("ports") == usual).height != rows.height - 1 or rows.height < 3:
            continue
        lines = listed.filter(pl.col("job") == job)
        found = lines.join(poor.select("host"), on="host", how="semi").unique(OWNER, keep="first", maintain_order=True)
        title = f"{{who}} use {poor['ports'][0]} NICs, the other {rows.height - 1} hosts {usual} each"
        finding = together(found, rank, title, "the host with fewer NICs binds the speed of all", "likely")
        others = lines.join(poor.select("host"), on="host", how="anti")
        finding.evidence = [*finding.evidence[:2], *shown(others, "another host")[:1]]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("net_devices",))
def net_management_nic_included(
    net_devices: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The list of NICs holds both InfiniBand and RoCE ports.

    Means: a storage or management port may have joined the data path, which makes it slow or lets it hang.
    Not when: NCCL_IB_HCA was meant to hold both; the job runs on one host.
    Do: name the NICs of the data path: NCCL_IB_HCA=^mlx5_bond_0, or an exact list with a leading =.
    Sources: nccl#1412, nccl#302, nccl#224.
    """
    apart = chosen_network.filter("is_rdma", "spans_nodes").select(OWNER).unique()
    names = text_of("devices")
    both = names.str.contains("/IB", literal=True) & names.str.contains("/RoCE", literal=True)
    mixed = net_devices.filter((pl.col("form") == "ib") & both).join(apart, on=OWNER, how="semi")
    for (devices,), rows in mixed.sort("source", "line").group_by("devices", maintain_order=True):
        title = "{who} may send data over NICs of two link types"
        yield together(rows, rank, title, f"NCCL uses {devices}", "possible", role=Role.CONTEXT)
