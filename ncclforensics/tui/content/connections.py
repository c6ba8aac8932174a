"""Who is joined to whom and over what, by rank and by host; rings; the NICs of each rank. What stands out is marked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from ncclforensics.analyses.transport.connections import join_communicator
from ncclforensics.data.names import known, printable
from ncclforensics.frames.columns import text_of
from ncclforensics.report.build import Report, Row
from ncclforensics.tui.content.evidence import Citer


@dataclass(frozen=True, slots=True)
class Joint:
    """How one end is joined to another."""

    transports: dict[str, int]  # transport -> connections
    is_odd: bool  # not over what most pairs of this kind are joined by

    @property
    def mark(self) -> str:
        """One letter for what carries most of it."""
        most = max(self.transports, key=lambda name: self.transports[name])
        if most.startswith("NET"):
            return "G" if most.endswith("GDRDMA") else "N"
        return most[:1]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Ends by number, and the joints between them."""

    title: str
    ends: list[str]
    joints: dict[tuple[int, int], Joint]


@dataclass(frozen=True, slots=True)
class Connections:
    """What the screen shows."""

    matrices: list[Matrix]
    rings: list[str]
    nics: list[tuple[str, str, bool]]  # rank, NICs, whether it stands out


MARKS = {
    "G": "NET with GPUDirect RDMA",
    "N": "NET through host memory",
    "P": "P2P",
    "S": "SHM",
    "C": "COLLNET",
}


def connections(report: Report, _: Citer) -> Connections:
    """Matrices of the jobs whose logs tell connections; rings and NICs as the logs print them."""
    run = report.run
    joined, rank = run["rank_connection"], run["rank"]
    matrices: list[Matrix] = []
    jobs = [row["job"] for row in report.verdicts]
    for place, job in enumerate(jobs, 1):
        pairs = joined.filter(pl.col("job") == job)
        if pairs.is_empty():
            continue
        rank_rows = {row["rank_id"]: row for row in rank.filter(pl.col("job") == job).sort("rank").to_dicts()}
        of = f" (job {place})" if len(jobs) > 1 else ""
        matrices.append(_by_rank(pairs.to_dicts(), rank_rows, of))
        if len({rank_row["host"] for rank_row in rank_rows.values()}) > 1:
            matrices.append(_by_host(pairs.to_dicts(), rank_rows, of))
    return Connections(matrices, _rings(report), _nics(report))


def _by_rank(pairs: list[Row], rank_rows: dict[int, Row], of: str) -> Matrix:
    order = {rank_id: number for number, rank_id in enumerate(rank_rows)}
    ends = [f"rank {known(rank_row['rank'])} on {printable(str(rank_row['host']))}" for rank_row in rank_rows.values()]
    found: dict[tuple[int, int], dict[str, int]] = {}
    kinds = {}
    for pair in pairs:
        if pair["rank_id"] in order and pair["peer"] in order:
            place = order[pair["rank_id"]], order[pair["peer"]]
            found.setdefault(place, {})[pair["transport"]] = pair["connections"]
            kinds[place] = rank_rows[pair["rank_id"]]["host"] == rank_rows[pair["peer"]]["host"]
    return Matrix(f"rank to rank{of}", ends, _judged(found, kinds))


def _by_host(pairs: list[Row], rank_rows: dict[int, Row], of: str) -> Matrix:
    hosts = list(dict.fromkeys(str(rank_row["host"]) for rank_row in rank_rows.values()))
    order = {host: number for number, host in enumerate(hosts)}
    found: dict[tuple[int, int], dict[str, int]] = {}
    for pair in pairs:
        ends = [rank_rows.get(pair[name]) for name in ("rank_id", "peer")]
        if ends[0] and ends[1]:
            ways = found.setdefault((order[str(ends[0]["host"])], order[str(ends[1]["host"])]), {})
            ways[pair["transport"]] = ways.get(pair["transport"], 0) + pair["connections"]
    kinds = {place: place[0] == place[1] for place in found}
    return Matrix(f"host to host{of}", [printable(host) for host in hosts], _judged(found, kinds))


def _judged(
    found: dict[tuple[int, int], dict[str, int]], kinds: dict[tuple[int, int], bool]
) -> dict[tuple[int, int], Joint]:
    """What most pairs use, within a host and between hosts, is usual; what less than a quarter use stands out."""
    usual: dict[bool, Counter[frozenset[str]]] = {True: Counter(), False: Counter()}
    for place, ways in found.items():
        usual[kinds[place]][frozenset(ways)] += 1

    def is_odd(place: tuple[int, int], ways: dict[str, int]) -> bool:
        counts = usual[kinds[place]]
        return counts[frozenset(ways)] * 4 < counts.total()

    return {place: Joint(ways, is_odd(place, ways)) for place, ways in found.items()}


def _rings(report: Report) -> list[str]:
    """The rings of each communicator, once for each channel, as its first rank prints them."""
    run = report.run
    if run["ring"].is_empty():
        return []
    columns = ("source", "line", "pos", "host", "pid", "tid", "channel", "order")
    told = join_communicator(run["ring"].select(columns), run["communicator"], run["member"])
    told = told.filter(pl.col("order").is_not_null()).unique(["key", "channel"], keep="first", maintain_order=True)
    lines = [
        f"{row['key']}  channel {known(row['channel'])}: {' → '.join(str(row['order']).split())}"
        for row in told.sort("key", "channel").to_dicts()
    ]
    return [printable(line) for line in lines]


def _nics(report: Report) -> list[tuple[str, str, bool]]:
    """The NICs over which each rank is connected."""
    run = report.run
    over_network = run["connection"].filter(pl.col("netdev").is_not_null())
    if over_network.is_empty():
        return []
    names = _names(run["net_device"], run["net_devices"])
    used = (
        over_network.group_by("host", "pid", "dev", "netdev")
        .agg(is_gdr=pl.col("gdr").is_not_null().any(), connections=pl.len())
        .join(
            names,
            left_on=["host", "pid", "netdev"],
            right_on=["host", "pid", "index"],
            how="left",
        )
    )
    rank_rows = run["rank"].select("host", "pid", "cudadev", "rank", "rank_id")
    drives = rank_rows.group_by("host", "pid").agg(ranks=pl.len())
    placed = used.join(rank_rows, on=["host", "pid"]).join(drives, on=["host", "pid"])
    placed = placed.filter((pl.col("ranks") == 1) | (pl.col("dev") == pl.col("cudadev"))).sort("rank", "netdev")
    counts: Counter[int] = Counter()
    rows: dict[int, tuple[Row, list[str], bool]] = {}
    for row in placed.to_dicts():
        name = row["name"] or f"device {row['netdev']}"
        first, told, gdr = rows.get(row["rank_id"], (row, [], False))
        rows[row["rank_id"]] = first, [*told, name + " (GPUDirect)" * row["is_gdr"]], gdr or row["is_gdr"]
    for _, told, _ in rows.values():
        counts[len(told)] += 1
    with_gdr = sum(gdr for _, _, gdr in rows.values())
    return [
        (
            printable(f"rank {known(row['rank'])} on {row['host']}"),
            printable(", ".join(told)),
            counts[len(told)] * 4 < counts.total() or (not gdr and with_gdr * 4 > 3 * len(rows)),
        )
        for row, told, gdr in rows.values()
    ]


def _names(net_device: pl.DataFrame, net_devices: pl.DataFrame) -> pl.DataFrame:
    """What each process calls its NICs by number: a line for each, or one for all (`[0]mlx5_0:1/IB [1]mlx5_1:1/IB`)."""
    index = pl.col("index").cast(pl.Int64, strict=False)
    alone = net_device.filter(pl.col("index").is_not_null() & pl.col("device").is_not_null())
    listed = net_devices.select("host", "pid", each=text_of("devices").str.split(" ")).explode("each")
    parts = listed.filter(pl.col("each").str.starts_with("[")).with_columns(
        pl.col("each").str.strip_prefix("[").str.split_exact("]", 1).struct.rename_fields(["index", "name"])
    )
    told = [
        alone.select("host", "pid", index, name=text_of("device")),
        parts.unnest("each").select("host", "pid", index, "name"),
    ]
    return pl.concat(told).drop_nulls().unique(["host", "pid", "index"], keep="first", maintain_order=True)
