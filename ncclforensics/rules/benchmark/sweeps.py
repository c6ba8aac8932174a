"""Several runs of one test compared: on other hosts, on more hosts, over other NICs, with buffers in GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.benchmark.host_runs import SAME_TEST
from ncclforensics.data.busbw import (
    COMBINED_NICS,
    GPU_MEMORY_BAD,
    GPU_MEMORY_WATCH,
    LARGE_MESSAGE,
    SLOW_RUN,
    STEADY,
    TREE_GAIN,
)
from ncclforensics.data.names import bandwidth_text, bytes_text
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.degraded_links import degraded_hosts
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import SHOWN


def _equal_runs(host_run: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the runs of each test on each number of hosts."""
    for _, rows in host_run.group_by([*SAME_TEST, "host_count"], maintain_order=True):
        yield rows


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("host_run",))
def bench_find_slow_node(host_run: pl.DataFrame, port_state: pl.DataFrame) -> Iterator[Finding]:
    """Of several runs of one test on different hosts, those that include one host are slower.

    Means: a host that takes part in all slow runs and in no fast one is slow, or its link is. Two hosts that are slow
    only with each other point to the path between them.
    Not when: the runs differ in collective, ranks, hosts per run, GPUs or type; more than half of them are slow; there
    are fewer than three.
    Do: run the test on this host alone; compare its links, clocks and NICs with a fast host (nvidia-smi, ibstat).
    Sources: nccl#349, DeepSpeed#1617, ROCm/cvs#280.
    """
    for rows in _equal_runs(host_run):
        usual = float(rows["busbw"].quantile(0.75) or 0)  # a quarter of the runs reach it
        slow = rows.filter(pl.col("busbw") < SLOW_RUN * usual)
        fast = rows.filter(pl.col("busbw") >= SLOW_RUN * usual)
        sets = {tuple(hosts) for hosts in rows["hosts"].to_list()}
        if slow.is_empty() or slow.height * 2 > rows.height or len(sets) < 3:
            continue
        fast_hosts = {host for hosts in fast["hosts"].to_list() for host in hosts}
        common = set.intersection(*(set(hosts) for hosts in slow["hosts"].to_list()))
        only_slow = sorted(common - fast_hosts)
        suspects = only_slow or sorted(common)
        if not suspects:
            yield _slow_sets(slow, usual, rows.height)
            continue
        worst = slow.sort("busbw").row(0, named=True)
        names = suspects[0] if len(suspects) == 1 else f"{' and '.join(suspects)} together"
        finding = Finding(
            title=f"{worst['collective'] or 'a test'} is slow with {names}: {bandwidth_text(worst['busbw'])}, "
            f"and {bandwidth_text(usual)} with other hosts",
            detail=f"{slow.height} of {rows.height} runs are slow, and "
            + (
                "this host takes part in each of them and in no other run"
                if len(only_slow) == 1
                else "these hosts take part in each of them"
            ),
            certainty="likely" if len(only_slow) == 1 and (slow.height > 1 or worst["host_count"] == 1) else "possible",
            hosts=suspects,
            evidence=[Line(row["source"], row["best_line"], "slow") for row in slow.sort("busbw").head(2).to_dicts()]
            + [
                Line(row["source"], row["best_line"], "usual") for row in fast.sort("source", "line").head(2).to_dicts()
            ],
        )
        yield from explain_by_dumps([finding], degraded_hosts(port_state))


def _slow_sets(slow: pl.DataFrame, usual: float, runs: int) -> Finding:
    """Return the finding on slow runs that have no host in common: pairs of a sweep, mostly."""
    worst = slow.sort("busbw", "source", "line")
    named = [f"{' and '.join(row['hosts'])} {bandwidth_text(row['busbw'])}" for row in worst.head(SHOWN).to_dicts()]
    return Finding(
        title=f"{worst['collective'][0] or 'a test'} is slow between {', '.join(named)}"
        + f" and {slow.height - SHOWN} more" * (slow.height > SHOWN),
        detail=f"{slow.height} of {runs} runs are slow, and have no host in common; most reach {bandwidth_text(usual)}",
        certainty="possible",
        hosts=sorted({host for hosts in slow["hosts"].to_list() for host in hosts}),
        evidence=[Line(row["source"], row["best_line"], "slow") for row in worst.head(SHOWN).to_dicts()],
    )


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("host_run",))
def bench_good_bad_pair(host_run: pl.DataFrame) -> Iterator[Finding]:
    """The same test gives far less bandwidth on one set of hosts than on another.

    Means: the two sets differ in links, NICs, GPUDirect, channels, versions or variables.
    Not when: the runs differ in collective, ranks, hosts per run, GPUs, type or largest size; there are three sets or
    more, for which bench-find-slow-node looks for the slow host; the sets share a host and the test ran once on each,
    which proves little.
    Do: run ncclforensics diff GOOD BAD on the two, with NCCL's logs (NCCL_DEBUG=INFO) in the same folders.
    Sources: nccl-tests#106, nccl#1114, nccl#1511.
    """
    for rows in _equal_runs(host_run):
        by_set = rows.with_columns(pl.col("hosts").list.sort()).group_by("hosts", maintain_order=True)
        sets = by_set.agg(
            pl.col("busbw").median(), pl.len(), pl.col("source", "best_line").first(), all=pl.col("busbw")
        )
        sets = sets.sort("busbw")
        if sets.height != 2:
            continue
        bad, good = sets.to_dicts()
        is_apart = max(bad["all"]) < min(good["all"])
        if bad["busbw"] >= SLOW_RUN * good["busbw"] or not is_apart:
            continue
        if set(bad["hosts"]) & set(good["hosts"]) and rows.height == len((bad, good)):
            continue
        yield Finding(
            title=f"{rows['collective'][0] or 'a test'} reaches {bandwidth_text(bad['busbw'])} on "
            f"{', '.join(bad['hosts'])} and {bandwidth_text(good['busbw'])} on {', '.join(good['hosts'])}",
            detail=f"{bad['busbw'] / good['busbw']:.0%}, with the same ranks, GPUs and sizes",
            certainty="likely" if rows.height > len((bad, good)) else "possible",
            hosts=bad["hosts"],
            evidence=[Line(bad["source"], bad["best_line"], "bad"), Line(good["source"], good["best_line"], "good")],
        )


@rule(Category.BENCHMARK_SLOW, Severity.INFO, of=("host_run",), role=Role.CONTEXT)
def bench_two_node_tree_inflated(host_run: pl.DataFrame, setting: pl.DataFrame) -> Iterator[Finding]:
    """all_reduce reaches more bus bandwidth on two hosts than on three or more.

    Means: on two hosts a tree sends every byte over the network once, where a ring sends it nearly twice: busbw, which
    assumes a ring, then exceeds what the NICs carry. The larger run is not slow; a run on two hosts is no reference
    for it.
    Not when: NCCL_ALGO keeps NCCL from trees; another collective; the runs differ in GPUs, ranks per host or size.
    Do: compare from three hosts on, or with NCCL_ALGO=Ring on two.
    Sources: nccl-tests#169.
    """
    forced = environment_settings(setting).filter(pl.col("variable") == "NCCL_ALGO")
    if not forced.filter(text_of("value").str.to_lowercase().str.contains("tree", literal=True).not_()).is_empty():
        return
    runs = host_run.filter(pl.col("collective") == "all_reduce")
    for _, rows in runs.group_by(SAME_TEST, maintain_order=True):
        two = rows.filter(pl.col("host_count") == 2).sort("busbw")
        more = rows.filter(pl.col("host_count") > 2).sort("busbw")
        if two.is_empty() or more.is_empty():
            continue
        small, large = two.row(-1, named=True), more.row(-1, named=True)
        if small["busbw"] < TREE_GAIN * large["busbw"]:
            continue
        yield Finding(
            title=f"all_reduce on two hosts reaches {bandwidth_text(small['busbw'])}, on {large['host_count']} hosts "
            f"{large['busbw']:.1f}: two hosts are no reference",
            detail="on two hosts busbw of a tree can exceed what the NICs carry; the larger run need not be slow",
            certainty="likely",
            evidence=[
                Line(small["source"], small["best_line"], "two"),
                Line(large["source"], large["best_line"], f"{large['host_count']}"),
            ],
        )


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("host_run",))
def bench_scaling_by_nic(host_run: pl.DataFrame, setting: pl.DataFrame) -> Iterator[Finding]:
    """NICs that reach their rate one at a time reach less than the sum when they are used together.

    Means: the NICs share a bottleneck: a PCIe switch's uplink, one path through the CPU (access control, ATS), a port
    of the network.
    Not when: NCCL_IB_HCA does not name single NICs in the logs of the runs, or the runs differ in anything else; the
    GPUs of a host are the limit, as a run within one host shows.
    Do: use the NICs in pairs to find those that slow each other down; check access control (lspci -vvv | grep ACSCtl)
    and the PCIe switch of each NIC (nvidia-smi topo -m).
    Sources: nccl#652.
    """
    lists = environment_settings(setting).filter(pl.col("variable") == "NCCL_IB_HCA")
    named = (
        lists.with_columns(nics=text_of("value").str.strip_chars_start("=").str.split(","))
        .filter(text_of("value").str.starts_with("^").not_())
        .with_columns(pl.col("nics").list.sort())
        .group_by("source")
        .agg(pl.col("nics").first(), lists=pl.col("nics").n_unique())
        .filter(pl.col("lists") == 1)
    )
    runs = host_run.filter(pl.col("host_count") > 1)
    known = runs.filter(pl.len().over("source") == 1).join(named, on="source", maintain_order="left")
    for _, rows in known.group_by([*SAME_TEST, "host_count"], maintain_order=True):
        singles = rows.filter(pl.col("nics").list.len() == 1).with_columns(nic=pl.col("nics").list.first())
        best = dict(singles.group_by("nic").agg(pl.col("busbw").max()).iter_rows())
        for row in rows.filter(pl.col("nics").list.len() > 1).to_dicts():
            if not set(row["nics"]) <= set(best):
                continue
            total = sum(best[nic] for nic in row["nics"])
            if row["busbw"] >= COMBINED_NICS * total:
                continue
            single_rates = ", ".join(f"{nic} {best[nic]:.1f}" for nic in row["nics"])
            yield Finding(
                title=f"{', '.join(row['nics'])} reach {bandwidth_text(row['busbw'])} together, and "
                f"{bandwidth_text(total)} as the sum of single runs",
                detail=f"one at a time: {single_rates} GB/s; together they reach {row['busbw'] / total:.0%} of the sum",
                certainty="likely",
                hosts=row["hosts"],
                evidence=[
                    Line(row["source"], row["best_line"], "together"),
                    *(
                        Line(single["source"], single["best_line"], single["nic"])
                        for single in singles.head(3).to_dicts()
                    ),
                ],
            )


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("link_measurement",))
def bench_gpu_memory_slower(link_measurement: pl.DataFrame) -> Iterator[Finding]:
    """A link carries less data from GPU memory than from host memory.

    Means: the path between NIC and GPU is slow: they are on different sockets or PCIe switches, access control sends
    peer traffic through the CPU, the slot has few lanes, or the module for peer memory is missing or slow.
    Not when: the two tests differ in verb, device or size; messages are small; the GPU is of a kind whose memory the
    NIC never reaches directly.
    Do: choose the GPU next to the NIC (nvidia-smi topo -m; --use_cuda=N); check access control and the PCIe links of
    both (lspci -vvv); lsmod | grep peermem, or --use_cuda_dmabuf.
    Sources: field guides (within 5 to 10 % of host memory); perftest, README (GPUDirect).
    """
    large = link_measurement.filter((pl.col("size") >= LARGE_MESSAGE) & pl.col("bandwidth_GBps").is_not_null())
    alike = ["test", "link_layer", "device", "size"]
    for (of_test, _, device), rows in large.group_by(alike[:3], maintain_order=True):
        host, gpu = (
            rows.filter(pl.col("of_gpu") == of_gpu).sort("bandwidth_GBps").unique("size", keep="last")
            for of_gpu in (False, True)
        )
        both = gpu.join(host, on="size", suffix="_host").filter(pl.col("bandwidth_GBps_host") > 0).sort("size")
        if of_test is None or both.is_empty():
            continue
        row = both.row(-1, named=True)
        share = row["bandwidth_GBps"] / row["bandwidth_GBps_host"]
        if share >= GPU_MEMORY_WATCH:
            continue
        yield Finding(
            title=f"{device or 'a link'} carries {bandwidth_text(row['bandwidth_GBps'])} from GPU memory and "
            f"{bandwidth_text(row['bandwidth_GBps_host'])} from host memory",
            detail=f"{share:.0%} at {bytes_text(row['size'])} ({of_test}); within a tenth is normal",
            certainty="likely" if share < GPU_MEMORY_BAD else "possible",
            severity=Severity.WARNING if share < GPU_MEMORY_BAD else Severity.INFO,
            evidence=[Line(row["source"], row["line"], "GPU"), Line(row["source_host"], row["line_host"], "host")],
        )


@rule(Category.BENCHMARK_SLOW, Severity.INFO, of=("link_measurement",), role=Role.CONTEXT)
def bench_link_rate_varies(link_measurement: pl.DataFrame) -> Iterator[Finding]:
    """A link test that repeats one size of messages measures a rate that changes.

    Means: another program uses the link or the host, the path is congested, or the link loses packets or retrains.
    Not when: the rows are of different sizes, or of several tests; messages are small; the rates differ by less than a
    fifth.
    Do: run the test again with nothing else on both hosts; compare ethtool -S or perfquery -x of both ends before and
    after it; dmesg -T for the link.
    Sources: perftest, README (--run_infinitely, -D); field guides.
    """
    large = link_measurement.filter((pl.col("size") >= LARGE_MESSAGE) & (pl.col("bandwidth_GBps") > 0))
    for (_, size), rows in large.group_by("table", "size", maintain_order=True):
        ordered = rows.sort("bandwidth_GBps", maintain_order=True)
        least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
        if least["bandwidth_GBps"] >= STEADY * most["bandwidth_GBps"]:
            continue
        rates = f"{bandwidth_text(least['bandwidth_GBps'])} and {bandwidth_text(most['bandwidth_GBps'])}"
        yield Finding(
            title=f"the rate of {least['device'] or 'a link'} changes between {rates} in one test",
            detail=f"{rows.height} rows of {bytes_text(int(str(size)))} messages",
            certainty="certain",
            evidence=[Line(least["source"], least["line"], "least"), Line(most["source"], most["line"], "most")],
        )
