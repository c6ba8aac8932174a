"""Benchmarks between hosts of which only the names of the NICs are known, from the command that started them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.busbw import AS_ON_A_RING, LARGE_OVER_NETWORK, MODEST_NIC, machine_of
from ncclforensics.data.names import bandwidth_text, bytes_text
from ncclforensics.frames.columns import short_name
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.benchmark_text import best_of_tests, called
from ncclforensics.rules.shared.grouping import evidence_lines

FAST_LINKS = 400.0  # GB/s of a GPU's links: H100, MI300X and later
# Values of NCCL_NET_GDR_LEVEL by which GPUDirect RDMA needs a NIC on the GPU's own PCIe switch, or is off.
NEAR_ONLY = ("LOC", "PIX", "0", "1")


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("benchmark",))
def bench_slow_for_its_nics(
    benchmark: pl.DataFrame, measurement: pl.DataFrame, exported_variable: pl.DataFrame, host_network: pl.DataFrame
) -> Iterator[Finding]:
    """Between hosts with a NIC named for each GPU, a test reaches no more than NICs of 100 Gbit/s carry.

    Means: hosts of this kind mostly have NICs of 200 to 400 Gbit/s. Data goes through host memory (no GPUDirect
    RDMA), some of the NICs are not used, or PCIe access control (ACS) sends it through the CPU.
    Not when: the NICs do have 100 Gbit/s; the logs show their rates, by which the test is then judged; fewer NICs
    than GPUs are named; the GPUs are older.
    Do: compare with ibstat of every host; NCCL_DEBUG=INFO shows whether channels use GDRDMA, and which NICs;
    unset NCCL_NET_GDR_LEVEL; check ACS and the IOMMU; measure each NIC with ib_write_bw.
    Sources: nccl-tests#319; NCCL documentation, NCCL_NET_GDR_LEVEL.
    """
    if exported_variable.is_empty():
        return
    best_of = best_of_tests(measurement, LARGE_OVER_NETWORK)
    tests = benchmark.filter(pl.col("collective").is_in(AS_ON_A_RING) & (pl.col("communicators") == 1))
    for row in tests.filter(pl.col("listed_devices") == pl.col("nranks")).to_dicts():
        hosts, gpus = row["hosts"] or [], row["gpus"] or []
        if len(hosts) < 2 or len(gpus) != 1 or host_network["host"].is_in([short_name(host) for host in hosts]).any():
            continue
        per_host = row["nranks"] // len(hosts)
        machine = machine_of(gpus[0], per_host)
        variables = exported_variable.filter(pl.col("source") == row["source"])
        named = variables.filter((pl.col("variable") == "NCCL_IB_HCA") & ~pl.col("value").str.starts_with("^"))
        best = best_of.get(row["benchmark"])
        if machine is None or (machine.link or 0) < FAST_LINKS or named.is_empty() or best is None:
            continue
        nics = {name.partition(":")[0] for name in named["value"][-1].lstrip("=").split(",")}
        share = best["busbw"] / len(nics)
        if len(nics) < per_host or share >= MODEST_NIC:
            continue
        limits = variables.filter((pl.col("variable") == "NCCL_NET_GDR_LEVEL") & pl.col("value").is_in(NEAR_ONLY))
        yield Finding(
            title=f"{called(row)} of {len(hosts)} hosts: {bandwidth_text(best['busbw'])} at "
            f"{bytes_text(best['size'])}, {bandwidth_text(share)} for each of the {len(nics)} NICs in NCCL_IB_HCA",
            detail=f"that is what NICs of 100 Gbit/s carry; hosts with {per_host} {gpus[0]} mostly have NICs of 200 to "
            f"400 Gbit/s, and reach {machine.ring[0]:.0f} GB/s among their own GPUs"
            + "".join(
                f"; NCCL_NET_GDR_LEVEL={value} allows GPUDirect RDMA only where GPU and NIC share one PCIe switch"
                for value in limits["value"].tail(1)
            ),
            certainty="possible",
            hosts=hosts,
            evidence=[
                Line(best["source"], best["line"], "best"),
                *evidence_lines(pl.concat([named.tail(1), limits.tail(1)]), "set"),
            ],
        )
