"""Say in which rack the hosts of a finding stand, by the site's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.rules.finding import Finding, Role, Severity


def add_racks(findings: Iterable[Finding], run: Frames) -> None:
    """Name the rack in errors and warnings whose hosts all stand in one, if other hosts of the run do not."""
    racks = run.settings.racks
    if not racks:
        return
    rack_of = {host: _rack_of(host, racks) for host in run["process"]["host"].drop_nulls().cast(pl.String).unique()}
    for finding in findings:
        is_result = finding.role is Role.CONSEQUENCE and finding.job is None
        if finding.hosts and finding.severity is not Severity.INFO and not is_result:
            named = {rack_of.get(host) or _rack_of(host, racks) for host in finding.hosts}
            if len(named) == 1 and (rack := named.pop()) is not None and set(rack_of.values()) - {rack}:
                beside = [host for host, name in rack_of.items() if name == rack and host not in finding.hosts]
                finding.detail = "; ".join(filter(None, [finding.detail, _rack_text(finding.hosts, rack, len(beside))]))


def _rack_of(host: str, racks: Mapping[str, Sequence[str]]) -> str | None:
    """Return the first rack of which a pattern matches the name of a host, with or without its domain."""
    names = {host.lower(), host.lower().partition(".")[0]}
    patterns = ((rack, pattern.lower()) for rack, hosts in racks.items() for pattern in hosts)
    return next((rack for rack, pattern in patterns if any(fnmatchcase(name, pattern) for name in names)), None)


def _rack_text(hosts: Sequence[str], rack: str, others: int) -> str:
    if len(hosts) == 1:
        return f"{hosts[0]} stands in rack {rack}"
    which = "both hosts" if len(hosts) == 2 else f"all {len(hosts)} hosts"
    beside = (
        f", with {count_of(others, 'other host')} of this run" if others else ", and no other host of this run does"
    )
    return f"{which} stand in rack {rack}{beside}"
