"""How ranks lie on hosts, rings on ranks, NICs beside GPUs, and processes on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import explain_by_dumps, merge_faults
from ncclforensics.rules.shared.grouping import shown, together
from ncclforensics.rules.shared.machine_faults import far_nics

RING = 4
FAR = "SYS"
NEAR = ["PIX", "PXB", "PXN", "P2C"]


def _seats(member: pl.DataFrame, communicator_placement: pl.DataFrame) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """The ranks, in order, of every communicator that is seen whole and spans several hosts."""
    spread = communicator_placement.filter((pl.col("ranks_seen") == pl.col("nranks")) & (pl.col("nodes") > 1))
    rows = member.join(spread.select("job", "key", "nodes", "local"), on=["job", "key"]).sort("rank")
    memberships: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows.to_dicts():
        memberships.setdefault((row["job"], row["key"]), []).append(row)
    return {key: held for key, held in memberships.items() if len({row["host"] for row in held}) == held[0]["nodes"]}


def _crossings(hosts: list[str]) -> int:
    """How often a closed walk over these changes the host."""
    return sum(a != b for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True))


@rule(Category.PLACEMENT, Severity.INFO, of=("communicator_placement",))
def place_ranks_not_contiguous(
    member: pl.DataFrame, communicator_placement: pl.DataFrame, placement: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The ranks of a host are not consecutive.

    Means: the launcher dealt ranks round over the hosts. NCCL orders its own rings by host; but frameworks build their
    groups of consecutive ranks, so that tensor parallelism may run over the network. It is a warning where a group that
    fits into one host is seen to span several.
    Not when: the hosts share an NVLink domain (MNNVL 1); one GPU per host; the groups were built for this order.
    Do: start ranks block by block (srun --distribution=block, mpirun --map-by ppr:N:node); check the groups.
    Sources: NCCL user guide, communicators; field guides.
    """
    joined = set(placement.filter(pl.col("mnnvl") == 1)["host"].cast(pl.String))
    numbers = dict(rank.select("rank_id", "rank").iter_rows())
    memberships = _seats(member, communicator_placement)
    worlds: dict[int, tuple[int, str]] = {}
    for job, key in memberships:
        is_dense = len(memberships[job, key]) > memberships[job, key][0]["nodes"]
        if is_dense and (job not in worlds or len(memberships[job, key]) > len(memberships[worlds[job]])):
            worlds[job] = job, key
    for job, place in worlds.items():
        held = memberships[place]
        hosts = [row["host"] for row in held]
        if _crossings(hosts) <= len(set(hosts)) or joined & set(hosts):
            continue
        split = []
        for (other, key), few in memberships.items():
            ours = sorted(numbers[row["rank_id"]] for row in few if numbers.get(row["rank_id"]) is not None)
            is_block = len(ours) == len(few) and ours == list(range(ours[0], ours[0] + len(ours)))
            if other == job and (other, key) != place and is_block and len(few) <= held[0]["local"]:
                split.append((ours, few))
        first = {row["host"]: row for row in reversed(held)}
        finding = Finding(
            title=f"ranks are dealt round over {len(set(hosts))} hosts",
            detail=f"ranks 0 to {len(first)} lie on " + ", ".join(hosts[: len(first) + 1]),
            certainty="certain",
            hosts=sorted(first),
            role=Role.CONTEXT,
            evidence=[Line(row["source"], row["line"], f"rank {row['rank']}") for row in held[:4]],
        )
        if split:
            ours, few = split[0]
            finding.severity, finding.role, finding.certainty = Severity.WARNING, Role.CAUSE, "likely"
            finding.title += f", and groups that fit into one host span several ({ranks_text(ours)})"
            finding.evidence = finding.evidence[:2] + [Line(row["source"], row["line"], "the group") for row in few[:2]]
        yield finding


@rule(Category.PLACEMENT, Severity.WARNING, of=("ring_host",))
def place_ring_crosses_too_often(
    ring: pl.DataFrame, ring_host: pl.DataFrame, placement: pl.DataFrame
) -> Iterator[Finding]:
    """A ring goes from host to host more often than it must.

    Means: every further crossing takes the network's bandwidth once more. NCCL's search failed and fell back to the
    order of ranks, or a graph file or another host identity (NCCL_HOSTID, containers) misled it.
    Not when: one GPU per host; the hosts share an NVLink domain; the line that shows the ring was cut.
    Do: NCCL_DEBUG_SUBSYS=INIT,GRAPH on rank 0; unset NCCL_GRAPH_FILE and NCCL_HOSTID; start ranks block by block.
    Sources: nccl: src/graph/connect.cc, src/graph/search.cc (falling back to simple order); nccl#514 (cut lines).
    """
    joined = placement.filter(pl.col("mnnvl") == 1).is_empty()
    worst = ring_host.filter((pl.col("host_changes") > pl.col("hosts")) & pl.lit(joined)).sort("source", "line")
    for _, rows in worst.group_by("job", "key", maintain_order=True):
        row = rows.row(0, named=True)
        yield Finding(
            title=f"rings change the host {row['host_changes']} times where {row['hosts']} would do",
            detail=f"{rows.height} rings over {row['nranks']} ranks; ring {row['channel']} runs {row['host_order']}",
            certainty="likely",
            communicator=row["key"],
            evidence=shown(rows, "ring"),
        )


@rule(Category.PLACEMENT, Severity.WARNING, of=("graph_search", "device_pair"))
def place_nic_far_from_gpu(
    graph_search: pl.DataFrame, communicator_placement: pl.DataFrame, device_pair: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The way from GPUs to their NICs leads over the link between CPUs.

    Means: NICs hang on another socket than the GPUs that use them: 20 to 40 % less bandwidth, and no GPUDirect.
    It is a warning where other hosts of the job do better, or most GPUs of the host; a note where all are alike.
    Not when: the ranks are on one host; a virtual machine shows no topology, and the vendor's file is not loaded.
    Do: nvidia-smi topo -m; choose GPUs and NICs of one socket; NCCL_IB_HCA; in a VM load the vendor's topology file.
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
    """Hosts whose search for rings found no shorter path."""
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
    detail = f"the path from GPU to NIC is {FAR}: over the link between CPUs"
    if near.is_empty():
        yield together(
            worse, rank, "GPUs reach their NICs over the other CPU on {who}", f"{detail}, on all hosts alike",
            "possible", severity=Severity.INFO, role=Role.CONTEXT,
        )  # fmt: skip
        return
    detail += f", and {near['type_inter'].cast(pl.String)[0]} on other hosts"
    finding = together(worse, rank, "GPUs reach their NICs over the other CPU on {who}", detail, "likely")
    finding.evidence = finding.evidence[:3] + shown(near, "another host")[:1]
    yield finding


@rule(Category.PLACEMENT, Severity.WARNING, of=("connection",))
def topo_nic_gpu_crossed(connection: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """On one host the GPUs use each other's NICs, compared with the other hosts.

    Means: devices are numbered in another order there (bridge enumeration, NCCL_IB_HCA, container); traffic changes
    rails, which some fabrics do not connect and others make slow.
    Not when: a GPU uses several NICs, or the hosts use different sets of NICs or GPUs: then nothing can be compared;
    hosts that are two in number do not tell which of them is right.
    Do: compare nvidia-smi topo -m and ibdev2netdev of the hosts; give NCCL_IB_HCA or a topology file; check the BIOS.
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
    for _, same in hosts.group_by("gpus", "devices", maintain_order=True):
        counts = same["pairs"].value_counts().sort("count", "pairs")
        if counts.height < 2 or counts["count"][-1] * 2 <= same.height:
            continue
        odd = same.filter(pl.col("pairs") != counts["pairs"][-1])
        rows = uses.join(odd.select("host"), on="host", how="semi")
        usual = uses.join(same.filter(pl.col("pairs") == counts["pairs"][-1]).head(1), on="host", how="semi")
        detail = f"GPU-NIC {odd['pairs'][0]} against {counts['pairs'][-1]} on the other hosts"
        finding = together(rows, rank, "GPUs use each other's NICs on {who}", detail, "likely")
        finding.evidence = finding.evidence[:2] + shown(usual, "another host")[:2]
        yield finding


@rule(Category.PLACEMENT, Severity.WARNING, of=("affinity",))
def affinity_missing(affinity: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Several ranks of a host are bound to the same single CPU.

    Means: the launcher's binding leaves the training thread and NCCL's proxy threads one core, shared with other ranks;
    small messages wait for the CPU.
    Not when: each rank has cores of its own; NCCL_IGNORE_CPU_AFFINITY=1 is set and the GPU's own cores are used.
    Do: mpirun --bind-to none or numa, srun --cpu-bind=none, or NCCL_IGNORE_CPU_AFFINITY=1.
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
        yield together(
            rows, rank, "{who} share one CPU core", f"CPUs {rows['mask'][0]}, for each of {rows.height} processes",
            "likely",
        )  # fmt: skip


def _cores(mask: str, is_set: bool) -> int | None:
    """How many CPUs a mask or list names; None where it can be read either way.

    >>> _cores("ffff,00000000", True), _cores("0-3,8", False), _cores("17", True)
    (16, 5, None)
    """
    as_list = 0
    for part in mask.split(","):
        first, _, last = part.partition("-")
        if not (first.isdigit() and (last.isdigit() or not last)):
            as_list = -1
            break
        as_list += int(last or first) - int(first) + 1
    if not is_set:
        return as_list if as_list >= 0 else None
    try:  # up to 2.27 a mask in hexadecimal, later a list
        as_mask = int(mask.replace(",", ""), 16).bit_count()
    except ValueError:
        return as_list if as_list >= 0 else None
    return as_mask if as_list < 0 or as_mask == as_list else None
