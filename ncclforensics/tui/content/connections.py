"""The content of the connections screen: transports between ranks and hosts, rings, and the NICs of each rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from ncclforensics.analyses.transport.connections import join_communicator
from ncclforensics.data.names import known, printable
from ncclforensics.frames.columns import Row, text_of
from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Citer


@dataclass(frozen=True, slots=True)
class PairTransports:
    """The transports between one sender and one receiver."""

    transports: dict[str, int]  # transport -> connections
    is_unusual: bool  # most pairs of this kind (within a host, between hosts) use other transports

    @property
    def mark(self) -> str:
        """Return the letter of the transport with the most connections."""
        most = max(self.transports, key=lambda name: self.transports[name])
        if most.startswith("NET"):
            return "G" if most.endswith("GDRDMA") else "N"
        return most[:1]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Ranks or hosts, and the pairs of them that are connected, by index (sender, receiver)."""

    title: str
    ends: list[str]
    pairs: dict[tuple[int, int], PairTransports]


@dataclass(frozen=True, slots=True)
class Connections:
    """The views of the screen."""

    matrices: list[Matrix]
    rings: list[str]
    nics: list[tuple[str, str, bool]]  # rank, NICs, whether they are unusual


MEDIA = {
    "G": "NET with GPUDirect RDMA",
    "N": "NET through host memory",
    "P": "P2P",
    "S": "SHM",
    "C": "COLLNET",
}


def build_connections(report: Report, _: Citer) -> Connections:
    """Build the matrices of each job whose logs show connections, and the lists of rings and NICs."""
    run = report.run
    connected, rank = run["rank_connection"], run["rank"]
    matrices: list[Matrix] = []
    jobs = [answer.job for answer in report.verdicts]
    for number, job in enumerate(jobs, 1):
        pairs = connected.filter(pl.col("job") == job)
        if pairs.is_empty():
            continue
        rank_rows = {row["rank_id"]: row for row in rank.filter(pl.col("job") == job).sort("rank").to_dicts()}
        suffix = f" (job {number})" if len(jobs) > 1 else ""
        matrices.append(_by_rank(pairs.to_dicts(), rank_rows, suffix))
        if len({rank_row["host"] for rank_row in rank_rows.values()}) > 1:
            matrices.append(_by_host(pairs.to_dicts(), rank_rows, suffix))
    return Connections(matrices, _rings(report), _nics(report))


def _by_rank(pairs: list[Row], rank_rows: dict[int, Row], suffix: str) -> Matrix:
    order = {rank_id: number for number, rank_id in enumerate(rank_rows)}
    ends = [f"rank {known(rank_row['rank'])} on {printable(str(rank_row['host']))}" for rank_row in rank_rows.values()]
    transports: dict[tuple[int, int], dict[str, int]] = {}
    is_one_host = {}
    for pair in pairs:
        if pair["rank_id"] in order and pair["peer"] in order:
            place = order[pair["rank_id"]], order[pair["peer"]]
            transports.setdefault(place, {})[pair["transport"]] = pair["connections"]
            is_one_host[place] = rank_rows[pair["rank_id"]]["host"] == rank_rows[pair["peer"]]["host"]
    return Matrix(f"rank to rank{suffix}", ends, _mark_unusual(transports, is_one_host))


def _by_host(pairs: list[Row], rank_rows: dict[int, Row], suffix: str) -> Matrix:
    hosts = list(dict.fromkeys(str(rank_row["host"]) for rank_row in rank_rows.values()))
    order = {host: number for number, host in enumerate(hosts)}
    transports: dict[tuple[int, int], dict[str, int]] = {}
    for pair in pairs:
        ends = [rank_rows.get(pair[name]) for name in ("rank_id", "peer")]
        if ends[0] and ends[1]:
            names = transports.setdefault((order[str(ends[0]["host"])], order[str(ends[1]["host"])]), {})
            names[pair["transport"]] = names.get(pair["transport"], 0) + pair["connections"]
    is_one_host = {place: place[0] == place[1] for place in transports}
    return Matrix(f"host to host{suffix}", [printable(host) for host in hosts], _mark_unusual(transports, is_one_host))


def _mark_unusual(
    transports: dict[tuple[int, int], dict[str, int]], is_one_host: dict[tuple[int, int], bool]
) -> dict[tuple[int, int], PairTransports]:
    """Mark the pairs whose set of transports less than a quarter of the pairs of their kind use."""
    usual: dict[bool, Counter[frozenset[str]]] = {True: Counter(), False: Counter()}
    for place, names in transports.items():
        usual[is_one_host[place]][frozenset(names)] += 1

    def is_unusual(place: tuple[int, int], names: dict[str, int]) -> bool:
        counts = usual[is_one_host[place]]
        return counts[frozenset(names)] * 4 < counts.total()

    return {place: PairTransports(names, is_unusual(place, names)) for place, names in transports.items()}


def _rings(report: Report) -> list[str]:
    """Return a line for each ring: communicator, channel, and the order of ranks as the first rank prints it."""
    run = report.run
    if run["ring"].is_empty():
        return []
    columns = ("source", "line", "pos", "host", "pid", "tid", "channel", "order")
    rings = join_communicator(run["ring"].select(columns), run["communicator"], run["member"])
    rings = rings.filter(pl.col("order").is_not_null()).unique(["key", "channel"], keep="first", maintain_order=True)
    lines = [
        f"{row['key']}  channel {known(row['channel'])}: {' → '.join(str(row['order']).split())}"
        for row in rings.sort("key", "channel").to_dicts()
    ]
    return [printable(line) for line in lines]


def _nics(report: Report) -> list[tuple[str, str, bool]]:
    """Return for each rank its name, the NICs of its connections, and whether they are unusual."""
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
    rank_counts = rank_rows.group_by("host", "pid").agg(ranks=pl.len())
    placed = used.join(rank_rows, on=["host", "pid"]).join(rank_counts, on=["host", "pid"])
    placed = placed.filter((pl.col("ranks") == 1) | (pl.col("dev") == pl.col("cudadev"))).sort("rank", "netdev")
    counts: Counter[int] = Counter()
    rows: dict[int, tuple[Row, list[str], bool]] = {}
    for row in placed.to_dicts():
        name = row["name"] or f"device {row['netdev']}"
        first, nics, has_gdr = rows.get(row["rank_id"], (row, [], False))
        rows[row["rank_id"]] = first, [*nics, name + " (GPUDirect)" * row["is_gdr"]], has_gdr or row["is_gdr"]
    for _, nics, _ in rows.values():
        counts[len(nics)] += 1
    with_gdr = sum(has_gdr for _, _, has_gdr in rows.values())
    return [
        (
            printable(f"rank {known(row['rank'])} on {row['host']}"),
            printable(", ".join(nics)),
            counts[len(nics)] * 4 < counts.total() or (not has_gdr and with_gdr * 4 > 3 * len(rows)),
        )
        for row, nics, has_gdr in rows.values()
    ]


def _names(net_device: pl.DataFrame, net_devices: pl.DataFrame) -> pl.DataFrame:
    """Return the NIC names of each process by index.

    NCCL prints a line for each NIC, or one for all: `[0]mlx5_0:1/IB [1]mlx5_1:1/IB`.
    """
    index = pl.col("index").cast(pl.Int64, strict=False)
    from_single_lines = net_device.filter(pl.col("index").is_not_null() & pl.col("device").is_not_null())
    listed = net_devices.select("host", "pid", entry=text_of("devices").str.split(" ")).explode("entry")
    parts = listed.filter(pl.col("entry").str.starts_with("[")).with_columns(
        pl.col("entry").str.strip_prefix("[").str.split_exact("]", 1).struct.rename_fields(["index", "name"])
    )
    names = [
        from_single_lines.select("host", "pid", index, name=text_of("device")),
        parts.unnest("entry").select("host", "pid", index, "name"),
    ]
    return pl.concat(names).drop_nulls().unique(["host", "pid", "index"], keep="first", maintain_order=True)
