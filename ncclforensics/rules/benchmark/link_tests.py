"""Bandwidth tests of one network link (perftest) and of GPU pairs (nvbandwidth, p2pBandwidthLatencyTest)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import polars as pl

from ncclforensics.data.busbw import EVEN_SHARE, EVEN_WITHIN, FEWEST_PAIRS, SLOW_PAIR
from ncclforensics.data.verbs import STATUS
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("gpu_pair",))
def bench_pair_below_others(gpu_pair: pl.DataFrame) -> Iterator[Finding]:
    """Some GPU pairs are slower than all other pairs of the host, which are equally fast.

    Means: the links of one GPU, or of one direction, are degraded: NVLink lanes that are down, a switch, a PCIe slot
    with too few lanes.
    Not when: GPUs of this host are linked only partly, in pairs, or through CPUs, where such differences are normal;
    fewer than three GPUs were measured; peer access was switched off for the test.
    Do: check nvidia-smi nvlink -s and -e of these GPUs; nvidia-smi topo -m; dmesg -T | grep -i xid; test again.
    Sources: NVIDIA/nvbandwidth; cuda-samples, p2pBandwidthLatencyTest; field guides.
    """
    cells = gpu_pair.filter(
        (pl.col("kind") == "bandwidth")
        & (pl.col("row") != pl.col("column"))
        & pl.col("has_peer_access").fill_null(True)
    )
    for _, rows in cells.group_by("matrix", maintain_order=True):
        usual = median(rows["value"])
        near = sum(abs(value - usual) <= EVEN_WITHIN * usual for value in rows["value"])
        is_even = near >= EVEN_SHARE * rows.height
        slow = rows.filter(pl.col("value") < SLOW_PAIR * usual).sort("value")
        if rows.height < FEWEST_PAIRS or not is_even or slow.is_empty():
            continue
        pairs = [(row["row"], row["column"]) for row in slow.to_dicts()]
        common = set.intersection(*(set(pair) for pair in pairs))
        names = ", ".join(f"{a} to {b}" for a, b in pairs[:SHOWN]) + f" and {len(pairs) - SHOWN} more" * (
            len(pairs) > SHOWN
        )
        worst = slow.row(0, named=True)
        is_one_gpu = len(pairs) > 1 and len(common) == 1
        yield Finding(
            title=f"all slow GPU pairs include GPU {next(iter(common))}: {names}"
            if is_one_gpu
            else f"slow GPU pair: {names}",
            detail=f"{worst['value']:.1f} GB/s; the median of all pairs is {usual:.1f} GB/s "
            f"({worst['test'] or worst['tool']})",
            certainty="likely",
            evidence=evidence_lines(slow),
        )


@rule(Category.IB_ERROR, Severity.ERROR, of=("link_failure",))
def bench_link_test_failed(link_failure: pl.DataFrame) -> Iterator[Finding]:
    """A test of one network link ended with an error of the NIC.

    Means: the link, or one of its ends, does not work, independently of NCCL. The status has the same meaning as in
    NCCL's own messages.
    Not when: the other side of the test was not started, or cannot be reached (`Couldn't connect`), which proves
    nothing about the link.
    Do: run the same test between other hosts, and without GPU memory; ibstat, perfquery -x, dmesg -T on both ends.
    Sources: perftest, src/perftest_resources.c; rdma-core, libibverbs/verbs.h (ibv_wc_status).
    """
    rows = link_failure.filter(pl.col("status").is_not_null()).sort("source", "line")
    for (status,), alike in rows.group_by("status", maintain_order=True):
        name, meaning, _ = STATUS.get(int(str(status)), (f"status {status}", "unknown status", ""))
        yield Finding(
            title=f"a link test failed: {name}",
            detail=f"{meaning} (status {status}, vendor syndrome {alike['syndrome'][0]})",
            certainty="certain",
            evidence=evidence_lines(alike),
        )
