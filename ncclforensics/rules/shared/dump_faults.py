"""Faults that a dump of a machine shows: merged into findings, or added to findings of the logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ncclforensics.rules.finding import Finding, Line, Role, Severity

SHOWN = 4  # hosts, devices or lines that a finding names


@dataclass(slots=True)
class DumpFault:
    """A fault in one dump, or the same fault in several."""

    title: str
    detail: str
    severity: Severity
    certainty: str
    evidence: list[Line]
    hosts: set[str] = field(default_factory=set)
    dumps: int = 1


HostFaults = Iterable[tuple[str | None, DumpFault]]  # the host is None where nothing names it


def merge_faults(faults: HostFaults, role: Role = Role.CAUSE) -> Iterator[Finding]:
    """Make one finding of all faults with the same title and detail."""
    merged: dict[tuple[str, str], DumpFault] = {}
    for host, fault in faults:
        first = merged.setdefault((fault.title, fault.detail), fault)
        if first is not fault:
            first.dumps += 1
            first.evidence += fault.evidence[:1]
        if host:
            first.hosts.add(host)
    for fault in merged.values():
        hosts = sorted(fault.hosts)
        where = f" on {', '.join(hosts[:SHOWN])}" if hosts else f" in {fault.dumps} dumps" if fault.dumps > 1 else ""
        yield Finding(
            title=fault.title + where,
            detail=fault.detail,
            certainty=fault.certainty,
            severity=fault.severity,
            role=role,
            hosts=hosts,
            evidence=fault.evidence[: SHOWN + 1],
        )


def explain_by_dumps(
    findings: Iterable[Finding], *faults: HostFaults, role: Role = Role.CONSEQUENCE
) -> Iterator[Finding]:
    """Add to each finding the first warning that a dump of the same host gives, and set its role."""
    by_host: dict[str, DumpFault] = {}
    for host, fault in (pair for host_faults in faults for pair in host_faults):
        if host and fault.severity is Severity.WARNING:
            by_host.setdefault(host, fault)
    for finding in findings:
        for host in finding.hosts:
            if host in by_host:
                finding.detail += f"; a dump of {host} shows: {by_host[host].title} ({by_host[host].detail})"
                finding.evidence += [Line(line.source, line.line, "the dump") for line in by_host[host].evidence[:1]]
                finding.role = role
        yield finding
