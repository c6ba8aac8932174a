"""A set of cases in files: what is asked of each, its truth, and the answers of tools.

Needs nothing but Python. A case is a folder with `case.json` and, in `files`, what somebody on call would hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark.judge import OPEN, Json, Truth

CASE, FILES = "case.json", "files"
QUESTIONS = ("hang", "dumps", "ras", "slow", "fabric")


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One case: its name is the path of its folder below that of the set."""

    name: str
    question: str  # one of QUESTIONS
    kind: str  # what was done to the job or the fabric; `none` if nothing was
    truth: Truth
    made_from: Json  # the program that made it, with what it needs to make it again
    digest: str = ""  # of its files: an answer holds for these alone

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to be found."""
        return self.kind == "none"

    @property
    def shows_fault(self) -> bool:
        """Whether something is wrong, and the files can show it."""
        return not self.is_healthy and self.truth.is_visible and OPEN not in self.truth.verdicts

    @property
    def source(self) -> str:
        """Where the files are from: simulated, recorded, or the name of a set of others."""
        first = self.name.partition("/")[0]
        return "simulated" if first in QUESTIONS else first

    @property
    def group(self) -> str:
        """The cases that are counted together: those of a kind."""
        return self.name.rpartition("/")[0].replace("/", ": ")


def write_case(case: BenchmarkCase, folder: Path) -> BenchmarkCase:
    """Write what is true of a case into its folder, beside its files; returns it with their digest."""
    case = replace(case, digest=_digest(folder / FILES))
    truth = {
        "verdicts": sorted(case.truth.verdicts),
        "culprits": sorted(sorted(named, key=str) for named in set(case.truth.culprits)),
        "visible": case.truth.is_visible,
    }
    facts = {"question": case.question, "kind": case.kind, "truth": truth, "made_from": case.made_from}
    facts["digest"] = case.digest
    (folder / CASE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return case


def _digest(files: Path) -> str:
    """Eight digits of what is in files and how they are called."""
    found = hashlib.sha256()
    for path in sorted(path for path in files.rglob("*") if path.is_file()):
        found.update(path.relative_to(files).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:8]


def read_cases(root: Path) -> Iterator[BenchmarkCase]:
    """Yield the cases below a folder, by their names. Raises ValueError for a `case.json` that is none."""
    for path in sorted(root.rglob(CASE)):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            truth = facts["truth"]
            known = Truth(
                frozenset(truth["verdicts"]), tuple(map(frozenset, truth["culprits"])), is_visible=truth["visible"]
            )
            name = path.parent.relative_to(root).as_posix()
            yield BenchmarkCase(name, facts["question"], facts["kind"], known, facts["made_from"], facts["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no case: {error!r}") from error


def write_answers(tool: str, version: str, answers: Iterable[tuple[BenchmarkCase, Json]], path: Path) -> None:
    """Write the answers of a tool, one a line: the name of a case -> its verdict, culprits and certainty."""
    rows = [f"{json.dumps(case.name)}: {json.dumps({**answer, 'digest': case.digest})}" for case, answer in answers]
    head = f'"tool": {json.dumps(tool)}, "version": {json.dumps(version)}'
    path.write_text(f'{{{head}, "answers": {{\n' + ",\n".join(rows) + "\n}}\n", encoding="utf-8")
