"""Bandwidth tests of one network link (perftest) and of GPU pairs (nvbandwidth, p2pBandwidthLatencyTest)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import median

import polars as pl

from ncclforensics.data.busbw import (
    EVEN_SHARE,
    EVEN_WITHIN,
    FEWEST_PAIRS,
    LARGE_MESSAGE,
    PAIR_BAD,
    PAIR_SHARE,
    PEER_ACCESS_GAIN,
    SLOW_PAIR,
    link_of,
)
from ncclforensics.data.names import bandwidth_text, bytes_text, count_of, some_of
from ncclforensics.data.verbs import CM_EVENTS, STATUS
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.benchmark_text import between_gpus, drop_from, pairs_of_others, tested_ends
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("gpu_pair",))
def bench_pair_below_others(gpu_pair: pl.DataFrame, pair_host: pl.DataFrame) -> Iterator[Finding]:
    """Some pairs of GPUs, ranks or hosts are slower than all other pairs, which are equally fast.

    Means: the links of one GPU, one host, or one direction, are degraded: NVLink lanes that are down, a switch, a NIC
    or a cable, a PCIe slot with too few lanes.
    Not when: GPUs of a host are linked only partly, in pairs, or through CPUs, where such differences are normal;
    fewer than three were measured; peer access was switched off for the test; it was a rehearsal over sockets.
    Do: check nvidia-smi nvlink -s and -e of these GPUs, ibstat and the counters of these hosts; nvidia-smi topo -m;
    dmesg -T | grep -i xid; test again.
    Sources: NVIDIA/nvbandwidth; cuda-samples, p2pBandwidthLatencyTest; field guides.
    """
    cells = gpu_pair.filter(
        (pl.col("kind") == "bandwidth")
        & (pl.col("row") != pl.col("column"))
        & pl.col("has_peer_access").fill_null(True)
    )
    for _, rows in cells.group_by("matrix", maintain_order=True):
        others = pairs_of_others(rows)
        usual = median(others["value"])
        near = sum(abs(value - usual) <= EVEN_WITHIN * usual for value in others["value"])
        is_even = near >= EVEN_SHARE * others.height
        slow = rows.filter(pl.col("value") < SLOW_PAIR * usual).sort("value")
        if rows.height < FEWEST_PAIRS or not is_even or slow.is_empty():
            continue
        unit = rows["ends"][0]
        cells_of_pairs = [(row["row"], row["column"]) for row in slow.to_dicts()]
        # A capture measures both directions at once, and prints the value twice.
        pairs = cells_of_pairs if unit == "GPU" else list(dict.fromkeys(tuple(sorted(pair)) for pair in cells_of_pairs))
        common = set.intersection(*(set(pair) for pair in pairs))
        worst = slow.row(0, named=True)
        listed = pair_host.filter(pl.col("source") == worst["source"])
        compared = "all" if others.height == rows.height else "the other"
        name_of = dict(zip(listed["nth"], listed["host"].cast(pl.String), strict=True)) if unit == "host" else {}
        names = some_of([f"{name_of.get(a, a)} to {name_of.get(b, b)}" for a, b in pairs], SHOWN)
        is_one_end = len(pairs) > 1 and len(common) == 1
        named = sorted(common if is_one_end else {end for pair in pairs for end in pair})
        hosts = list(map(str, filter(None, map(name_of.get, named)))) if name_of else _hosts_of_ranks(listed, named)
        where = f" on {hosts[0]}" if unit == "rank" and hosts else ""
        yield Finding(
            title=f"all slow {unit} pairs include {unit} {name_of.get(named[0], named[0])}{where}: {names}"
            if is_one_end
            else f"slow {unit} pair: {names}",
            detail=f"{bandwidth_text(worst['value'])}; the median of {compared} pairs is {bandwidth_text(usual)} "
            f"({worst['test'] or worst['tool']})",
            certainty="likely",
            ranks=named if unit == "rank" else [],
            hosts=hosts,
            evidence=evidence_lines(slow),
        )


def _hosts_of_ranks(pair_host: pl.DataFrame, ranks: list[int]) -> list[str]:
    """Return the hosts of ranks, as a capture lists them."""
    numbers = pl.col("ranks").cast(pl.String).str.split(", ").cast(pl.List(pl.Int32))
    with_ranks = pair_host.with_columns(numbers).explode("ranks")
    return with_ranks.filter(pl.col("ranks").is_in(ranks))["host"].cast(pl.String).unique(maintain_order=True).to_list()


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("gpu_pair",))
def bench_peer_access_slower(gpu_pair: pl.DataFrame) -> Iterator[Finding]:
    """GPUs copy more slowly with peer-to-peer access than through host memory.

    Means: transfers between the GPUs pass through the CPU's root complex one packet at a time, or are redirected by
    PCIe access control (ACS), the IOMMU or a virtual machine. NCCL uses this path unless it is told not to.
    Not when: it is less than a fifth; the GPUs are linked by NVLink, where peer access is many times faster.
    Do: turn ACS off and boot with iommu=pt; on such a machine compare NCCL_P2P_DISABLE=1, or NCCL_P2P_LEVEL=PXB.
    Sources: cuda-samples, p2pBandwidthLatencyTest; nccl#814; NCCL documentation, troubleshooting (ACS).
    """
    cells = gpu_pair.filter((pl.col("kind") == "bandwidth") & (pl.col("row") != pl.col("column")))
    tests = cells.drop_nulls("has_peer_access").with_columns(direction=pl.col("test").str.split(" ").list.first())
    for (_, direction), rows in tests.group_by("source", "direction", maintain_order=True):
        of = {has_access: of_kind for (has_access,), of_kind in rows.group_by("has_peer_access")}
        if set(of) != {False, True}:
            continue
        peer, through_host = (median(of[has_access]["value"]) for has_access in (True, False))
        if peer >= PEER_ACCESS_GAIN * through_host:
            continue
        yield Finding(
            title=f"peer-to-peer access (P2P) makes pairs of GPUs slower: {bandwidth_text(peer)}, and "
            f"{bandwidth_text(through_host)} without it",
            detail=f"{peer / through_host:.0%} by the medians of all pairs ({str(direction).lower()}), "
            f"{bandwidth_text(min(of[True]['value']))} to {bandwidth_text(max(of[True]['value']))}; no GPU alone makes "
            "the difference, but the path between them",
            certainty="likely",
            evidence=[*evidence_lines(of[True])[:2], *evidence_lines(of[False])[:1]],
        )


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("gpu_pair",))
def bench_pairs_below_links(gpu_pair: pl.DataFrame, pair_device: pl.DataFrame) -> Iterator[Finding]:
    """All pairs of GPUs of a host that has NVLink or xGMI carry no more than PCIe does.

    Means: the links between the GPUs are not used: they are down, switched off (NVreg_NvLinkDisable), the fabric
    manager does not run, or a virtual machine or container does not see them.
    Not when: the GPU is a PCIe card, whose name differs; some pairs have no link by design (V100); peer access is off,
    or was not tested. Figures of specifications, such as 900 GB/s of an H100, count both directions: one has half,
    and of tests that add both directions half is compared.
    Do: nvidia-smi nvlink -s; nvidia-smi topo -m; nvidia-smi -q (Fabric); systemctl status nvidia-fabricmanager.
    Sources: NVIDIA H100 and A100 data sheets; CSCS Alps (boards of four); cuda-samples, p2pBandwidthLatencyTest.
    """
    pairs = between_gpus(gpu_pair, pair_device).filter(pl.col("has_peer_access").fill_null(True))
    for _, rows in pairs.group_by("source", maintain_order=True):
        model = rows["model"][0]
        link, share = link_of(model), PAIR_SHARE.get(model)
        one_way = pl.col("value") / pl.when("is_sum_of_both_ways").then(2).otherwise(1)
        fastest = rows.group_by("matrix").agg(one_way.median()).sort("value", "matrix").tail(1)
        best = float(fastest["value"][0])
        if link is None or share is None or best >= PAIR_BAD * share * link[0]:
            continue
        yield Finding(
            title=f"pairs of {model} carry {bandwidth_text(best)}: what PCIe carries, and not the links between them",
            detail=f"the links of such a GPU carry {link[0]:.0f} GB/s one way, {link[0] * share:.0f} or more of them "
            "between any two; this is the median of all pairs in the fastest test, one way",
            certainty="likely",
            evidence=evidence_lines(rows.join(fastest, on="matrix", how="semi", maintain_order="left")),
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("pair_waived",), role=Role.CONTEXT)
def bench_pair_test_waived(pair_waived: pl.DataFrame, pair_test: pl.DataFrame) -> Iterator[Finding]:
    """Nvbandwidth did not run a test, because the machine lacks what it measures.

    Means: tests between GPUs need two of them with peer-to-peer access, multicast tests NVSwitches, tests of several
    nodes one NVLink domain. Nothing was measured.
    Not when: the test ran, which its matrix shows.
    Do: nvidia-smi topo -p2p r shows between which GPUs the driver allows peer access, and why not.
    Sources: NVIDIA/nvbandwidth, testcases.cpp (filter, WaivedException).
    """
    tests = pair_test.select("source", "pos", running="test").sort("pos")
    waived = pair_waived.sort("pos").join_asof(tests, on="pos", by="source", check_sortedness=False)
    named = waived.with_columns(name=pl.coalesce(text_of("test"), text_of("running")))
    for _, rows in named.group_by("source", maintain_order=True):
        names = rows["name"].drop_nulls().unique(maintain_order=True)
        reason = "the machine lacks what the test needs"
        if names.str.contains("device_to_device", literal=True).any():
            reason = "the driver allows no peer-to-peer access between these GPUs, or there is only one"
        yield Finding(
            title=f"nvbandwidth waived {', '.join(names.head(SHOWN)) or 'a test'}: it was not measured, because "
            + reason,
            detail="nothing was measured",
            certainty="certain",
            evidence=evidence_lines(rows),
        )


MAPPING = ("cuMemSetAccess", "cuMemCreate", "cuMemImportFromShareableHandle", "cuMulticastCreate")


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("pair_failure",))
def bench_pair_test_failed(pair_failure: pl.DataFrame, pair_test: pl.DataFrame) -> Iterator[Finding]:
    """Nvbandwidth ended with an error of CUDA, or received other data than it sent.

    Means: a call of CUDA was refused: between nodes mostly because they are not in one NVLink domain, or IMEX does
    not run on them. Data that differ mean that a path between GPUs corrupts them, mostly under PCIe access control
    (ACS) or an IOMMU, or that a link or memory is broken.
    Not when: the test was waived.
    Do: between nodes: systemctl status nvidia-imex, and nvidia-imex-ctl -N; for wrong data turn ACS off, test each
    pair of GPUs alone, and look for Xid in dmesg.
    Sources: NVIDIA/nvbandwidth, error_handling.h and memcpy.cpp; nvbandwidth#19, #34, #44.
    """
    tests = pair_test.select("source", "pos", test="test").sort("pos")
    rows = pair_failure.sort("pos").join_asof(tests, on="pos", by="source", check_sortedness=False)
    named = rows.filter(text_of("form") != "assertion")
    for (form, result, call, test), alike in named.group_by(
        text_of("form"), text_of("result"), text_of("call"), text_of("test"), maintain_order=True
    ):
        of_test = f"{test} " if test else ""
        hosts = alike["node"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
        ranks = alike["rank"].drop_nulls().unique(maintain_order=True).to_list()
        if form == "pattern":
            title, detail = f"nvbandwidth: {of_test}failed: data arrived wrong", "the test compares what it copied"
        else:
            where = f" on {', '.join(hosts[:SHOWN])}" * bool(hosts)
            where += f" (rank {', '.join(map(str, ranks[:SHOWN]))})" * bool(ranks)
            reason = str(result).removeprefix("CUDA_ERROR_").lower().replace("_", " ")
            title = f"nvbandwidth: {of_test}failed{where}: {reason}" + f" in {call}" * bool(call)
            is_mapping = call in MAPPING and bool(hosts)
            detail = f"{result}" + "; memory of the other node cannot be mapped here" * is_mapping
        yield Finding(title, detail, "certain", hosts=hosts, evidence=evidence_lines(alike))


FLUSHED = 5  # a status: the request was dropped, as an earlier one had failed
ENDS = {
    "registration": ("it could not register its buffer with the NIC", Severity.ERROR),
    "port": ("port {port} is {port_state}", Severity.ERROR),
    "no_device": ("the NIC that it was told to use was not found", Severity.ERROR),
    "unconnected": ("the queue pairs of its two ends were not connected", Severity.ERROR),
    "no_gid": ("its port has no GID of index {gid}", Severity.ERROR),
    "refused": ("{peer} did not answer", Severity.INFO),
    "resources": ("the NIC's driver could not create what it needs ({object})", Severity.ERROR),
    "cm_event": ("the connection manager reports {cm_event}: {cm_meaning}", Severity.ERROR),
    "listen": ("port {listened} is in use, mostly by an earlier test", Severity.ERROR),
    "other_end": ("its other end ended, or never came", Severity.INFO),
}


@rule(Category.IB_ERROR, Severity.ERROR, of=("link_failure",))
def bench_link_test_failed(
    link_failure: pl.DataFrame, shared_part: pl.DataFrame, ping_pong: pl.DataFrame
) -> Iterator[Finding]:
    """A test of one network link ended with an error of the NIC, or could not begin.

    Means: the link, or one of its ends, does not work, independently of NCCL. The status has the same meaning as in
    NCCL's own messages. GPU memory that cannot be registered: the module for peer memory is missing (nvidia-peermem).
    Not when: the other side of the test was not started, or cannot be reached (`Couldn't connect`), which proves
    nothing about the link.
    Do: run the same test between other hosts, and without GPU memory; ibstat, perfquery -x, dmesg -T on both ends;
    where a buffer was not registered, modprobe nvidia-peermem, or --use_cuda_dmabuf, and ulimit -l; where something
    could not be created, fewer queue pairs (-q) and less inline data (-I), which ibv_devinfo -v limits.
    Sources: perftest, src/perftest_resources.c; rdma-core, libibverbs/verbs.h (ibv_wc_status).
    """
    ordered = link_failure.sort("source", "line")
    counts = ordered.filter(pl.col("posted").is_not_null())
    in_base_16 = text_of("hex_status").str.to_integer(base=16, dtype=pl.Int32, strict=False)
    failed = ordered.with_columns(status=pl.coalesce("status", in_base_16)).drop_nulls("status")
    if failed["status"].n_unique() > 1:
        failed = failed.filter(pl.col("status") != FLUSHED)  # which follows from the others
    for (status,), alike in failed.group_by("status", maintain_order=True):
        name, meaning, _ = STATUS.get(int(str(status)), (f"status {status}", "unknown status", ""))
        of_file = counts.filter(pl.col("source") == alike["source"][0]).head(1).to_dicts()
        counted = "".join(f"; {row['posted']} requests posted, {row['completed']} completed" for row in of_file)
        yield Finding(
            title=f"a link test failed: {name}" if alike.height == 1 else f"{alike.height} link tests failed: {name}",
            detail=f"{meaning} (status {status}{_syndrome(alike['syndrome'][0])}){counted}"
            f"{tested_ends(ping_pong, alike['source'][0])}",
            certainty="certain",
            role=Role.CONSEQUENCE if (shared_part["failed"] > 0).any() else Role.CAUSE,
            evidence=evidence_lines(alike),
        )
    stated = ordered.filter(text_of("form").is_in(list(ENDS)))
    if ordered["form"].n_unique() > 1:
        stated = stated.filter(text_of("form") != "other_end")  # which follows from the others
    for (form,), alike in stated.group_by(text_of("form"), maintain_order=True):
        text, severity = ENDS[str(form)]
        row = alike.row(0, named=True)
        beside = ordered.filter(pl.col("source").is_in(alike["source"].implode()))
        numbers = beside["error_number"].drop_nulls().unique()
        reasons = [f"{os.strerror(number)} (errno {number})" for number in numbers]
        reasons += beside["errno"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
        if row["cm_event"]:
            row["cm_meaning"] = CM_EVENTS.get(row["cm_event"], "its connection failed")
            reasons = [f"error {row['cm_error']}, {os.strerror(abs(int(row['cm_error'])))}"]  # errno is an older one's
        yield Finding(
            title=f"a link test did not run: {text.format_map(row)}",
            detail=f"it reports: {', '.join(reasons)}" if reasons else "the test measured nothing",
            certainty="certain",
            severity=severity,
            role=Role.CONTEXT if severity is Severity.INFO else Role.CAUSE,
            evidence=evidence_lines(alike),
        )


def _syndrome(syndrome: str | None) -> str:
    return f", vendor syndrome {syndrome}" if syndrome else ""  # ibv_rc_pingpong prints none


@rule(Category.BENCHMARK_SLOW, Severity.INFO, of=("link_measurement",), role=Role.CONTEXT)
def bench_link_drop_above_a_size(link_measurement: pl.DataFrame) -> Iterator[Finding]:
    """A test of a link is much slower at its largest sizes than at smaller ones.

    Means: the path loses or pauses traffic as soon as messages are large (flow control of RoCE, a software adapter, a
    small window), or the buffers no longer fit a cache that the smaller ones fit.
    Not when: the best size is small; one or two sizes are slow, unless it falls from size to size
    or to a tenth; the rate falls by less than half.
    Do: repeat the slow size alone (-s SIZE -D 10); take the counters of both ends before and after it (ethtool -S,
    perfquery -x); compare with other ends and with smaller messages in flight (-t, -o).
    Sources: perftest, README (-a); nccl-tests, doc/PERFORMANCE.md; for the same in collectives nccl#1453.
    """
    figures = link_measurement.filter((pl.col("bandwidth_GBps") > 0) & pl.col("size").is_not_null())
    rate = "bandwidth_GBps"
    for _, rows in figures.group_by("table", maintain_order=True):
        by_size = rows.sort("size", rate, maintain_order=True).unique("size", keep="last", maintain_order=True)
        best = by_size.sort(rate, maintain_order=True).row(-1, named=True)
        larger = by_size.filter(pl.col("size") > best["size"])
        slow = larger[drop_from(best[rate], larger[rate].to_list()) :]
        if best["size"] < LARGE_MESSAGE or slow.is_empty():
            continue
        last = slow.row(-1, named=True)
        of_device = f" of {best['device']}" if best["device"] else ""
        yield Finding(
            title=f"{best['test'] or 'a test of a link'}{of_device} falls from "
            f"{bandwidth_text(best[rate])} at {bytes_text(best['size'])} to {bandwidth_text(last[rate])} at "
            f"{bytes_text(last['size'])}",
            detail=f"at most {bandwidth_text(max(slow[rate].to_list()))} from {bytes_text(slow['size'][0])} on",
            certainty="certain",
            evidence=[Line(best["source"], best["line"], "best"), *evidence_lines(slow, "slower")],
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("link_title",), role=Role.CONTEXT)
def bench_link_test_without_result(
    link_title: pl.DataFrame, link_test: pl.DataFrame, link_row: pl.DataFrame, link_failure: pl.DataFrame
) -> Iterator[Finding]:
    """The output of a test of a link ends before its first result.

    Means: without an address of the other end it waited for that; with one it was connected, and its output was cut,
    or the test was still running or stood still.
    Not when: the test printed an error, or was of JSON.
    Do: let the test end, and keep its whole output; if it stands still, ibstat, show_gids and ping at both ends: GID
    index (-x), MTU and VLAN must fit.
    Sources: perftest, src/perftest_resources.c.
    """
    events = pl.concat(
        [
            link_title.select("source", "line", "pos", what=pl.lit("title")),
            link_test.filter(text_of("form") == "remote").select("source", "line", "pos", what=pl.lit("peer")),
            link_row.select("source", "line", "pos", what=pl.lit("result")),
            link_failure.select("source", "line", "pos", what=pl.lit("result")),
        ]
    ).sort("source", "pos")
    events = events.with_columns(test=(pl.col("what") == "title").cum_sum().over("source"))
    tests = events.group_by("source", "test", maintain_order=True).agg(
        pl.col("line").first(), has_peer=(pl.col("what") == "peer").any(), has_result=(pl.col("what") == "result").any()
    )
    for (has_peer,), rows in tests.filter(~pl.col("has_result")).group_by("has_peer", maintain_order=True):
        yield Finding(
            f"the output of {count_of(rows.height, 'test')} of a link ends before the first result",
            "it was connected to the other end"
            if has_peer
            else "no line that was read shows that the other end was there",
            "certain",
            evidence=evidence_lines(rows),
        )


@rule(Category.P2P, Severity.INFO, of=("pair_access",), role=Role.CONTEXT)
def bench_pairs_without_peer_access(pair_access: pl.DataFrame) -> Iterator[Finding]:
    """CUDA gives some GPUs of a host no direct access to one another.

    Means: between these, copies go through the memory of the host, and NCCL uses shared memory for want of P2P, which
    is slower. Mostly they stand below different CPUs, or the driver allows no peer access on such GPUs at all.
    Not when: the groups are those of the sockets (nvidia-smi topo -m: SYS), where this is normal.
    Do: nvidia-smi topo -p2p r gives the reason for every pair; in a virtual machine pass the GPUs and their NVLinks on
    together.
    Sources: cuda-samples, p2pBandwidthLatencyTest (cudaDeviceCanAccessPeer); NCCL_P2P_LEVEL.
    """
    for _, rows in pair_access.group_by("source", maintain_order=True):
        access = rows.unique(["device", "peer"], keep="last", maintain_order=True)
        denied = access.filter(pl.col("access") == "CANNOT")
        if denied.is_empty():
            continue
        reached: dict[int, set[int]] = {}
        for gpu, peer, answer in access.select("device", "peer", text_of("access")).iter_rows():
            reached.setdefault(gpu, {gpu}).update([peer] if answer == "CAN" else [])
        groups = sorted({tuple(sorted(group)) for group in reached.values() if len(group) > 1})
        within = "; ".join("GPUs " + ", ".join(map(str, group)) for group in groups)
        both = [pl.min_horizontal("device", "peer").alias("first"), pl.max_horizontal("device", "peer").alias("second")]
        numbers = [rows.select(both).n_unique() for rows in (denied, access)]  # either direction is a line
        gpus = len({*access["device"], *access["peer"]})
        is_whole = numbers[1] == gpus * (gpus - 1) // 2  # of a list that is cut, others may have access
        listed, among = ("", "only") if is_whole else (" that are listed", "and direct access")
        yield Finding(
            f"no direct access between {numbers[0]} of {numbers[1]} pairs of GPUs{listed}"
            + (f", {among} among {within}" if groups else ""),
            "by CUDA's own answer (cudaDeviceCanAccessPeer)",
            "certain",
            evidence=evidence_lines(denied),
        )
