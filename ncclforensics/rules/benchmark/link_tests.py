"""Bandwidth tests of one network link (perftest) and of GPU pairs (nvbandwidth, p2pBandwidthLatencyTest)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import polars as pl

from ncclforensics.data.busbw import EVEN_SHARE, EVEN_WITHIN, FEWEST_PAIRS, SLOW_PAIR
from ncclforensics.data.names import bandwidth_text
from ncclforensics.data.verbs import STATUS
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines

# Pairs that share the network, where one slow host of four takes part in half of all pairs.
BETWEEN_HOSTS = ("pairs of hosts", "pairs of ranks of two hosts")


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
        others = _pairs_of_others(rows)
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
        name_of = dict(zip(listed["nth"], listed["host"].cast(pl.String), strict=True)) if unit == "host" else {}
        names = ", ".join(f"{name_of.get(a, a)} to {name_of.get(b, b)}" for a, b in pairs[:SHOWN])
        names += f" and {len(pairs) - SHOWN} more" * (len(pairs) > SHOWN)
        is_one_end = len(pairs) > 1 and len(common) == 1
        named = sorted(common if is_one_end else {end for pair in pairs for end in pair})
        hosts = list(map(str, filter(None, map(name_of.get, named)))) if name_of else _hosts_of_ranks(listed, named)
        where = f" on {hosts[0]}" if unit == "rank" and hosts else ""
        yield Finding(
            title=f"all slow {unit} pairs include {unit} {name_of.get(named[0], named[0])}{where}: {names}"
            if is_one_end
            else f"slow {unit} pair: {names}",
            detail=f"{bandwidth_text(worst['value'])}; the median of all pairs is {bandwidth_text(usual)} "
            f"({worst['test'] or worst['tool']})",
            certainty="likely",
            ranks=named if unit == "rank" else [],
            hosts=hosts,
            evidence=evidence_lines(slow),
        )


def _pairs_of_others(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs to compare with: between hosts, those without the one end whose pairs are the slowest."""
    if rows["test"][0] not in BETWEEN_HOSTS:
        return rows
    by_end = rows.group_by("row").agg(pl.col("value").median()).sort("value", "row")
    others = rows.filter((pl.col("row") != by_end["row"][0]) & (pl.col("column") != by_end["row"][0]))
    return others if others.height >= FEWEST_PAIRS else rows


def _hosts_of_ranks(pair_host: pl.DataFrame, ranks: list[int]) -> list[str]:
    """Return the hosts of ranks, as a capture lists them."""
    numbers = pl.col("ranks").cast(pl.String).str.split(", ").cast(pl.List(pl.Int32))
    with_ranks = pair_host.with_columns(numbers).explode("ranks")
    return with_ranks.filter(pl.col("ranks").is_in(ranks))["host"].cast(pl.String).unique(maintain_order=True).to_list()


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
