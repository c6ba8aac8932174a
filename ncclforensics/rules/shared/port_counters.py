"""Findings on counters of ports: which counters increased, at which ends of a link, and what the log says to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import polars as pl

from ncclforensics.frames.columns import Row, short_host, short_name
from ncclforensics.rules.finding import Finding, Line
from ncclforensics.rules.shared.grouping import processes_text
from ncclforensics.rules.shared.port_text import nics_of, port_name

SHOWN = 4  # lines of evidence
MOST = 5  # findings on single links; the others share one
# How sure an increase is, by what tells which dump is the earlier one (column `order`).
CERTAINTY = {"time": "certain", "place": "certain", "name": "likely", "traffic": "likely"}


def increased(counter_increase: pl.DataFrame, limits: dict[str, int]) -> pl.DataFrame:
    """Return the rows whose counter increased by at least its limit; `limits` maps names of counters to increases."""
    limit = pl.col("name").replace_strict(limits, default=None, return_dtype=pl.Int64)
    return counter_increase.filter(pl.col("increase") >= limit)


def counter_lines(rows: Iterable[Row]) -> list[Line]:
    """Cite each counter in the last dump and in the first, at most SHOWN lines."""
    lines: list[Line] = []
    for row in rows:
        lines.append(Line(row["source"], row["line"], "after" if row["before_line"] is not None else ""))
        if row["before_line"] is not None:
            lines.append(Line(row["before_source"], row["before_line"], "before"))
    return list(dict.fromkeys(lines))[:SHOWN]


def counter_finding(rows: pl.DataFrame, title: str, detail: str, **fields: object) -> Finding:
    """Make one finding on these rows of `counter_increase`.

    Its certainty is that of the least reliable order of dumps among the rows; `fields` overrides fields of the finding.
    """
    ordered = rows.sort("source", "line").to_dicts()
    grades = [CERTAINTY.get(row["order"] or "", "possible") for row in ordered]
    certainty = max(grades, key=["certain", "likely", "possible"].index)
    hosts = sorted({row["host"] for row in ordered if row["host"]})
    finding = Finding(title, detail, certainty, hosts=hosts, nics=nics_of(ordered), evidence=counter_lines(ordered))
    for name, value in fields.items():
        setattr(finding, name, value)
    return finding


class LinkCounters:
    """The links on which counters increased, with the rows of `counter_increase` at either end."""

    def __init__(self, rows: pl.DataFrame, port_peer: pl.DataFrame) -> None:
        self.peers = {row["key"]: row for row in port_peer.to_dicts()}
        self.ports: dict[str, list[Row]] = {}
        for row in rows.sort("source", "line", maintain_order=True).to_dicts():
            self.ports.setdefault(row["key"], []).append(row)

    def __iter__(self) -> Iterator[tuple[list[Row], list[Row]]]:
        """Iterate over links: the rows of one port, and those of the port at the other end (empty if none)."""
        visited: set[str] = set()
        for key, rows in self.ports.items():
            if key in visited:
                continue
            peer_key = self.peers.get(key, {}).get("peer_key")
            visited |= {key, str(peer_key)}
            yield rows, self.ports.get(str(peer_key), [])

    def peer_name(self, row: Row) -> str | None:
        """Name the port at the other end of this row's link; None if it is not known."""
        peer = self.peers.get(row["key"])
        return port_name(peer, "peer_") if peer else None

    def hosts(self, rows: Iterable[Row]) -> list[str]:
        """List the hosts at both ends of the links of these ports."""
        ports = list(rows)
        ends = [row["host"] for row in ports]
        ends += [self.peers[row["key"]]["peer_host"] for row in ports if row["key"] in self.peers]
        return sorted({host for host in ends if host})


def add_failed_transfers(finding: Finding, rows: list[Row], completion_error: pl.DataFrame, rank: pl.DataFrame) -> None:
    """Add to a finding the transfers that failed on the hosts at the ends of a link, unless their times differ."""
    errors = completion_error.filter(~pl.col("at_exit")).with_columns(
        here=short_host("host"), there=short_host("peer_host")
    )
    hosts = {short_name(host) for host in finding.hosts}
    devices = {short_name(row["host"]): row["device"] for row in rows if row["host"] and row["device"]}
    local = errors.filter(pl.col("here").is_in(hosts))
    # A line names its own device: an error of another device on this host does not concern this link.
    is_other_device = pl.any_horizontal(
        False, *((pl.col("here") == host) & (pl.col("hca") != device) for host, device in devices.items())
    )
    local = local.filter(~is_other_device.fill_null(value=False))
    failed = pl.concat([local, errors.filter(pl.col("there").is_in(hosts))]).unique(["source", "line"])
    last_unchanged, first_increase = _period(rows)
    if last_unchanged and first_increase:
        is_within = pl.col("moment").is_between(last_unchanged, first_increase)
        failed = failed.filter(is_within.fill_null(value=True))
    if failed.is_empty():
        return
    processes = rank.join(failed.select("host", "pid").unique(), on=["host", "pid"], how="semi")
    finding.ranks = sorted(processes["rank"].drop_nulls().unique().to_list())
    owners = processes_text(finding.ranks, [], rank) if finding.ranks else f"{failed.height} transfers"
    ordered = failed.sort("source", "line")
    when = ordered["moment"].drop_nulls().sort().head(1)
    at = f" at {when[0]}" if when.len() and last_unchanged else ""
    finding.detail += f"; in the log, transfers of {owners} with this host failed{at}: " + (
        "in that time" if at else "if the times agree, this link is why"
    )
    finding.evidence += [
        Line(source, line, "log") for source, line in ordered.select("source", "line").head(2).iter_rows()
    ]


def _period(rows: list[Row]) -> tuple[datetime | None, datetime | None]:
    """Return the times between which the counters of a link first increased; None, None if no dump has a time."""
    periods = [
        (row["last_unchanged"], row["first_increase"])
        for row in rows
        if row["last_unchanged"] and row["first_increase"]
    ]
    return (min(before for before, _ in periods), max(after for _, after in periods)) if periods else (None, None)


def limit_findings(findings: list[Finding], title: str) -> Iterator[Finding]:
    """Yield the first MOST findings, and one for all others: their number followed by `title`."""
    yield from findings[:MOST]
    rest = findings[MOST:]
    if rest:
        names = "; ".join(finding.title for finding in rest[:SHOWN]) + ("; and others" if len(rest) > SHOWN else "")
        yield Finding(
            f"{len(rest)} {title}",
            names,
            min((finding.certainty for finding in rest), key=["possible", "likely", "certain"].index),
            hosts=sorted({host for finding in rest for host in finding.hosts}),
            nics={nic for finding in rest for nic in finding.nics} if all(finding.nics for finding in rest) else set(),
            evidence=[finding.evidence[0] for finding in rest[:SHOWN]],
            severity=rest[0].severity,
        )
