"""Combine the measurements of all ranks, and print them as tables in the layout of nccl-tests."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from ncclforensics.capture.plan import ITERATIONS, WARMUP, Plan
from ncclforensics.data.busbw import bus_factor

Row = dict[str, Any]
IN_PLACE = ("all_reduce", "broadcast")
REDUCING = ("all_reduce", "reduce_scatter")
ROOTED = ("broadcast",)


def read_measurements(folder: Path) -> dict[int, list[Row]]:
    """Read the measurement files of all ranks, by rank."""
    rows_of: dict[int, list[Row]] = {}
    for path in folder.glob("measured.rank*.jsonl"):
        rows_of[int(path.suffixes[0].removeprefix(".rank"))] = list(entries(path))
    return rows_of


def measurements(by_rank: Mapping[int, Sequence[Row]], nranks: int) -> list[Row]:
    """Return a row per collective and size that every rank measured, with the mean time over the ranks."""
    by_size: dict[tuple[str, int], dict[int, Row]] = defaultdict(dict)
    for rank, rows in by_rank.items():
        for row in rows:
            if "collective" in row:
                by_size[row["collective"], row["size"]][rank] = row
    return [_combine(name, size, ranks) for (name, size), ranks in by_size.items() if len(ranks) == nranks]


def _combine(name: str, size: int, ranks: Mapping[int, Row]) -> Row:
    mean = sum(row["mean_us"] for row in ranks.values()) / len(ranks)
    algbw = size / mean / 1e3  # bytes in a microsecond are MB/s
    first = next(iter(ranks.values()))
    return {
        "collective": name, "size": size, "count": first["count"], "mean_us": round(mean, 3),
        "algbw_GBps": round(algbw, 4), "busbw_GBps": round(algbw * bus_factor(name, len(ranks)), 4),
        "wrong": sum(row["wrong"] for row in ranks.values()),
        "median_us": median(row["median_us"] for row in ranks.values()),
        "ranks": {
            str(rank): {key: ranks[rank][key] for key in ("median_us", "min_us", "max_us", "wrong")}
            for rank in sorted(ranks)
        },
    }  # fmt: skip


def fastest(measured: Mapping[str, Sequence[Row]]) -> list[tuple[str, int, int]]:
    """Return the fastest algorithm for each range of sizes: (name, first size, last size).

    >>> rows = {"Ring": [{"size": 8, "mean_us": 9.0}, {"size": 32, "mean_us": 9.0}, {"size": 128, "mean_us": 9.0}]}
    >>> rows["Tree"] = [{"size": 8, "mean_us": 5.0}, {"size": 32, "mean_us": 8.0}, {"size": 128, "mean_us": 20.0}]
    >>> fastest(rows)
    [('Tree', 8, 32), ('Ring', 128, 128)]
    """
    times = {name: {row["size"]: row["mean_us"] for row in rows} for name, rows in measured.items()}
    common = sorted(set.intersection(*(set(sizes) for sizes in times.values()))) if times else []
    ranges: list[tuple[str, int, int]] = []
    for size in common:
        best = min(times, key=lambda name: times[name][size])
        is_same = bool(ranges) and ranges[-1][0] == best
        first = ranges.pop()[1] if is_same else size
        ranges.append((best, first, size))
    return ranges


def table(plan: Plan, collective: str, rows: Sequence[Row], devices: Sequence[Row], *, complete: bool) -> Iterator[str]:
    """Yield the lines of a table; an incomplete one lacks the last lines, so that readers see that it was cut off."""
    placement = "in-place" if collective in IN_PLACE else "out-of-place"
    reduced = "sum" if collective in REDUCING else "none"
    root = 0 if collective in ROOTED else -1
    yield "# Measured by ncclforensics capture over torch.distributed, in the layout of nccl-tests."
    yield f"# Collective test starting: {collective}_perf"
    yield (
        f"# nThread 1 nGpus 1 minBytes {min(plan.sizes)} maxBytes {max(plan.sizes)} step: 4(factor) "
        f"warmup iters: {WARMUP} iters: {ITERATIONS} agg iters: 1 validation: 1 graph: 0"
    )
    yield "#"
    yield "# Using devices"
    for device in devices:
        process = f"Pid {device['pid']:6} on {device['host']:>10}"
        gpu = f"device {device['device']:2} [{device['bus']}] {device['name']}"
        yield f"#  Rank {device['rank']:2} Group  0 {process} {gpu}"
    yield "#"
    yield f"#{'':58}{placement}"
    yield "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    yield "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    for row in rows:
        figures = f"{row['mean_us']:8.2f} {row['algbw_GBps']:7.2f} {row['busbw_GBps']:7.2f} {row['wrong']:6}"
        yield f"{row['size']:12} {row['count']:13} {'float':>9} {reduced:>7} {root:>7} {figures}"
    if complete:
        wrong = sum(row["wrong"] > 0 for row in rows)
        yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
        average = sum(row["busbw_GBps"] for row in rows) / len(rows) if rows else 0.0
        yield f"# Avg bus bandwidth    : {average:g} "
        yield "#"
        yield f"# Collective test concluded: {collective}_perf"


def median_lags(folder: Path, steps: int) -> Row | None:
    """Return the median lag of each rank behind the median rank in ms; None for several hosts."""
    times: dict[int, list[float]] = {}
    hosts = set()
    for path in folder.glob("journal.rank*.jsonl"):
        calls = [row for row in entries(path) if "call" in row][:steps]
        hosts |= {row["host"] for row in calls}
        if calls:
            times[calls[0]["rank"]] = [_seconds(row["time"]) for row in calls]
    if len(times) < 2 or len(hosts) > 1:
        return None
    common_steps = min(map(len, times.values()))
    median_times = [median(times[rank][step] for rank in times) for step in range(common_steps)]
    return {
        str(rank): round(1e3 * median(rank_times[step] - median_times[step] for step in range(common_steps)), 3)
        for rank, rank_times in sorted(times.items())
    }


def entries(path: Path) -> Iterator[Row]:
    """Yield the JSON objects of a file, one per line; skip truncated lines."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
