"""What was measured, out of every rank's own notes: tables as nccl-tests prints them, and the figures behind them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from ncclforensics.capture.plan import ITERATIONS, WARMUP, Plan
from ncclforensics.data.busbw import DOUBLED, SHRUNK

Row = dict[str, Any]
IN_PLACE = ("all_reduce", "broadcast")
REDUCING = ("all_reduce", "reduce_scatter")
ROOTED = ("broadcast",)


def notes(folder: Path) -> dict[int, list[Row]]:
    """What every rank wrote down, by rank."""
    found: dict[int, list[Row]] = {}
    for path in folder.glob("measured.rank*.jsonl"):
        found[int(path.suffixes[0].removeprefix(".rank"))] = list(entries(path))
    return found


def measurements(by_rank: Mapping[int, Sequence[Row]], nranks: int) -> list[Row]:
    """One row per collective and size that every rank measured; the time is the mean over the ranks."""
    told: dict[tuple[str, int], dict[int, Row]] = defaultdict(dict)
    for rank, rows in by_rank.items():
        for row in rows:
            if "collective" in row:
                told[row["collective"], row["size"]][rank] = row
    return [_measured(name, size, ranks) for (name, size), ranks in told.items() if len(ranks) == nranks]


def _measured(name: str, size: int, ranks: Mapping[int, Row]) -> Row:
    mean = sum(row["mean_us"] for row in ranks.values()) / len(ranks)
    algbw = size / mean / 1e3  # bytes in a microsecond are MB/s
    first = next(iter(ranks.values()))
    return {
        "collective": name, "size": size, "count": first["count"], "mean_us": round(mean, 3),
        "algbw_GBps": round(algbw, 4), "busbw_GBps": round(algbw * factor(name, len(ranks)), 4),
        "wrong": sum(row["wrong"] for row in ranks.values()),
        "median_us": median(row["median_us"] for row in ranks.values()),
        "ranks": {
            str(rank): {key: ranks[rank][key] for key in ("median_us", "min_us", "max_us")} for rank in sorted(ranks)
        },
    }  # fmt: skip


def factor(collective: str, nranks: int) -> float:
    """What nccl-tests multiplies algbw with.

    >>> factor("all_reduce", 4), factor("all_gather", 4), factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective in DOUBLED:
        return 2 * (nranks - 1) / nranks
    return (nranks - 1) / nranks if collective in SHRUNK else 1.0


def fastest(measured: Mapping[str, Sequence[Row]]) -> list[tuple[str, int, int]]:
    """Which algorithm is the fastest, from which size to which; only sizes that all of them were measured at.

    >>> told = {"Ring": [{"size": 8, "mean_us": 9.0}, {"size": 32, "mean_us": 9.0}, {"size": 128, "mean_us": 9.0}]}
    >>> told["Tree"] = [{"size": 8, "mean_us": 5.0}, {"size": 32, "mean_us": 8.0}, {"size": 128, "mean_us": 20.0}]
    >>> fastest(told)
    [('Tree', 8, 32), ('Ring', 128, 128)]
    """
    times = {name: {row["size"]: row["mean_us"] for row in rows} for name, rows in measured.items()}
    common = sorted(set.intersection(*(set(each) for each in times.values()))) if times else []
    stretches: list[tuple[str, int, int]] = []
    for size in common:
        best = min(times, key=lambda name: times[name][size])
        is_same = bool(stretches) and stretches[-1][0] == best
        first = stretches.pop()[1] if is_same else size
        stretches.append((best, first, size))
    return stretches


def table(plan: Plan, collective: str, rows: Sequence[Row], devices: Sequence[Row], *, complete: bool) -> Iterator[str]:
    """The lines of one table. Without its last lines it counts as cut off."""
    half = "in-place" if collective in IN_PLACE else "out-of-place"
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
    for one in devices:
        place = f"Pid {one['pid']:6} on {one['host']:>10} device {one['device']:2} [{one['bus']}] {one['name']}"
        yield f"#  Rank {one['rank']:2} Group  0 {place}"
    yield "#"
    yield f"#{'':58}{half}"
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


def arrivals(folder: Path, steps: int) -> Row | None:
    """How many milliseconds each rank came behind the median of the ranks, in the median of the steps; of one host."""
    times: dict[int, list[float]] = {}
    hosts = set()
    for path in folder.glob("journal.rank*.jsonl"):
        called = [row for row in entries(path) if "call" in row][:steps]
        hosts |= {row["host"] for row in called}
        if called:
            times[called[0]["rank"]] = [_seconds(row["time"]) for row in called]
    if len(times) < 2 or len(hosts) > 1:
        return None
    made = min(map(len, times.values()))
    middle = [median(times[rank][step] for rank in times) for step in range(made)]
    return {
        str(rank): round(1e3 * median(mine[step] - middle[step] for step in range(made)), 3)
        for rank, mine in sorted(times.items())
    }


def entries(path: Path) -> Iterator[Row]:
    """The objects of a file of ours, one per line; one that was cut is left out."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
