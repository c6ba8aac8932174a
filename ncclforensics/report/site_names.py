"""Say which racks, rails and machines the hosts and NICs of a finding are, by the site's configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.nics import nics_of
from ncclforensics.rules.finding import Finding, Nic, Role, Severity

Patterns = Mapping[str, Sequence[str]]  # name at the site -> patterns of names in logs
NAMED = 4  # hosts of a finding whose machines are named


def add_site_names(findings: Iterable[Finding], run: Frames) -> None:
    """Add to the detail of errors and warnings the machines, the rack and the rail that the site knows them by.

    A rack or rail is named if all hosts or NICs of the finding belong to it, and others of the run do not.
    """
    settings = run.settings
    if not settings.hosts and not settings.racks and not settings.rails:
        return
    hosts = set(run["process"]["host"].drop_nulls().cast(pl.String).unique())
    nics = nics_of(run) if settings.rails else set()
    for finding in findings:
        is_result = finding.role is Role.CONSEQUENCE and finding.job is None
        if finding.severity is not Severity.INFO and not is_result:
            texts = [
                *_machine_texts(finding.hosts, settings.hosts),
                _rack_text(finding.hosts, hosts, settings.racks),
                _rail_text(finding.nics, nics, settings.rails),
            ]
            finding.detail = "; ".join(filter(None, [finding.detail, *texts]))


def _first(names: Iterable[str], patterns: Patterns) -> str | None:
    """Return the first entry of which a pattern matches one of these names, in upper or lower case."""
    lower = {name.lower() for name in names}
    pairs = ((entry, pattern.lower()) for entry, of_entry in patterns.items() for pattern in of_entry)
    return next((entry for entry, pattern in pairs if any(fnmatchcase(name, pattern) for name in lower)), None)


def _with_and_without_domain(host: str) -> tuple[str, str]:
    return host, host.partition(".")[0]


def _machine_texts(hosts: Sequence[str], machines: Patterns) -> Iterator[str]:
    for host in hosts[:NAMED]:
        machine = _first(_with_and_without_domain(host), machines)
        if machine is not None and machine.lower() not in _with_and_without_domain(host.lower()):
            yield f"{host} is {machine}"


def _rack_text(named: Sequence[str], hosts: Iterable[str], racks: Patterns) -> str | None:
    """Say that all hosts of a finding stand in one rack, if other hosts of the run do not."""
    rack_of = {host: _first(_with_and_without_domain(host), racks) for host in {*hosts, *named}}
    of_finding = {rack_of[host] for host in named}
    of_run = {rack_of[host] for host in hosts}
    if len(of_finding) != 1 or (rack := of_finding.pop()) is None or not of_run - {rack}:
        return None
    if len(named) == 1:
        return f"{named[0]} stands in rack {rack}"
    which = "both hosts" if len(named) == 2 else f"all {len(named)} hosts"
    others = sum(rack_of[host] == rack and host not in named for host in hosts)
    beside = (
        f", with {count_of(others, 'other host')} of this run" if others else ", and no other host of this run does"
    )
    return f"{which} stand in rack {rack}{beside}"


def _rail_text(named: Collection[Nic], nics: Iterable[Nic], rails: Patterns) -> str | None:
    """Say that all NICs of a finding are on one rail, if other NICs of the run are not."""
    found = {_rail_of(nic, rails) for nic in named}
    if len(found) != 1 or (rail := found.pop()) is None or not {_rail_of(nic, rails) for nic in nics} - {rail}:
        return None
    ends = sorted({(host, device) for host, device, _ in named})
    return f"{f'{ends[0][1]} of {ends[0][0]} is' if len(ends) == 1 else f'all {len(ends)} NICs are'} on rail {rail}"


def _rail_of(nic: Nic, rails: Patterns) -> str | None:
    """Return the rail of a NIC: by its device, with or without the port, and with or without the host."""
    host, device, port = nic
    devices = (device, f"{device}:{1 if port is None else port}")
    hosts = _with_and_without_domain(host)
    return _first([*devices, *(f"{name}/{text}" for name in hosts for text in devices)], rails)
