"""Placement of ranks on hosts, of rings, of NICs relative to GPUs, and of processes on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.grammar.values import numbers_of_ranges, parse_value
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import explain_by_dumps, merge_faults
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding
from ncclforensics.rules.shared.machine_faults import far_nics

RING = 4
FAR = "SYS"
NEAR = ["PIX", "PXB", "PXN", "P2C"]


def _members_by_communicator(
    member: pl.DataFrame, communicator_placement: pl.DataFrame
) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """The members, by rank, of every communicator on several hosts of which all ranks have a log and a number."""
    spread = communicator_placement.filter((pl.col("ranks_seen") == pl.col("nranks")) & (pl.col("nodes") > 1))
    rows = member.join(spread.select("job", "key", "nodes", "local"), on=["job", "key"]).sort("rank")
    memberships: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows.to_dicts():
        memberships.setdefault((row["job"], row["key"]), []).append(row)
    return {
        communicator: members
        for communicator, members in memberships.items()
        if len({row["host"] for row in members}) == members[0]["nodes"]
        and all(row["rank"] is not None and row["line"] is not None for row in members)
    }


def _host_changes(hosts: list[str]) -> int:
    """Count the hops between hosts along a closed ring over these."""
    return sum(a != b for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True))


@rule(Category.PLACEMENT, Severity.INFO, of=("communicator_placement",))
def place_ranks_not_contiguous(
    member: pl.DataFrame, communicator_placement: pl.DataFrame, placement: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The ranks of a host are not consecutive.

    Means: the launcher distributed the ranks cyclically over the hosts. NCCL orders its own rings by host, but
    frameworks build groups of consecutive ranks, so that tensor parallelism may run over the network. It is a warning
    if a group that fits on one host spans several.
    Not when: the hosts share an NVLink domain (MNNVL 1); there is one GPU per host; the groups were built for this
    order.
    Do: place ranks in blocks (srun --distribution=block, mpirun --map-by ppr:N:node); check the groups.
    Sources: NCCL user guide, communicators; field guides.
    """
    mnnvl_hosts = set(placement.filter(pl.col("mnnvl") == 1)["host"].cast(pl.String))
    numbers = dict(rank.select("rank_id", "rank").iter_rows())
    memberships = _members_by_communicator(member, communicator_placement)
    worlds: dict[int, tuple[int, str]] = {}
    for job, key in memberships:
        is_dense = len(memberships[job, key]) > memberships[job, key][0]["nodes"]
        if is_dense and (job not in worlds or len(memberships[job, key]) > len(memberships[worlds[job]])):
            worlds[job] = job, key
    for job, world in worlds.items():
        members = memberships[world]
        hosts = [row["host"] for row in members]
        if _host_changes(hosts) <= len(set(hosts)) or mnnvl_hosts & set(hosts):
            continue
        split = []
        for group, group_members in memberships.items():
            ranks = sorted(numbers[row["rank_id"]] for row in group_members if numbers.get(row["rank_id"]) is not None)
            is_block = len(ranks) == len(group_members) and ranks == list(range(ranks[0], ranks[0] + len(ranks)))
            fits_on_host = len(group_members) <= members[0]["local"]
            if group[0] == job and group != world and is_block and fits_on_host:
                split.append((ranks, group_members))
        first = {row["host"]: row for row in reversed(members)}
        finding = Finding(
            title=f"ranks are distributed cyclically over {len(set(hosts))} hosts",
            detail=f"ranks 0 to {len(first)} are on " + ", ".join(hosts[: len(first) + 1]),
            certainty="certain",
            hosts=sorted(first),
            role=Role.CONTEXT,
            evidence=[Line(row["source"], row["line"], f"rank {row['rank']}") for row in members[:4]],
        )
        if split:
            ranks, group_members = min(split, key=itemgetter(0))
            finding.severity, finding.role, finding.certainty = Severity.WARNING, Role.CAUSE, "likely"
            finding.title += f", and groups that fit on one host span several ({ranks_text(ranks)})"
            finding.evidence = finding.evidence[:2] + [
                Line(row["source"], row["line"], "the group") for row in group_members[:2]
            ]
        yield finding


@rule(Category.PLACEMENT, Severity.WARNING, of=("ring_host",))
def place_ring_crosses_too_often(
    ring: pl.DataFrame, ring_host: pl.DataFrame, placement: pl.DataFrame
) -> Iterator[Finding]:
    """A ring has more hops between hosts than necessary.

    Means: every additional hop uses the bandwidth of the network once more. NCCL's graph search failed and fell back to
    the order of ranks, or a graph file or another host identity (NCCL_HOSTID, containers) misled it.
    Not when: there is one GPU per host; the hosts share an NVLink domain; the line of the ring is cut off.
    Do: run with NCCL_DEBUG_SUBSYS=INIT,GRAPH on rank 0; unset NCCL_GRAPH_FILE and NCCL_HOSTID; place ranks in blocks.
    Sources: nccl: src/graph/connect.cc, src/graph/search.cc (falling back to simple order); nccl#514 (cut lines).
    """
    is_without_mnnvl = placement.filter(pl.col("mnnvl") == 1).is_empty()
    worst = ring_host.filter((pl.col("host_changes") > pl.col("hosts")) & pl.lit(is_without_mnnvl)).sort(
        "source", "line"
    )
    for _, rows in worst.group_by("job", "key", maintain_order=True):
        row = rows.row(0, named=True)
        title = f"rings have {row['host_changes']} hops between hosts, {row['hosts']} would suffice"
        detail = f"{rows.height} rings over {row['nranks']} ranks; ring {row['channel']}: {row['host_order']}"
        yield Finding(title, detail, "likely", communicator=row["key"], evidence=evidence_lines(rows, "ring"))


@rule(Category.PLACEMENT, Severity.WARNING, of=("graph_search", "device_pair"))
def place_nic_far_from_gpu(
    graph_search: pl.DataFrame, communicator_placement: pl.DataFrame, device_pair: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The path from GPUs to their NICs crosses the link between CPUs.

    Means: the NICs are on another socket than the GPUs that use them: 20 to 40 % less bandwidth, and no GPUDirect RDMA.
    It is a warning if other hosts of the job, or most GPUs of the host, have shorter paths; else info.
    Not when: the ranks are on one host; a virtual machine shows no topology, and the vendor's file is not loaded.
    Do: run nvidia-smi topo -m; use GPUs and NICs of one socket (NCCL_IB_HCA); in a VM load the vendor's topology file.
    Sources: field guides (NIC on the other NUMA node); NCCL user guide, NCCL_NET_GDR_LEVEL.
    """
    found = list(
        explain_by_dumps(
            _far_nics_in_logs(graph_search, communicator_placement, rank), far_nics(device_pair), role=Role.CAUSE
        )
    )
    known = {host for finding in found for host in finding.hosts}
    yield from found
    yield from merge_faults((host, fault) for host, fault in far_nics(device_pair) if host not in known)


def _far_nics_in_logs(
    graph_search: pl.DataFrame, communicator_placement: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Find hosts on which the graph search found no path within a socket."""
    spread = communicator_placement.filter(pl.col("nodes") > 1).select("job", "key")
    rings = (
        graph_search.filter(pl.col("pattern") == RING)
        .join(spread, on=["job", "key"], how="semi")
        .sort("source", "line")
    )
    path = pl.col("type_inter")
    far, near = rings.filter(path == FAR), rings.filter(path.is_in(NEAR))
    worse = far.filter(~pl.col("host").is_in(near["host"].implode()))
    if worse.is_empty():
        return
    detail = f"the path from GPU to NIC is {FAR}: it crosses the link between CPUs"
    if near.is_empty():
        yield group_finding(
            worse, rank, "the path from GPUs to NICs crosses the CPU link on {processes}", f"{detail}, on all hosts",
            "possible", severity=Severity.INFO, role=Role.CONTEXT,
        )  # fmt: skip
        return
    detail += f", and {near['type_inter'].cast(pl.String)[0]} on other hosts"
    finding = group_finding(
        worse, rank, "the path from GPUs to NICs crosses the CPU link on {processes}", detail, "likely"
    )
    finding.evidence = finding.evidence[:3] + evidence_lines(near, "another host")[:1]
    yield finding


@rule(Category.PLACEMENT, Severity.WARNING, of=("connection",))
def topo_nic_gpu_crossed(connection: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """On one host the GPUs use each other's NICs, compared with the other hosts.

    Means: the devices of that host are numbered in another order (bridge enumeration, NCCL_IB_HCA, container); traffic
    changes rails, which is slow on some fabrics and impossible on others.
    Not when: a GPU uses several NICs, or the hosts use different sets of NICs or GPUs: then they are not compared; the
    job has only two hosts, which do not show the normal order.
    Do: compare nvidia-smi topo -m and ibdev2netdev of the hosts; set NCCL_IB_HCA or a topology file; check the BIOS.
    Sources: nccl#820, nccl#2193, nccl#1933.
    """
    sent = connection.filter(
        (pl.col("form") == "net") & (pl.col("direction") == "send")
        & pl.col("netdev").is_not_null() & pl.col("proxy").is_null()
    ).sort("source", "line")  # fmt: skip
    uses = sent.group_by("host", "fromdev", maintain_order=True).agg(
        pl.col("netdev").n_unique().alias("nics"), pl.col("netdev").first(), pl.col("pid", "source", "line").first()
    )
    hosts = (
        uses.with_columns(text_of("fromdev"))
        .sort("fromdev")
        .group_by("host", maintain_order=True)
        .agg(
            pl.col("nics").max(),
            pl.col("fromdev").str.join(" ").alias("gpus"),
            pl.col("netdev").sort().cast(pl.String).str.join(" ").alias("devices"),
            pl.format("{}-{}", "fromdev", "netdev").str.join(" ").alias("pairs"),
        )
        .filter((pl.col("nics") == 1) & pl.col("gpus").str.contains(" ", literal=True))
    )
    for _, similar in hosts.group_by("gpus", "devices", maintain_order=True):
        counts = similar["pairs"].value_counts().sort("count", "pairs")
        if counts.height < 2 or counts["count"][-1] * 2 <= similar.height:
            continue
        outliers = similar.filter(pl.col("pairs") != counts["pairs"][-1])
        rows = uses.join(outliers.select("host"), on="host", how="semi")
        usual = uses.join(similar.filter(pl.col("pairs") == counts["pairs"][-1]).head(1), on="host", how="semi")
        detail = f"GPU-NIC {outliers['pairs'][0]} against {counts['pairs'][-1]} on the other hosts"
        finding = group_finding(rows, rank, "GPUs use each other's NICs on {processes}", detail, "likely")
        finding.evidence = finding.evidence[:2] + evidence_lines(usual, "another host")[:2]
        yield finding


@rule(Category.PLACEMENT, Severity.WARNING, of=("affinity",))
def affinity_missing(affinity: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Several ranks of a host are bound to the same single CPU.

    Means: the binding of the launcher leaves one core for the training and NCCL proxy threads of several ranks; small
    messages wait for the CPU.
    Not when: each rank has its own cores; NCCL_IGNORE_CPU_AFFINITY=1 is set and NCCL uses the cores next to the GPU.
    Do: start with mpirun --bind-to none or numa, srun --cpu-bind=none, or NCCL_IGNORE_CPU_AFFINITY=1.
    Sources: NCCL user guide, performance (affinity); nccl-tests#264.
    """
    bound = affinity.with_columns(mask=pl.coalesce(pl.col("allowed", "cpus").cast(pl.String)))
    bound = bound.filter(pl.col("form").is_in(["set", "chosen", "empty"]) & pl.col("mask").is_not_null()).sort(
        "source", "line"
    )
    bound = bound.unique(OWNER, keep="first", maintain_order=True)
    cores = {mask: _cores(mask, is_set) for mask, is_set in bound.select(
        "mask", pl.col("form") == "set").unique().iter_rows()}  # fmt: skip
    narrow = bound.filter(pl.col("mask").is_in([mask for mask, count in cores.items() if count == 1]))
    crowded = narrow.filter(pl.len().over("host", "mask") > 1)
    for _, rows in crowded.group_by("mask", maintain_order=True):
        yield group_finding(
            rows, rank, "{processes} share one CPU core",
            f"CPUs {rows['mask'][0]}, for each of {rows.height} processes", "likely",
        )  # fmt: skip


def _cores(mask: str, is_set: bool) -> int | None:
    """Count the CPUs of a mask or list; None for a text that is valid as both.

    >>> _cores("ffff,00000000", True), _cores("0-3,8", False), _cores("17", True)
    (16, 5, None)
    """
    is_list = parse_value(mask, "cpu_list") is not None
    as_list = sum(1 for _ in numbers_of_ranges(mask)) if is_list else None
    if not is_set or parse_value(mask, "cpu_mask") is None:
        return as_list
    as_mask = int(mask.replace(",", ""), 16).bit_count()  # up to 2.27 a mask in hexadecimal, later a list
    return as_mask if as_list is None or as_mask == as_list else None
