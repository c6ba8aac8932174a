"""Bus bandwidth: compared with known machines, between sizes, and between in-place and out-of-place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import polars as pl

from ncclforensics.data.busbw import (
    AS_ON_A_RING,
    BAD,
    BAD_OVER_NETWORK,
    BRIDGED,
    DIP,
    DIP_FROM,
    DOUBLED,
    DROP,
    FEWEST_NICS,
    IN_PLACE,
    LARGE,
    LARGE_MESSAGE,
    LARGE_OVER_NETWORK,
    LONGEST_DIP,
    MANY_HOSTS,
    OUT_OF_PLACE,
    PLACE,
    RACKS,
    WATCH,
    WATCH_OVER_NETWORK,
    Machine,
    machine_of,
)
from ncclforensics.data.cloud_networks import GPUS, OVER_TCP_REACH
from ncclforensics.data.names import bandwidth_text, bytes_text
from ncclforensics.frames.columns import Row, short_name
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.benchmark_text import (
    PARTICIPANTS,
    best_of_tests,
    called,
    drop_from,
    is_collapse,
    rows_of,
)
from ncclforensics.rules.shared.grouping import evidence_lines


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("benchmark",))
def bench_expected_table(
    benchmark: pl.DataFrame,
    measurement: pl.DataFrame,
    host_network: pl.DataFrame,
    transport: pl.DataFrame,
    expected_machine: pl.DataFrame,
) -> Iterator[Finding]:
    """A test reaches far less bus bandwidth than machines of this kind do.

    Means: within a host, links are missing or slow (NVLink, fabric manager), a GPU is throttled or shared, or a feature
    was switched off. Between hosts, data takes sockets or host memory (no GPUDirect RDMA), NICs are not used, or one of
    them is slow. The share is a hint: 7/8 means that one of eight NICs is missing; a half means no GPUDirect, or half
    of the NICs.
    Not when: sizes are small, where latency decides (below 256 MB in a host, 1 GB between hosts); the machine is not
    known; only part of a host takes part; collectives that reduce in the switch (NVLS, SHARP) may exceed the link rate,
    and so may a tree on two hosts, which is no fault.
    Do: compare with the same test on another host; look for lines on GPUDirect, channels and transports in NCCL's log
    (NCCL_DEBUG=INFO); nvidia-smi topo -m, nvidia-smi nvlink -s, ibstat.
    Sources: busbw measured and accepted: stas00/ml-engineering, azurehpc-health-checks, AMD system validation guides;
    shares: field guides; nccl#412, nccl#766.
    """
    best, best_of_huge = (best_of_tests(measurement, size) for size in (LARGE, LARGE_OVER_NETWORK))
    of_one_ring = benchmark.filter(pl.col("collective").is_in(AS_ON_A_RING) & (pl.col("communicators") == 1))
    configured = expected_machine.to_dicts()
    for row in of_one_ring[:, PARTICIPANTS].iter_rows(named=True):
        if not _ranks_per_host(row):
            continue
        machine = _known_machine(row, configured)
        if _is_rack(row):
            yield from _below_rack(row, best_of_huge.get(row["benchmark"]))
        elif len(row["hosts"]) == 1 and machine:
            yield from _below_machine(row, machine, best.get(row["benchmark"]))
        elif len(row["hosts"]) > 1:
            yield from _below_nics(row, machine, best_of_huge.get(row["benchmark"]), host_network, transport)


def _ranks_per_host(row: Row) -> int:
    """Return how many ranks of a test are on each host; 0 if its lines do not show it, or GPUs of several kinds."""
    are_all_listed = row["listed_devices"] == row["nranks"] and row["hosts"]
    if not are_all_listed or len(row["gpus"]) != 1 or row["nranks"] % len(row["hosts"]):
        return 0
    return int(row["nranks"]) // len(row["hosts"])


def _is_rack(row: Row) -> bool:
    """Whether a test ran on as many GPUs as one NVLink domain over several hosts has."""
    rack = RACKS.get(row["gpus"][0]) if _ranks_per_host(row) else None
    return rack is not None and row["nranks"] == rack.gpus and row["collective"] in DOUBLED


def _known_machine(row: Row, configured: Sequence[Row]) -> Machine | None:
    """Return what a host of this test reaches: by the site's configuration, or by the program's table."""
    gpus = _ranks_per_host(row)
    if not gpus:
        return None
    for expected in configured:
        busbw = expected["busbw"]
        if busbw is not None and expected["gpus"] in (None, gpus):
            return Machine((row["gpus"][0],), gpus, None, (busbw, busbw), None, "the site's configuration")
    return machine_of(row["gpus"][0], gpus)


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("benchmark",), role=Role.CONTEXT)
def bench_not_judged(
    benchmark: pl.DataFrame, measurement: pl.DataFrame, host_network: pl.DataFrame, expected_machine: pl.DataFrame
) -> Iterator[Finding]:
    """A test measured large sizes, and what this machine can reach is not known.

    Means: the program has no figure to compare with: the GPU, or the number of them, is not in its table, or the rates
    of the NICs are not in the logs. That nothing is reported does not say that the bandwidth is good.
    Not when: the machine is known and reached its figure; only small sizes were measured; the same test was run more
    than once, so that its runs are compared with each other.
    Do: run the same test on a host that is known to be good, and compare with `diff`; write what it reached into the
    site's configuration (docs/configuration.md); add ibstat of every host.
    Sources: none: this is about the program's own table (busbw).
    """
    is_alone = pl.len().over("collective") == 1  # runs of one test are compared with each other
    is_candidate = (
        pl.col("collective").is_in(AS_ON_A_RING) & pl.col("is_complete") & (pl.col("wrong").fill_null(0) == 0)
    )
    candidates = benchmark.filter(is_alone & is_candidate)
    measured = measurement.filter(pl.col("benchmark").is_in(candidates["benchmark"].implode()))
    best_of, best_of_huge = (best_of_tests(measured, size) for size in (LARGE, LARGE_OVER_NETWORK))
    configured = expected_machine.to_dicts()
    for row in candidates.to_dicts():
        hosts = len(row["hosts"] or [])
        best = (best_of_huge if hosts > 1 else best_of).get(row["benchmark"])
        networks = _networks(row, host_network)
        is_known = networks.height > 0 or _is_rack(row) if hosts > 1 else _known_machine(row, configured) is not None
        if best is None or is_known:
            continue
        lacks = "the rates of the NICs are not in these files" if hosts > 1 else "this machine is not in its table"
        yield Finding(
            title=f"the bandwidth of {called(row)} was not judged: {bandwidth_text(best['busbw'])} at "
            f"{bytes_text(best['size'])}",
            detail=f"the program does not know what to expect: {lacks}",
            certainty="certain",
            hosts=row["hosts"] or [],
            evidence=[Line(best["source"], best["line"], "best")],
        )


def _networks(row: Row, host_network: pl.DataFrame) -> pl.DataFrame:
    """The adapters of the hosts of a test; of ports without a log only as many as GPUs, or at least FEWEST_NICS."""
    hosts = [short_name(host) for host in row["hosts"] or []]
    is_clear = (pl.col("by") == "nccl") | (pl.col("nics") >= FEWEST_NICS) | (pl.col("nics") == _ranks_per_host(row))
    is_complete = pl.col("by").is_in(["machine", "tcp"]) & (_ranks_per_host(row) == GPUS)
    return host_network.filter(pl.col("host").is_in(hosts) & (is_clear | is_complete).fill_null(value=False))


def _factor(row: Row) -> str:
    n = row["nranks"]
    return f"2 ({n} - 1) / {n}" if row["collective"] in DOUBLED else f"({n} - 1) / {n}"


def _below_machine(row: Row, machine: Machine, best: Row | None) -> Iterator[Finding]:
    low, high = machine.ring
    if best is None or best["busbw"] >= WATCH * low:
        return
    share = best["busbw"] / low
    may_lack_bridges = row["gpus"][0] in BRIDGED and machine.link is not None
    is_slow = share < BAD and not may_lack_bridges
    offloaded = machine.offloaded if row["collective"] in DOUBLED else None
    switched = f"; {offloaded[0]:.0f} to {offloaded[1]:.0f} where the switch reduces" if offloaded else ""
    if machine.link:
        compared = (
            f"measured elsewhere: {low:.0f} to {high:.0f} GB/s over rings{switched} ({machine.source}); the links of a "
            f"GPU carry {machine.link:.0f} GB/s one way, of which this is {best['busbw'] / machine.link:.0%}"
            + "; that is with NVLink bridges, which nvidia-smi topo -m shows as NV and a number"
            * may_lack_bridges
        )
    else:
        compared = f"{machine.source} expects {low:.0f} GB/s"
    yield Finding(
        title=f"{row['collective']} on {row['nranks']} {row['gpus'][0]}: {bandwidth_text(best['busbw'])} at "
        f"{bytes_text(best['size'])}, {share:.0%} of what a host of this kind reaches",
        detail=f"busbw is algbw {best['algbw']:.1f} * {_factor(row)}; {compared}",
        certainty="likely" if is_slow else "possible",
        severity=Severity.WARNING if is_slow else Severity.INFO,
        hosts=row["hosts"],
        evidence=[Line(best["source"], best["line"], "best")],
    )


def _below_rack(row: Row, best: Row | None) -> Iterator[Finding]:
    """A note: that the hosts are one domain shows only in what nvidia-smi prints of them."""
    rack = RACKS[row["gpus"][0]]
    if best is None or best["busbw"] >= WATCH * rack.reduced[0]:
        return
    yield Finding(
        title=f"{called(row)}: {bandwidth_text(best['busbw'])} at {bytes_text(best['size'])}, "
        f"{best['busbw'] / rack.reduced[0]:.0%} of what {rack.gpus} {row['gpus'][0]} of one NVLink domain reach",
        detail=f"measured elsewhere: {rack.reduced[0]:.0f} to {rack.reduced[1]:.0f} GB/s ({rack.source}); whether the "
        "hosts are one domain shows ClusterUUID and CliqueId in nvidia-smi -q",
        certainty="possible",
        severity=Severity.INFO,
        role=Role.CONTEXT,
        hosts=row["hosts"],
        evidence=[Line(best["source"], best["line"], "best")],
    )


def _below_nics(
    row: Row,
    machine: Machine | None,
    best: Row | None,
    host_network: pl.DataFrame,
    transport: pl.DataFrame,
) -> Iterator[Finding]:
    if best is None or host_network.is_empty():
        return
    is_of_run = pl.col("host").is_in(row["hosts"])
    nics = _networks(row, host_network)
    if nics["rate"].n_unique() != 1 or (nics["nics"] > _ranks_per_host(row)).any():
        return
    rate = float(nics["rate"][0])
    count = f" ({nics['nics'][0]})" if nics["nics"][0] else ""
    ceiling = min(rate, machine.ring[0]) if machine else rate
    share = best["busbw"] / ceiling
    is_over_tcp = (nics["by"] == "tcp").any()
    is_usually_less = is_over_tcp or len(row["hosts"]) >= MANY_HOSTS
    if share >= (BAD_OVER_NETWORK if is_usually_less else WATCH_OVER_NETWORK):
        return
    net = transport.filter(is_of_run & (pl.col("medium").cast(pl.String) == "NET"))
    sockets = net.filter(pl.col("transport").str.contains("Socket", literal=True))
    is_explained = net.height > 0 and (sockets.height > 0 or not net["is_gdr"].any())
    explanation = "data goes over sockets" if sockets.height else "no connection uses GPUDirect RDMA"
    is_slow = share < BAD_OVER_NETWORK and not is_over_tcp
    limiting = "NICs of a host carry" if ceiling == rate else "GPUs of a host reach among themselves"
    yield Finding(
        title=f"{row['collective']} on {row['nranks']} ranks of {len(row['hosts'])} hosts: "
        f"{bandwidth_text(best['busbw'])} at {bytes_text(best['size'])}, {share:.0%} of what the {limiting}",
        detail=f"busbw is algbw {best['algbw']:.1f} * {_factor(row)}; a host's NICs{count} carry {rate:.0f} GB/s"
        + f", of which {OVER_TCP_REACH[0]} to {OVER_TCP_REACH[1]} were measured over TCPX" * is_over_tcp
        + (f", its GPUs {machine.ring[0]:.0f} among themselves" if machine else "")
        + f"; {explanation}" * is_explained,
        certainty="likely" if is_slow else "possible",
        severity=Severity.WARNING if is_slow else Severity.INFO,
        role=Role.CONSEQUENCE if is_explained else Role.CAUSE,
        hosts=row["hosts"],
        evidence=[
            Line(best["source"], best["line"], "best"),
            *evidence_lines(sockets if sockets.height else net)[:2] * is_explained,
        ],
    )


@rule(Category.BENCHMARK_SLOW, Severity.INFO, of=("benchmark",), role=Role.CONTEXT)
def bench_dip_at_one_size(benchmark: pl.DataFrame, measurement: pl.DataFrame) -> Iterator[Finding]:
    """At one size, or at a few in a row, a test is much slower than at the sizes below and above.

    Means: NCCL changes algorithm or protocol at this size, too early or too late for this network; or other load
    disturbed that one measurement.
    Not when: only the in-place or only the out-of-place half dips; the size is small; its neighbours were not measured.
    Do: run the test again; if the dip stays, compare NCCL_ALGO=Ring with Tree, and NCCL_PROTO, around this size.
    Sources: nccl: src/graph/tuning.cc; field guides (measure the crossover of ring and tree).
    """
    curve = ("benchmark", "half", "type", "redop", "root")
    is_large = (pl.col("occurrence") == 1) & (pl.col("size") >= DIP_FROM // 2) & pl.col("busbw").is_finite()
    figures = measurement.filter(is_large).select(*curve, "size", "busbw", "source", "line").sort(*curve, "size")
    falls = pl.col("busbw") < DIP * pl.col("busbw").shift()
    of_one_curve = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in curve)
    falling = figures.filter(falls & of_one_curve).select(curve)  # thousands of tests may have no such curve
    kinds = figures.join(falling, on=curve, how="semi", nulls_equal=True).partition_by(curve, maintain_order=True)
    dips = pl.concat([figures.clear().with_columns(neighbours=0.0), *map(_dips, kinds)])
    here = figures.join(dips, on=["benchmark", "size"], how="semi")
    halves = here.group_by("benchmark", "size").agg(all=pl.col("half").n_unique())
    both = dips.join(halves, on=["benchmark", "size"], maintain_order="left").filter(
        pl.col("half").n_unique().over("benchmark", "size") == pl.col("all")
    )
    for row in benchmark.filter(pl.col("benchmark").is_in(both["benchmark"].unique().implode())).to_dicts():
        of_run = rows_of(both, row).sort("size")
        worst = of_run.sort(pl.col("busbw") / pl.col("neighbours")).row(0, named=True)
        sizes = of_run["size"].unique(maintain_order=True).to_list()
        yield Finding(
            title=f"{called(row)} is slow at {', '.join(map(bytes_text, sizes))}",
            detail=f"{bandwidth_text(worst['busbw'])} at {bytes_text(worst['size'])}, "
            f"{bandwidth_text(worst['neighbours'])} or more at the next smaller and larger size",
            certainty="likely",
            hosts=row["hosts"] or [],
            evidence=evidence_lines(of_run.sort("line"), "dip"),
        )


def _dips(curve: pl.DataFrame) -> pl.DataFrame:
    """Return the sizes of one curve, from small to large, that are slow beside those below and above.

    Up to LONGEST_DIP sizes may follow one another. `neighbours`: the slower of the two sizes around them.
    """
    busbw = curve["busbw"].to_list()
    around: dict[int, float] = {}
    for length in range(1, LONGEST_DIP + 1):
        for start in range(1, len(busbw) - length):
            neighbours = min(busbw[start - 1], busbw[start + length])
            if all(rate < DIP * neighbours for rate in busbw[start : start + length]):
                around.update(dict.fromkeys(range(start, start + length), neighbours))
    slow = curve.with_columns(neighbours=pl.Series([around.get(nth) for nth in range(len(busbw))], dtype=pl.Float64))
    return slow.filter(pl.col("neighbours").is_not_null() & (pl.col("size") >= DIP_FROM))


@rule(Category.BENCHMARK_SLOW, Severity.WARNING, of=("benchmark",))
def bench_drop_above_a_size(benchmark: pl.DataFrame, measurement: pl.DataFrame) -> Iterator[Finding]:
    """Above some size a test is much slower than below it.

    Means: the network loses or pauses traffic as soon as large messages load it (flow control and congestion control of
    RoCE, a link with errors), or NCCL changes to an algorithm, a protocol or a path that is slow here.
    Not when: only in-place or only out-of-place drops; one size is slow, unless it is ten times slower; the best size
    is small; a single rank, or ranks that share a GPU, which measure its caches.
    Do: measure with NCCL_ALGO=Ring and Tree and with NCCL_PROTO=Simple around this size; with ib_write_bw over all NICs
    at once; take counters of the ports before and after.
    Sources: nccl#1453; nccl-tests, doc/PERFORMANCE.md.
    """
    figures = measurement.filter((pl.col("occurrence") == 1) & pl.col("busbw").is_finite())
    at_largest = pl.col("busbw").filter(pl.col("size") == pl.col("size").max()).max()
    ends = figures.group_by("benchmark").agg(falls=at_largest < DROP * pl.col("busbw").max())
    is_candidate = pl.col("benchmark").is_in(ends.filter("falls")["benchmark"].implode())
    is_on_one_gpu = pl.col("sharing_ranks").list.len().fill_null(0) > 1
    is_between_gpus = (pl.col("nranks") > 1).fill_null(value=True) & ~is_on_one_gpu
    for row in benchmark.filter(is_candidate, is_between_gpus).to_dicts():
        best_of_size = rows_of(figures, row).group_by("size").agg(
            pl.col("busbw").max(), pl.col("source", "line").first()
        )  # fmt: skip
        best = best_of_size.sort("busbw", "size").tail(1).to_dicts()
        larger = best_of_size.filter(pl.col("size") > best[0]["size"]).sort("size") if best else best_of_size
        if not best:
            continue
        rates = larger["busbw"].to_list()
        first = drop_from(best[0]["busbw"], rates)
        is_falling = all(after < before for before, after in pairwise([best[0]["busbw"], *rates]))
        slow = larger.tail(len(rates) - first)
        least = LARGE_MESSAGE if is_collapse(best[0]["busbw"], rates[first:]) else DIP_FROM
        if slow.height and best[0]["size"] >= least:
            last_fast = larger["size"][first - 1] if first else best[0]["size"]
            by_size = ", ".join(f"{rate:.3g}" for rate in [best[0]["busbw"], *rates])
            yield Finding(
                title=f"{called(row)} is much slower above {bytes_text(last_fast)}",
                detail=f"{bandwidth_text(best[0]['busbw'])} at {bytes_text(best[0]['size'])}, at most "
                f"{bandwidth_text(max(rates[first:]))} from {bytes_text(slow['size'][0])} on"
                + f"; it falls from size to size: {by_size} GB/s"
                * (is_falling and first > 0),
                certainty="likely",
                hosts=row["hosts"] or [],
                evidence=[Line(best[0]["source"], best[0]["line"], "best"), *evidence_lines(slow, "slower")],
            )


@rule(Category.BENCHMARK_SLOW, Severity.INFO, of=("benchmark",), role=Role.CONTEXT)
def bench_place_matters(benchmark: pl.DataFrame, measurement: pl.DataFrame) -> Iterator[Finding]:
    """In-place and out-of-place bandwidth differ much at all large sizes.

    Means: the two halves use different buffers over the same links, one after the other. Registered buffers, memory of
    different kinds, or clocks that change during the test cause such a difference.
    Not when: only single or small sizes differ; alltoall and sendrecv, which copy when they are in place.
    Do: measure with more iterations (-n 100 -w 20); compare -R 0 with -R 1; watch the clocks.
    Sources: nccl-tests, doc/PERFORMANCE.md.
    """
    large = measurement.filter((pl.col("size") >= LARGE) & pl.col("busbw").is_finite() & (pl.col("occurrence") == 1))
    sides = large.pivot(
        "half", index=["benchmark", "row", "size", "source", "line"], values="busbw", aggregate_function="first"
    )
    if not {IN_PLACE, OUT_OF_PLACE} <= set(sides.columns):
        return
    slower = pl.min_horizontal(IN_PLACE, OUT_OF_PLACE) / pl.max_horizontal(IN_PLACE, OUT_OF_PLACE)
    sides = sides.drop_nulls([IN_PLACE, OUT_OF_PLACE]).sort("benchmark", maintain_order=True)
    is_below, is_above = pl.col(IN_PLACE) < pl.col(OUT_OF_PLACE), pl.col(IN_PLACE) > pl.col(OUT_OF_PLACE)
    differs = (is_below.all() | is_above.all()) & (slower.max() < PLACE) & (pl.len() > 1)
    differing = sides.group_by("benchmark").agg(differs=differs).filter("differs")["benchmark"]
    is_candidate = pl.col("benchmark").is_in(differing.implode())
    is_judged = pl.col("collective").is_in([*AS_ON_A_RING, "broadcast", "reduce"])
    for row in benchmark.filter(is_candidate & is_judged).to_dicts():
        of_run = rows_of(sides, row)
        last = of_run.sort("size").row(-1, named=True)
        less, more = sorted([(last[IN_PLACE], IN_PLACE), (last[OUT_OF_PLACE], OUT_OF_PLACE)])
        title = f"{called(row)}: {less[1]} is slower than {more[1]} at all large sizes"
        detail = f"{bandwidth_text(less[0])} against {bandwidth_text(more[0])} at {bytes_text(last['size'])}"
        yield Finding(title, detail, "likely", hosts=row["hosts"] or [], evidence=evidence_lines(of_run.sort("line")))
