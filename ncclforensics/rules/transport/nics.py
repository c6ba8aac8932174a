"""NICs of a job: numbers that differ between hosts, and link types that do not fit together."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import shown
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines, first_value, group_finding


@rule(Category.TOPOLOGY, Severity.ERROR, of=("failure",), hang=True)
def net_device_count_differs(
    failure: pl.DataFrame, net_device_count: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks see different numbers of network devices, and NCCL stops.

    Means: a NIC is missing on some hosts: it failed, was not passed to the container, or does not match NCCL_IB_HCA.
    Not when: only CollNet devices differ, which NCCL ignores.
    Do: give all hosts the same HCAs, or restrict all of them with NCCL_IB_HCA. Do not set NCCL_IGNORE_NET_MISMATCH:
    ranks then hang on the NIC that their peer lacks.
    Sources: nccl: src/init.cc (2.30 and later); nccl#2428.
    """
    refused = failure.filter(pl.col("form") == "device_counts")
    if refused.is_empty():
        return
    least, most = first_value(refused["least"].sort()), first_value(refused["most"].sort(descending=True))
    counts = net_device_count.filter((pl.col("form") == "rank") & (pl.col("net_kind") == "Net"))
    fewer = counts.filter(pl.col("count") == pl.lit(least, pl.Int64)).unique(OWNER, keep="first", maintain_order=True)
    detail = f"the ranks see between {shown(least)} and {shown(most)} network devices"
    if fewer.is_empty() or fewer.height == counts.select(OWNER).n_unique():
        yield group_finding(
            refused, rank, "the hosts do not have the same number of network devices", detail, "certain"
        )
        return
    finding = group_finding(
        fewer, rank, f"{{processes}} see {shown(least)} network devices, other ranks {shown(most)}", detail, "certain"
    )
    finding.evidence = [*evidence_lines(refused, "refused")[:1], *finding.evidence[:3]]
    yield finding


@rule(Category.TOPOLOGY, Severity.WARNING, of=("failure", "ib_unusable"), hang=True)
def net_ignore_mismatch_silent_hang(
    setting: pl.DataFrame, failure: pl.DataFrame, ib_unusable: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks see different numbers of network devices, and a variable makes NCCL continue.

    Means: channels on the extra NIC have no peer: init completes, and the first transfer over them hangs without an
    error.
    Not when: the counts are equal.
    Do: unset NCCL_IGNORE_NET_MISMATCH and restore the missing device (device plugin, cgroup, port state).
    Sources: nccl#2428 (2.30 and later).
    """
    form, variable = pl.col("form"), pl.col("variable")
    is_net = pl.col("network") == "Net"
    counts = failure.filter((form == "device_counts_ignored") & is_net)
    ignored = setting.filter((variable == "NCCL_IGNORE_NET_MISMATCH") & (pl.col("value") == "1"))
    unopened = ib_unusable.filter(form == "open") if ignored.height else ib_unusable.clear()
    if counts.height:
        least, most = first_value(counts["least"].sort()), first_value(counts["most"].sort(descending=True))
        between = f"between {shown(least)} and {shown(most)} network devices"
        detail = f"NCCL_IGNORE_NET_MISMATCH is set, and the ranks see {between}"
        rows = counts
    elif unopened.height and unopened["host"].n_unique() < rank["host"].n_unique():
        detail = "NCCL_IGNORE_NET_MISMATCH is set, and these ranks could not open a device that other ranks have"
        rows = unopened
    else:
        return
    finding = group_finding(
        rows, rank, "{processes}: NCCL ignores different numbers of network devices", detail, "likely"
    )
    finding.evidence = [*evidence_lines(ignored, "set")[:1], *finding.evidence]
    yield finding


@rule(Category.IB_ERROR, Severity.ERROR, of=("ib_incompatible",), hang=True)
def net_link_type_mix(ib_incompatible: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NICs of different link types, InfiniBand and RoCE, cannot be connected.

    Means: the lists of NICs contain both link types, and the two ends of a connection use different ones; or a merged
    device has another number of ports at the other end.
    Not when: two local NICs only could not be merged into one device, which costs nothing but bandwidth.
    Do: restrict NCCL_IB_HCA to the NICs of one link type, on every host.
    Sources: nccl: src/transport/net_ib; nccl#1412.
    """
    form = pl.col("form")
    mismatched = ib_incompatible.filter(form.is_in(["connect", "remote", "layers"]))
    if mismatched.height:
        ends = mismatched.select(
            pl.col("device", "link", "other_device", "other_link").drop_nulls().first().cast(pl.String)
        )
        device, link, other, other_link = ends.row(0)
        pair = f"{device} ({link}) and {other or 'the remote one'} ({other_link})" if device and link else "the NICs"
        detail = f"{pair} have different link types; a list of NICs contains both InfiniBand and RoCE"
        yield group_finding(
            mismatched, rank, "{processes} cannot connect NICs of different link types", detail, "certain"
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("net_devices",))
def net_fewer_nics_than_node_has(
    net_devices: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame, expected_machine: pl.DataFrame
) -> Iterator[Finding]:
    """One host uses fewer NICs than all other hosts of its job, or hosts use fewer than the site expects.

    Means: a port is down, NCCL_IB_HCA omits a NIC, or the container got fewer devices; the job runs at the speed of
    that host.
    Not when: the other hosts differ in their number of NICs as well, and the site's configuration has no number; each
    process is restricted to one NIC by design.
    Do: compare ibdev2netdev or ibstat of that host with a healthy one; NCCL reports no typing error in NCCL_IB_HCA.
    Sources: llm-d-benchmark#1862, nccl#652, nccl#977.
    """
    processes = chosen_network.filter("is_rdma", "spans_nodes").select(*OWNER, "job").unique()
    listed = net_devices.filter(pl.col("form") == "ib").join(processes, on=OWNER)
    devices = text_of("devices")
    ports = devices.str.count_matches("/IB", literal=True) + devices.str.count_matches("/RoCE", literal=True)
    hosts = (
        listed.with_columns(ports=ports).group_by("job", "host").agg(pl.col("ports").max(), least=pl.col("ports").min())
    )
    expected = first_value(expected_machine["nics"])
    for (job,), rows in hosts.filter(pl.col("ports") == pl.col("least")).group_by("job", maintain_order=True):
        lines = listed.filter(pl.col("job") == job)
        if expected:
            for (ports,), few in rows.filter(pl.col("ports") < expected).group_by("ports", maintain_order=True):
                outliers = lines.join(few.select("host"), on="host", how="semi")
                title = f"{{processes}} use {ports} NICs, and the site expects {expected} on each host"
                detail = "the hosts with the fewest NICs limit the speed of all"
                yield group_finding(outliers.unique(OWNER, maintain_order=True), rank, title, detail, "likely")
            continue
        usual = first_value(rows["ports"].mode().sort(descending=True))
        fewer = rows.filter(pl.col("ports") < usual)
        if not fewer.height or rows.filter(pl.col("ports") == usual).height != rows.height - 1 or rows.height < 3:
            continue
        outliers = lines.join(fewer.select("host"), on="host", how="semi").unique(
            OWNER, keep="first", maintain_order=True
        )
        title = f"{{processes}} use {fewer['ports'][0]} NICs, the other {rows.height - 1} hosts {usual} each"
        finding = group_finding(outliers, rank, title, "the host with fewer NICs limits the speed of all", "likely")
        others = lines.join(fewer.select("host"), on="host", how="anti")
        finding.evidence = [*finding.evidence[:2], *evidence_lines(others, "another host")[:1]]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("net_devices",))
def net_management_nic_included(
    net_devices: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The list of NICs contains both InfiniBand and RoCE ports.

    Means: a storage or management port may be part of the data path, which becomes slow or hangs.
    Not when: NCCL_IB_HCA lists both by design; the job runs on one host.
    Do: restrict NCCL to the NICs of the data path: NCCL_IB_HCA=^mlx5_bond_0, or an exact list with a leading =.
    Sources: nccl#1412, nccl#302, nccl#224.
    """
    spanning = chosen_network.filter("is_rdma", "spans_nodes").select(OWNER).unique()
    names = text_of("devices")
    is_mixed = names.str.contains("/IB", literal=True) & names.str.contains("/RoCE", literal=True)
    mixed = net_devices.filter((pl.col("form") == "ib") & is_mixed).join(spanning, on=OWNER, how="semi")
    for (devices,), rows in mixed.sort("source", "line").group_by("devices", maintain_order=True):
        title = "{processes} may use NICs of two link types"
        yield group_finding(rows, rank, title, f"NCCL uses {devices}", "possible", role=Role.CONTEXT)
