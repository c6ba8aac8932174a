"""What the screens show, made of one report in the background: no frame is computed while somebody waits for a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from ncclforensics.data.names import printable
from ncclforensics.report.build import Report
from ncclforensics.tui.content import calls, connections, incident, logs, measurements, ranks, waiting
from ncclforensics.tui.content.evidence import Citer


@dataclass(frozen=True, slots=True)
class Failed:
    """What stands in place of a part that could not be made."""

    why: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The parts of one report, by the name of the screen that shows them."""

    report: Report
    is_whole: bool  # every byte was read, and all rules were asked
    parts: dict[str, object] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)  # of the run: its frames are computed by one thread at a time


PARTS: dict[str, Callable[[Report, Citer], object]] = {
    "incident": incident.incident,
    "log": logs.logs,
    "ranks": ranks.ranks,
    "operations": calls.calls,
    "waiting": waiting.waiting,
    "connections": connections.connections,
    "benchmarks": measurements.measured,
}


def facts(report: Report, *, is_whole: bool) -> Facts:
    """Everything that the screens show of a report; a part that breaks down costs none of the others."""
    citer = Citer(report)
    made = Facts(report, is_whole)
    for name, part in PARTS.items():
        try:
            made.parts[name] = part(report, citer)
        except Exception as error:  # a defect of one screen must not cost all others
            made.parts[name] = Failed(printable(f"{type(error).__name__}: {error}"))
    return made
