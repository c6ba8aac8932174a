"""The cases under fixtures/incidents, and what the program says about them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import chdir
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ncclforensics import analyze
from ncclforensics.data.settings import Settings
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.report.build import Report, build_report
from ncclforensics.views import json_report
from tests.budget import IS_FULL

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
INCIDENTS = FIXTURES / "incidents"
Json = dict[str, Any]
State = tuple[str, int, int]  # a file, when it was written, and its size


@dataclass(frozen=True, slots=True)
class Answer:
    """The report on a case, and the same as the contract's JSON."""

    report: Report
    json: Json

    @property
    def jobs(self) -> list[Json]:
        jobs: list[Json] = self.json.get("jobs") or [self.json["hang"]]
        return jobs


@dataclass(frozen=True, slots=True)
class Incident:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def case(self) -> Json:
        return _case(self.folder)

    @property
    def is_hang(self) -> bool:
        """Whether it is about a job that stands still: `hang` is the command for it, and `check` for all others."""
        return "command" not in self.case

    @property
    def truths(self) -> list[Json]:
        """What is true of each job, the worst first."""
        return [self.case["truth"], *self.case.get("other_jobs", [])]

    @property
    def rules(self) -> frozenset[str]:
        """The rules with a finding in `check`, by the last line of report.md."""
        return _rules(self.folder)

    @property
    def logs(self) -> list[str]:
        """The inputs, relative to the folder: everything but the case and its golden report."""
        return [*_logs(self.folder)]

    def answer(self, *, backwards: bool = False, whole: bool = False, everything: bool = False) -> Answer:
        """Read the logs again: forwards or backwards, through windows or whole; ask the rules on a hang, or all."""
        with chdir(self.folder):
            report = analyze(self.logs[::-1] if backwards else self.logs, full=whole, everything=everything)
            return Answer(report, json_report.as_object(report))

    def answer_in_windows(self, policy: ReadPolicy) -> Answer:
        """Read the logs again through windows of these sizes, and ask the rules on a hang."""
        with chdir(self.folder):
            run = open_run(find(self.logs), policy)
            run.read_until_decided()
            answered = build_report(run)
            return Answer(answered, json_report.as_object(answered))


@cache
def _case(folder: Path) -> Json:
    case: Json = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    return case


@cache
def _logs(folder: Path) -> tuple[str, ...]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("case.json", "report.md"))
    return tuple(sorted(path.relative_to(folder).as_posix() for path in files))


@cache
def _rules(folder: Path) -> frozenset[str]:
    text = (folder / "report.md").read_text(encoding="utf-8")
    return frozenset(text.rpartition("\n\n")[2].split("`")[1::2])


ALL = [Incident(path.parent) for path in sorted(INCIDENTS.glob("*/case.json"))]
HANGS = [incident for incident in ALL if incident.is_hang]


def one_of_each_kind() -> list[Incident]:
    """The smallest incident of every command and verdict."""
    sizes = {incident: sum((incident.folder / log).stat().st_size for log in incident.logs) for incident in ALL}
    kinds: dict[tuple[bool, str | None], Incident] = {}
    for incident in sorted(ALL, key=lambda incident: (-sizes[incident], incident.name)):
        kinds[incident.is_hang, incident.case["truth"].get("verdict")] = incident
    return list(kinds.values())


def each_in_turn(incidents: Sequence[Incident], handlings: Iterable[str]) -> list[tuple[Incident, str]]:
    """Every handling with one of the incidents, in turn; every one with all of them if all are asked for."""
    return [
        (incident, handling)
        for place, handling in enumerate(handlings)
        for number, incident in enumerate(incidents)
        if IS_FULL or number == place % len(incidents)
    ]


@cache
def answer(incident: Incident) -> Answer:
    """The answer of the command that the incident is for, as a user gets it, computed once.

    Incidents are so small that `hang` reads them whole, as `check` does: the rules of both are asked of one run.
    """
    if not incident.is_hang:
        return checked(incident)
    with chdir(incident.folder):
        report = build_report(checked(incident).report.run)
        return Answer(report, json_report.as_object(report))


def analyzed(paths: str | Path | Iterable[str | Path], **options: Any) -> Report:
    """`analyze`, which judges fixtures, and files that were not written to since, once: for tests of what follows."""
    given = [paths] if isinstance(paths, str | Path) else [*paths]
    if not all(map(os.path.exists, given)):
        return analyze(given, **options)
    states = tuple(state for path in given for state in _states(Path(path)))
    asked = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if asked.pop("settings", None) not in (None, Settings()):
        return analyze(given, **options)
    asked.pop("progress", None)
    return copy(judged_once(tuple(map(str, given)), frozenset(asked.items()), states))


@lru_cache(maxsize=16)
def judged_once(paths: tuple[str, ...], options: frozenset[tuple[str, Any]], states: tuple[State, ...]) -> Report:
    """The report on files in these states, with these options of `analyze`."""
    return analyze(paths, **dict(options))


def _states(path: Path) -> list[State]:
    """What shows that a file, or one of a folder, was not written to; no fixture is."""
    if path.is_relative_to(FIXTURES):
        return [(str(path), 0, 0)]
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return [(str(file), (state := file.stat()).st_mtime_ns, state.st_size) for file in files]


@cache
def checked(incident: Incident) -> Answer:
    """The answer of `check`, computed once."""
    return incident.answer(everything=True)
