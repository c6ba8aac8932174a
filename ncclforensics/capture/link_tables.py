"""Tables of what was measured between each two ranks, and of the same bytes in few and in many calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ncclforensics.data.busbw import bus_factor

Row = dict[str, Any]
SHADES = "░▒▓█"
BAR = 40  # characters of the longest bar


def pair_rows(by_rank: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return a row per pair that both ranks measured; its time is that of the slower end.

    >>> ends = {0: [{"pair": [0, 1], "latency_us": 9.0, "transfer_us": 10.0, "size": 80_000}]}
    >>> pair_rows({**ends, 1: [{"pair": [0, 1], "latency_us": 9.5, "transfer_us": 8.0, "size": 80_000}]})
    [{'ranks': [0, 1], 'latency_us': 9.0, 'size': 80000, 'busbw_GBps': 8.0}]
    """
    measured = {(rank, *row["pair"]): row for rank, rows in by_rank.items() for row in rows if "pair" in row}
    return [
        {
            "ranks": [a, b], "latency_us": row["latency_us"], "size": row["size"],
            "busbw_GBps": round(row["size"] / max(row["transfer_us"], measured[b, a, b]["transfer_us"]) / 1e3, 4),
        }
        for (rank, a, b), row in sorted(measured.items())
        if rank == a and (b, a, b) in measured
    ]  # fmt: skip


def host_rows(pairs: Sequence[Row], hosts: Sequence[str]) -> list[Row]:
    """Return a row per pair of hosts with the median bandwidth of its pairs of ranks.

    >>> host_rows([{"ranks": [0, 1], "busbw_GBps": 40.0}], ["a", "b"])
    [{'hosts': ['a', 'b'], 'pairs': 1, 'busbw_GBps': 40.0, 'slowest_GBps': 40.0}]
    """
    of_hosts: dict[tuple[str, str], list[float]] = {}
    for row in pairs:
        a, b = (hosts[rank] for rank in row["ranks"])
        if a != b:
            of_hosts.setdefault((min(a, b), max(a, b)), []).append(row["busbw_GBps"])
    return [
        {"hosts": list(key), "pairs": len(values), "busbw_GBps": median(values), "slowest_GBps": min(values)}
        for key, values in sorted(of_hosts.items())
    ]


def pair_table(pairs: Sequence[Row], hosts: Sequence[str], *, rehearsal: bool) -> Iterator[str]:
    """Yield the lines of matrices: pairs of ranks of a host, of two hosts, of whole hosts, and the latencies."""
    names = list(dict.fromkeys(hosts))
    sizes = sorted({row["size"] for row in pairs})
    yield "# Measured by ncclforensics capture: two ranks send and receive at once, disjoint pairs at the same time."
    yield f"# Message: {', '.join(map(str, sizes))} bytes; of the latencies 8 bytes, half of a round trip."
    for number, name in enumerate(names):
        yield f"host {number}: {name}, ranks {', '.join(str(rank) for rank, of in enumerate(hosts) if of == name)}"
    bandwidths = {tuple(row["ranks"]): row["busbw_GBps"] for row in pairs}
    within = {pair: value for pair, value in bandwidths.items() if hosts[pair[0]] == hosts[pair[1]]}
    between = {pair: value for pair, value in bandwidths.items() if pair not in within}
    of_hosts = {tuple(map(names.index, row["hosts"])): row["busbw_GBps"] for row in host_rows(pairs, hosts)}
    latencies = {tuple(row["ranks"]): row["latency_us"] for row in pairs}
    prefix = "Rehearsal of " if rehearsal else ""
    for title, end, values, count in (
        ("ranks of a host", "rank", within, len(hosts)),
        ("ranks of two hosts", "rank", between, len(hosts)),
        ("hosts", "host", of_hosts, len(names)),
    ):
        if values:
            yield f"{prefix}pairs of {title}, {end}(row) <-> {end}(column) bandwidth (GB/s)"
            yield from _matrix(values, count)
            yield from _shaded(values, count)
    if latencies:
        yield f"{prefix}pairs of all ranks, rank(row) <-> rank(column) latency (us)"
        yield from _matrix(latencies, len(hosts))


def _matrix(values: Mapping[tuple[int, ...], float], count: int) -> Iterator[str]:
    """Yield a matrix as CUDA's p2pBandwidthLatencyTest prints it."""
    yield " " * 6 + "".join(f"{column:10}" for column in range(count))
    for row in range(count):
        cells = (values.get((min(row, column), max(row, column))) for column in range(count))
        yield f"{row:6}" + "".join(f"{'N/A':>10}" if cell is None else f"{cell:10.3f}" for cell in cells)


def _shaded(values: Mapping[tuple[int, ...], float], count: int) -> Iterator[str]:
    """Yield a plot of a matrix: the darker a cell, the higher its bandwidth."""
    most = max(values.values())
    yield f"# The same as a plot: █ is {most:.3f} GB/s"
    for row in range(count):
        cells = (values.get((min(row, column), max(row, column))) for column in range(count))
        shades = (
            "·" if cell is None else SHADES[min(int(cell / most * len(SHADES)), len(SHADES) - 1)] for cell in cells
        )
        yield f"# {row:4} " + "".join(shade * 2 for shade in shades)


def split_rows(rows: Sequence[Row], nranks: int) -> list[Row]:
    """Return a row per number of calls that transferred the same bytes, from what rank 0 measured.

    >>> split_rows([{"calls": 250, "total": 4_000_000_000, "total_us": 20_000.0}], 2)
    [{'calls': 250, 'size': 16000000, 'total_us': 20000.0, 'busbw_GBps': 200.0}]
    """
    return [
        {
            "calls": row["calls"], "size": row["total"] // row["calls"], "total_us": row["total_us"],
            "busbw_GBps": round(row["total"] / row["total_us"] / 1e3 * bus_factor("all_reduce", nranks), 4),
        }
        for row in rows
        if "calls" in row
    ]  # fmt: skip


def split_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table and bars of the same bytes in few and in many calls."""
    most = max(row["busbw_GBps"] for row in rows)
    total = rows[0]["calls"] * rows[0]["size"]
    yield f"# Measured by ncclforensics capture: all_reduce of {total} bytes in few and in many calls"
    yield "#  calls  bytes each    time (ms)  busbw (GB/s)"
    for row in rows:
        bar = "█" * round(row["busbw_GBps"] / most * BAR)
        yield f"{row['calls']:8} {row['size']:11} {row['total_us'] / 1e3:12.3f} {row['busbw_GBps']:13.3f}  {bar}"


def pair_summary(pairs: Sequence[Row], hosts: Sequence[str]) -> Iterator[str]:
    """Yield lines that name the slowest pair of ranks and of hosts beside the median."""
    kinds = {"of a host": [], "of two hosts": []}  # type: dict[str, list[Row]]
    for row in pairs:
        a, b = row["ranks"]
        kinds["of a host" if hosts[a] == hosts[b] else "of two hosts"].append(row)
    for kind, rows in kinds.items():
        if rows:
            slowest = min(rows, key=lambda row: row["busbw_GBps"])
            latest = max(rows, key=lambda row: row["latency_us"])
            yield (
                f"pairs of ranks {kind}: {len(rows)}, median {median(row['busbw_GBps'] for row in rows):.2f} GB/s and "
                f"{median(row['latency_us'] for row in rows):.1f} us; slowest {_ends(slowest['ranks'])} with "
                f"{slowest['busbw_GBps']:.2f} GB/s; longest latency {_ends(latest['ranks'])} with "
                f"{latest['latency_us']:.1f} us"
            )
    if len(of_hosts := host_rows(pairs, hosts)) > 1:
        slowest = min(of_hosts, key=lambda row: row["busbw_GBps"])
        yield (
            f"pairs of hosts: {len(of_hosts)}, median {median(row['busbw_GBps'] for row in of_hosts):.2f} GB/s; "
            f"slowest {_ends(slowest['hosts'])} with {slowest['busbw_GBps']:.2f} GB/s"
        )


def _ends(pair: Sequence[object]) -> str:
    return f"{pair[0]}-{pair[1]}"
