"""The answers that differ from those of an earlier version of the program, to the same trials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from benchmark.judge import Outcome
from tests.accuracy.run import Result
from tests.incidents import ROOT

PROGRAM = ("ncclforensics", "grammars")  # of the earlier version; all else is of this one
BESIDE = ("benchmark", "fixtures", "pyproject.toml", "tests")
SHARED = "shared"  # the folder of logs beside the repository
Answers = Mapping[str, Sequence[str]]  # the name of a trial -> what its answer is worth, and the answer


def noted(results: Sequence[Result]) -> dict[str, list[str]]:
    """The answers to all trials with a known truth."""
    return {
        result.trial.name: [result.judgement.outcome, result.judgement.answer] for result in results if result.judgement
    }


def write_answers(results: Sequence[Result], path: Path) -> None:
    """Write answers for another version to be compared with."""
    path.write_text(json.dumps(noted(results)), encoding="utf-8")


def answers_of(commit: str, each: int) -> Answers:
    """What the program answered at a commit. Raises CalledProcessError where it cannot be asked."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "repository"
        root.mkdir()
        packed = subprocess.run(["git", "archive", commit, *PROGRAM], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(root, filter="data")
        for beside in BESIDE:
            (root / beside).symlink_to(ROOT / beside)
        if (ROOT.parent / SHARED).exists():
            (root.parent / SHARED).symlink_to(ROOT.parent / SHARED)
        path = root / "answers.json"
        command = [sys.executable, "-m", "tests.accuracy", "--each", str(each), "--answers", str(path)]
        subprocess.run(command, cwd=root, check=True, env={**os.environ, "PYTHONPATH": str(root)})
        found: Answers = json.loads(path.read_text(encoding="utf-8"))
        return found


def changed_answers(before: Answers, now: Answers) -> str:
    """A table of the trials that are answered otherwise, the worse ones first."""
    changed = [name for name in before.keys() & now.keys() if list(before[name]) != list(now[name])]
    ranking = list(Outcome)
    gained = {name: ranking.index(Outcome(before[name][0])) - ranking.index(Outcome(now[name][0])) for name in changed}
    changed.sort(key=lambda name: (gained[name], name))
    worse, better = sum(gain < 0 for gain in gained.values()), sum(gain > 0 for gain in gained.values())
    lines = [
        f"{len(changed)} of {len(before.keys() & now.keys())} answers changed: {worse} are worse, {better} better", "",
        "| trial | before | now |", "|---|---|---|",
    ]  # fmt: skip
    lines += [f"| {name} | {': '.join(before[name])} | {': '.join(now[name])} |" for name in changed]
    return "\n".join(lines)
