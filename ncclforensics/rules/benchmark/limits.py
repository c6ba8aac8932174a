"""Bandwidths that the links of a machine cannot carry."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.busbw import BRIDGED, DOUBLED, LARGE, LIMIT_MARGIN, domains_of, limit_of, link_of
from ncclforensics.data.names import bytes_text
from ncclforensics.frames.columns import short_name
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.benchmark_text import PARTICIPANTS, best_of_tests, between_gpus
from ncclforensics.rules.shared.grouping import evidence_lines


@rule(Category.BENCHMARK_WRONG, Severity.WARNING, of=("benchmark", "gpu_pair"))
def bench_impossible(
    benchmark: pl.DataFrame,
    measurement: pl.DataFrame,
    host_network: pl.DataFrame,
    gpu_pair: pl.DataFrame,
    pair_device: pl.DataFrame,
) -> Iterator[Finding]:
    """A test reports more bandwidth than the links of its GPUs and adapters carry.

    Means: the figure is wrong, whatever it is compared with: the time was taken without waiting for the GPU, bits were
    counted as bytes (8 times too much), both directions were added (2 times), or algbw and busbw were exchanged.
    Not when: the model of the GPU is not known; over several hosts, the rates of their adapters are not known. Figures
    above a link's rate are right where a switch reduces (NVLS, SHARP), and on two hosts: W R / (R - 1) is the limit.
    Tests of pairs of GPUs that count both directions have twice the limit.
    Do: run nccl-tests itself; in a script synchronise the device before each time stamp; print sizes and times.
    Sources: nccl-tests, doc/PERFORMANCE.md; the least traffic that a collective needs; NVLink and NIC rates one way;
    data sheets of PCIe cards (slot, NVLink bridges); AMD MI300X platform (one link of 64 GB/s to each other GPU).
    """
    best_of = best_of_tests(measurement, LARGE)
    known = host_network.filter(pl.col("by") != "provider")  # of one there may be a faster kind
    several = benchmark.filter((pl.col("nranks") > 1) & (pl.col("communicators") == 1))
    for row in several[:, PARTICIPANTS].to_dicts():
        hosts, gpus = row["hosts"] or [], row["gpus"] or []
        if len(gpus) != 1 or not hosts or row["nranks"] % len(hosts) or row["listed_devices"] != row["nranks"]:
            continue
        link = link_of(gpus[0], row["nranks"] // len(hosts))
        if link is None:
            continue
        names = [short_name(host) for host in hosts]
        networks = known.filter(pl.col("host").is_in(names)) if known.height else known
        is_even = networks.height == len(hosts) and networks["rate"].n_unique() == 1
        domains = domains_of(gpus[0], row["nranks"], len(hosts))
        if row["nranks"] % domains:
            continue
        cards = BRIDGED.get(gpus[0]) if len(hosts) == 1 else None
        network = float(networks["rate"][0]) * len(hosts) / domains if is_even else None
        limit = limit_of(
            row["collective"] or "", row["nranks"], domains, link[0], is_reduced=link[1],
            network=cards.gpus * cards.slot if cards else network,
        )  # fmt: skip
        best = best_of.get(row["benchmark"])
        if limit is None or best is None or best["busbw"] <= LIMIT_MARGIN * limit:
            continue
        figure = best["busbw"]
        carried = f"the links of a {gpus[0]} carry {link[0]:.0f} GB/s one way"
        if cards:
            carried += f" where bridges connect {cards.gpus} of them, its slot {cards.slot:.3g}"
        elif domains > 1:
            carried += f", the adapters of a host {float(networks['rate'][0]):.0f}"
        reduced = " where the switch reduces" if link[1] and row["collective"] in DOUBLED else ""
        yield Finding(
            f"{row['collective']} reports {figure:,.0f} GB/s at {bytes_text(best['size'])}, more than the "
            f"{limit:,.0f} GB/s that {row['nranks']} ranks can reach",
            f"{carried}, so that at most {limit:,.0f} GB/s of busbw are possible{reduced}; this is "
            f"{figure / limit:.1f} times as much",
            "likely",
            hosts=hosts,
            evidence=[Line(best["source"], best["line"], "best")],
        )
    yield from _impossible_pairs(between_gpus(gpu_pair, pair_device))


def _impossible_pairs(pairs: pl.DataFrame) -> Iterator[Finding]:
    """Pairs of GPUs that carry more than all links of one GPU do, in one direction or in both."""
    for _, rows in pairs.group_by("source", maintain_order=True):
        model = rows["model"][0]
        link = link_of(model)
        directions = pl.when("is_counted_both_ways").then(2).otherwise(1)
        beyond = rows.filter(pl.col("value") > LIMIT_MARGIN * link[0] * directions) if link else rows.clear()
        if link is None or beyond.is_empty():
            continue
        worst = beyond.sort("value", descending=True).row(0, named=True)
        limit = link[0] * (2 if worst["is_counted_both_ways"] else 1)
        ways = "both ways" if worst["is_counted_both_ways"] else "one way"
        yield Finding(
            f"a pair of {model} reports {worst['value']:,.0f} GB/s, more than the {limit:,.0f} GB/s that the links of "
            f"one carry {ways}",
            f"test {worst['test'] or worst['tool']}; this is {worst['value'] / limit:.1f} times as much",
            "likely",
            evidence=evidence_lines(beyond),
        )
