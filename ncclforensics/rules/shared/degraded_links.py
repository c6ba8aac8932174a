"""Links that run slower or narrower than they could: found by rules on links, and named by rules on slow hosts."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.counters import ADAPTERS
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Finding, Line, Severity
from ncclforensics.rules.shared.dump_faults import DumpFault
from ncclforensics.rules.shared.port_text import nics_of, port_name

SAME_PORT = ["host", "device", "guid", "port"]  # columns by which two dumps show the same port


def port_line(row: Row, label: str = "") -> Line:
    """Cite the line of a row of `port_state`."""
    return Line(row["source"], row["line"], label)


def link_target(row: Row) -> str:
    """Return ` to leaf-4 port 7`, or nothing if the other end is not known."""
    return f" to {port_name(row, 'peer_')}" if row["peer_port"] is not None else ""


def link_hosts(row: Row) -> list[str]:
    """List the hosts at the ends of a link, a row of `port_state`; a switch is no host."""
    words = str(row["peer_node"] or "").split(" ")
    peer = words[0] if len(words) == len(("host", "device")) and words[1].startswith(ADAPTERS) else None
    return sorted({host for host in (row["host"], peer) if host})


def degraded_hosts(port_state: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    """Yield each host with a degraded link and what is wrong with the link, to explain why the host is slow."""
    for finding in degraded_links(port_state):
        for host in finding.hosts:
            yield host, DumpFault(finding.title, finding.detail, Severity.WARNING, finding.certainty, finding.evidence)


def degraded_links(port_state: pl.DataFrame) -> list[Finding]:
    """Return a finding for each degraded link, one that became slower first."""
    return [*_slower_than_before(port_state), *_below_capability(port_state), *_below_parallel_links(port_state)]


def _slower_than_before(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Ports that run slower in a later dump than in an earlier one."""
    timed = port_state.filter(pl.col("moment").is_not_null() & pl.col("rate_Gbps").is_not_null())
    for _, rows in timed.sort("moment").group_by(*SAME_PORT, maintain_order=True):
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        if last["moment"] > first["moment"] and last["rate_Gbps"] < first["rate_Gbps"]:
            rates = f"from {first['rate_Gbps']:g} to {last['rate_Gbps']:g} Gb/s"
            yield Finding(
                f"the link of {port_name(last)}{link_target(last)} fell {rates}",
                f"between {first['moment']} and {last['moment']}",
                "certain",
                hosts=link_hosts(last),
                nics=nics_of([last]),
                evidence=[port_line(last, "after"), port_line(first, "before")],
            )


def _below_capability(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Links of which the tool prints that both ends support more; each link once, though both ends print it."""
    hinted = port_state.filter(pl.col("width_supported").is_not_null() | pl.col("speed_supported").is_not_null())
    reported: set[tuple[object, ...]] = set()
    for row in hinted.to_dicts():
        own, peer = (row["lid"], row["port"]), (row["peer_lid"], row["peer_port"])
        if own in reported or peer in reported:
            continue
        reported.add(own)
        has_both = row["peer_port"] is not None
        yield Finding(
            f"the link of {port_name(row)}{link_target(row)} runs at {_speed(row)} and supports "
            f"{_speed(row, '_supported')}",
            ("both ends support more" if has_both else "this end supports more, and the other end is not shown")
            + ": the cable, a transceiver, or a port that was limited",
            "certain" if has_both else "likely",
            hosts=link_hosts(row),
            nics=nics_of([row]),
            evidence=[port_line(row)],
        )


def _speed(row: Row, suffix: str = "") -> str:
    words = [row[f"width{suffix}"] or row["width"], row[f"speed{suffix}"] or row["speed"]]
    return " ".join(word for word in words if word)


def _below_parallel_links(port_state: pl.DataFrame) -> Iterator[Finding]:
    """Links between the same two switches of which a minority is slower than the others."""
    known = port_state.filter(
        pl.col("rate_Gbps").is_not_null() & pl.col("guid").is_not_null() & pl.col("peer_guid").is_not_null()
    ).filter(pl.col("width_supported").is_null() & pl.col("speed_supported").is_null())
    pair = pl.concat_list("guid", "peer_guid").list.sort()
    last = known.with_columns(_pair=pair).unique(["guid", "port"], keep="last", maintain_order=True)
    last = last.filter(pl.col("guid") == pl.col("_pair").list.first())  # each link once
    most = pl.col("rate_Gbps").max().over("_pair")
    fast = (pl.col("rate_Gbps") == most).sum().over("_pair")
    slow = last.with_columns(_most=most, _fast=fast).filter(
        (pl.col("rate_Gbps") < pl.col("_most")) & (pl.col("_fast") * 2 >= pl.len().over("_pair"))
    )
    for row in slow.to_dicts():
        yield Finding(
            f"the link of {port_name(row)}{link_target(row)} runs at {row['rate_Gbps']:g} Gb/s",
            f"the {row['_fast']} others between the same two nodes run at {row['_most']:g} Gb/s",
            "likely",
            hosts=link_hosts(row),
            nics=nics_of([row]),
            evidence=[port_line(row)],
        )
