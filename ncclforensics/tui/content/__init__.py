"""The content of all screens, built from one report in the background, so that no key waits for a frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ncclforensics.data.names import printable
from ncclforensics.report.build import Report
from ncclforensics.report.pseudonyms import Pseudonyms
from ncclforensics.tui.content import calls, connections, incident, logs, measurements, merged, ranks, slow, waiting
from ncclforensics.tui.content.evidence import Citer


@dataclass(frozen=True, slots=True)
class FailedPart:
    """Takes the place of a part whose builder raised an exception."""

    error: str


@dataclass(frozen=True, slots=True)
class RunContent:
    """The parts of one report, by the name of the screen that shows them."""

    report: Report
    is_whole: bool  # every byte was read, and all rules were run
    parts: dict[str, object] = field(default_factory=dict)
    pseudonyms: Pseudonyms | None = None  # of a redacted report, for lines that are read from files
    lock: Lock = field(default_factory=Lock)  # of the run: only one thread at a time may compute frames
    empty: set[str] = field(default_factory=set)  # screens without anything to show


BUILDERS: dict[str, Callable[[Report, Citer], object]] = {
    "incident": incident.build_incident,
    "log": logs.list_logs,
    "merged": merged.build_merger,
    "ranks": ranks.list_ranks,
    "operations": calls.build_calls,
    "waiting": waiting.build_waiting_trees,
    "connections": connections.build_connections,
    "benchmarks": measurements.build_measurements,
    "slow": slow.build_slow_job,
}

IS_EMPTY: dict[str, Callable[[Any], bool]] = {
    "ranks": lambda rank_rows: not rank_rows,
    "operations": lambda of_run: not of_run.communicators,
    "waiting": lambda trees: not trees,
    "connections": lambda of_run: not (of_run.matrices or of_run.rings or of_run.nics),
    "benchmarks": lambda measured: not measured.parts,
    "slow": lambda job: job.late.is_empty() and job.answer is None,
}


def build_content(report: Report, *, is_whole: bool, pseudonyms: Pseudonyms | None = None) -> RunContent:
    """Build the content of every screen; a builder that raises costs only its own screen."""
    citer = Citer(report)
    content = RunContent(report, is_whole, pseudonyms=pseudonyms)
    for name, build_part in BUILDERS.items():
        try:
            part = content.parts[name] = build_part(report, citer)
            if name in IS_EMPTY and IS_EMPTY[name](part):
                content.empty.add(name)
        except Exception as error:  # a defect of one screen must not cost all others
            content.parts[name] = FailedPart(printable(f"{type(error).__name__}: {error}"))
    return content
