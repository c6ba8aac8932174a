"""How fast calls move data once all members are there, against their own past, sister groups, and what is expected.

A call's transfer is its duration on the member that began last. The others may have filled buffers until then, so that
the rate is the most that it can be: what is too slow by that is slow. Bandwidth as nccl-tests counts it; it is that of
calls that all members began together, where there are some.

What a network can do, its fastest calls show: a slow link is slow in all of them, while hosts that are busy with
something else delay only some.
"""

from __future__ import annotations

from math import log

import polars as pl

from ncclforensics.analyses.slow.change_points import levels
from ncclforensics.data.busbw import AS_ON_A_RING, LARGE, LIMIT_MARGIN, bus_factor, limit_of, link_of, machine_of
from ncclforensics.frames.columns import short_name, text_of
from ncclforensics.frames.registry import analysis

CALL_RATE = {
    "key": pl.String(),
    "members": pl.List(pl.Int32()),
    "operation": pl.String(),
    "bytes": pl.Int64(),
    "calls": pl.Int32(),
    "simultaneous": pl.Int32(),  # calls that all members began together
    "transfer_us": pl.Float64(),  # median
    "total_us": pl.Float64(),  # of all calls
    "busbw": pl.Float64(),  # GB/s of the busiest link; null: not known, or more than any link carries
    "best_busbw": pl.Float64(),  # of the fastest tenth of the calls
    "is_steady": pl.Boolean(),  # the fastest tenth takes nearly as long as the others
    "is_impossible": pl.Boolean(),  # it is more than any link carries: sizes or times are wrong
    "sisters": pl.Int32(),  # groups of as many ranks on as many hosts, of the same kind, that make the same call
    "sisters_us": pl.Float64(),  # median of the same call in these; null: there is none
    "ratio": pl.Float64(),  # to the sisters, of the median and of the fastest tenth: the smaller one
    "expected_busbw": pl.Float64(),  # GB/s; null: not known
    "expected_from": pl.String(),  # nccl-tests, machine
}

TRANSFER_CHANGE = {
    "key": pl.String(),
    "ratio": pl.Float64(),  # times as long as before
    "calls": pl.Int32(),  # since then
    "since_us": pl.Float64(),  # when the first slow one ended, on the clock of `rank`
    "rank": pl.Int32(),
    "lost_us": pl.Float64(),  # by all calls since then
}

FASTEST = 0.1  # share of the calls that show what the network can do
STEADY = 0.75  # of the usual transfer, that these take where the network alone decides
BEGUN_APART = 0.1  # of the transfer, by which members may begin apart
FEWEST_SIMULTANEOUS = 5  # calls
LARGE_CALL = 1 << 18  # bytes of a call from which on bandwidth decides, not latency
SLOWER = 1.4  # times as long as before
FEWEST_CALLS = 10  # on both sides of a change
FASTEST_LINK = 1800.0  # GB/s one way: twice what any GPU of today has


@analysis(CALL_RATE, of=("profiled_call",))
def call_rate(
    call_wait: pl.DataFrame,
    call_group: pl.DataFrame,
    ranked_process: pl.DataFrame,
    benchmark: pl.DataFrame,
    measurement: pl.DataFrame,
) -> pl.DataFrame:
    """One row per group and kind of call in which all members wait for each other."""
    of_kind = ["key", "operation", "bytes"]
    apart = pl.col("wait_us").max().over("key", "nth")
    calls = call_wait.with_columns(is_simultaneous=apart <= BEGUN_APART * pl.col("transfer_us")).unique(["key", "nth"])
    transfers = pl.col("transfer_us")
    rates = calls.group_by(of_kind).agg(
        calls=pl.len(),
        simultaneous=pl.col("is_simultaneous").sum(),
        transfer_us=transfers.median(),
        simultaneous_us=transfers.filter("is_simultaneous").median(),
        fastest_us=transfers.quantile(FASTEST),
        total_us=transfers.sum(),
    )
    groups = call_group.with_columns(size=pl.col("members").list.len()).filter(pl.col("size") > 1)
    rates = rates.join(_placed(groups, ranked_process), on="key")
    factors = pl.struct("operation", "size").map_elements(
        lambda row: bus_factor(row["operation"], row["size"]), return_dtype=pl.Float64
    )
    moved = factors * pl.col("bytes") / 1000
    are_enough = pl.col("simultaneous") >= FEWEST_SIMULTANEOUS
    rates = rates.with_columns(
        busbw=moved / pl.when(are_enough).then("simultaneous_us").otherwise("transfer_us").replace(0.0, None),
        best_busbw=moved / pl.col("fastest_us").replace(0.0, None),
        is_steady=pl.col("fastest_us") >= STEADY * pl.col("transfer_us"),
    )
    rates = _against_sisters(_with_expected(rates, benchmark, measurement))
    limit = pl.struct("operation", "size", "hosts", "gpu").map_elements(_limit, return_dtype=pl.Float64)
    rates = rates.with_columns(is_impossible=are_enough & (pl.col("busbw") > LIMIT_MARGIN * limit).fill_null(False))
    possible = pl.when(~pl.col("is_impossible"))
    return rates.with_columns(busbw=possible.then("busbw"), best_busbw=possible.then("best_busbw")).sort(
        "total_us", descending=True
    )


@analysis(TRANSFER_CHANGE, of=("profiled_call",))
def transfer_change(call_wait: pl.DataFrame, timed_call: pl.DataFrame) -> pl.DataFrame:
    """One row per group whose large calls take longer from one of them on, to the end, than before."""
    large = call_wait.filter(pl.col("bytes") >= LARGE_CALL).unique(["key", "nth"]).sort("key", "nth")
    usual = pl.col("transfer_us").median().over("key", "operation", "bytes")
    large = large.with_columns(share=pl.col("transfer_us") / usual).filter(pl.col("share").is_finite())
    rows = []
    for (key,), calls in large.group_by("key", maintain_order=True):
        parts = levels(calls["share"].to_list(), FEWEST_CALLS, SLOWER)
        if len(parts) < 2 or parts[-1].middle <= parts[-2].middle:
            continue
        since, before = parts[-1].start, min(part.middle for part in parts[:-1])
        fastest = calls["share"][since:].quantile(FASTEST) or 0.0
        if fastest < SLOWER * before:
            continue
        ratio = parts[-1].middle / before
        lost_us = sum(calls["transfer_us"][since:].to_list()) * (1 - 1 / ratio)
        rows.append((key, ratio, calls.height - since, calls["nth"][since], lost_us))
    names = {"key": pl.String(), "ratio": pl.Float64(), "calls": pl.Int32(), "nth": pl.Int32(), "lost_us": pl.Float64()}
    changes = pl.DataFrame(rows, schema=names, orient="row")
    ends = timed_call.filter("waits_for_all").select("key", "nth", "rank", since_us="end_us").sort("rank")
    return changes.join(ends, on=["key", "nth"]).unique("key", keep="first").sort("lost_us", descending=True)


def _placed(groups: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """The groups with the hosts and the model of GPU of their members; null where they are not known of all."""
    hosts = processes.select("rank", "host", gpu=text_of("gpu"))
    of_member = groups.select("key", rank="members").explode("rank").join(hosts, on="rank", how="left")
    known = of_member.group_by("key").agg(
        host_names=pl.col("host").unique().sort(),
        are_known=pl.col("host").is_not_null().all(),
        gpu=pl.when(pl.col("gpu").n_unique() == 1).then(pl.col("gpu").first()).first(),
    )
    known = known.with_columns(host_names=pl.when("are_known").then("host_names")).drop("are_known")
    return groups.join(known, on="key").with_columns(hosts=pl.col("host_names").list.len())


def _against_sisters(rates: pl.DataFrame) -> pl.DataFrame:
    """Add how many sister groups there are, the median of their times, and the ratio to that."""
    alike = ["operation", "bytes", "size", "kind", "hosts"]
    others = rates.select(*alike, other="key", other_us="transfer_us", other_fastest_us="fastest_us")
    pairs = (
        rates.select(*alike, "key").join(others, on=alike, nulls_equal=True).filter(pl.col("key") != pl.col("other"))
    )
    of_sisters = pairs.group_by("key", "operation", "bytes").agg(
        sisters=pl.len(), sisters_us=pl.col("other_us").median(), sisters_fastest_us=pl.col("other_fastest_us").median()
    )
    joined = rates.join(of_sisters, on=["key", "operation", "bytes"], how="left", nulls_equal=True)
    ratios = (
        pl.col("transfer_us") / pl.col("sisters_us").replace(0.0, None),
        pl.col("fastest_us") / pl.col("sisters_fastest_us").replace(0.0, None),
    )
    return joined.with_columns(pl.col("sisters").fill_null(0), ratio=pl.min_horizontal(*ratios))


def _with_expected(rates: pl.DataFrame, benchmark: pl.DataFrame, measurement: pl.DataFrame) -> pl.DataFrame:
    """Add the bandwidth that nccl-tests reached on the same hosts, or else that of such machines."""
    found = []
    for row in rates.select("operation", "bytes", "size", "host_names", "hosts", "gpu").to_dicts():
        measured = _measured(row, benchmark, measurement) if row["bytes"] else None
        table = _of_machine(row) if row["bytes"] else None
        found.append((measured, "nccl-tests") if measured else (table, "machine") if table else (None, None))
    columns = {"expected_busbw": pl.Float64(), "expected_from": pl.String()}
    return rates.hstack(pl.DataFrame(found, schema=columns, orient="row"))


def _measured(row: dict[str, object], benchmark: pl.DataFrame, measurement: pl.DataFrame) -> float | None:
    """The bandwidth of nccl-tests on as many ranks of the same hosts, between the sizes that it measured."""
    names, size = row["host_names"], row["bytes"]
    if not isinstance(names, list) or not isinstance(size, int):
        return None
    wanted = sorted({short_name(name) for name in names})
    runs = [
        run["benchmark"]
        for run in benchmark.filter(collective=row["operation"], nranks=row["size"]).to_dicts()
        if sorted({short_name(name) for name in run["hosts"] or []}) == wanted
    ]
    rows = measurement.filter(pl.col("benchmark").is_in(runs), pl.col("busbw") > 0, pl.col("size") > 0)
    best = rows.group_by("size").agg(pl.col("busbw").max()).sort("size")
    sizes, rates = best["size"].to_list(), best["busbw"].to_list()
    if not sizes or size < sizes[0]:
        return None
    for low, high, from_rate, to_rate in zip(sizes, sizes[1:], rates, rates[1:], strict=False):
        if size <= high:
            share = log(size / low) / log(high / low)
            return float(from_rate ** (1 - share) * to_rate**share)
    return float(rates[-1])


def _of_machine(row: dict[str, object]) -> float | None:
    """The bandwidth that all GPUs of such a host reach among themselves."""
    gpu, size, ranks = row["gpu"], row["bytes"], row["size"]
    if not isinstance(gpu, str) or not isinstance(size, int) or not isinstance(ranks, int):
        return None
    machine = machine_of(gpu, ranks) if row["hosts"] == 1 and size >= LARGE else None
    return float(machine.ring[0]) if machine and row["operation"] in AS_ON_A_RING else None


def _limit(row: dict[str, object]) -> float:
    """The bandwidth in GB/s that no such call exceeds."""
    gpu, ranks = row["gpu"], row["size"]
    link = link_of(gpu) if isinstance(gpu, str) else None
    if link is None or row["hosts"] != 1 or not isinstance(ranks, int):
        return FASTEST_LINK
    limit = limit_of(str(row["operation"]), ranks, 1, link[0], is_reduced=link[1], network=None)
    return float(limit or FASTEST_LINK)
