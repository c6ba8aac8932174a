"""A set of cases in files: what is asked of each, its truth, and the answers of tools.

Needs nothing but Python. A case is a folder with `case.json` and, in `files`, what somebody on call would hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmark.judge import Json, Truth

CASE, FILES = "case.json", "files"
QUESTIONS = ("hang", "slow", "fabric")


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One case: its name is the path of its folder below that of the set."""

    name: str
    question: str  # one of QUESTIONS
    kind: str  # what was done to the job or the fabric; `none` if nothing was
    truth: Truth
    made_from: Json  # the program that made it, with what it needs to make it again

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to be found."""
        return self.kind == "none"


def write_case(case: BenchmarkCase, folder: Path) -> None:
    """Write what is true of a case into its folder."""
    truth = {
        "verdicts": sorted(case.truth.verdicts),
        "culprits": sorted(sorted(named, key=str) for named in set(case.truth.culprits)),
        "visible": case.truth.is_visible,
    }
    facts = {"question": case.question, "kind": case.kind, "truth": truth, "made_from": case.made_from}
    (folder / CASE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


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
            yield BenchmarkCase(name, facts["question"], facts["kind"], known, facts["made_from"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no case: {error!r}") from error


def write_answers(tool: str, version: str, answers: Iterable[tuple[str, Json]], path: Path) -> None:
    """Write the answers of a tool: the name of a case -> its verdict, culprits and certainty."""
    written = {"tool": tool, "version": version, "answers": dict(answers)}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
