"""Ask PyTorch's Flight Recorder analyzer: `python -m benchmark.adapters.torchfrtrace FOLDER ANSWERS.json`.

Needs `torchfrtrace` on the PATH, which comes with torch. It prints an error for each call that did not come together.
Its first one is taken as the answer; as likely, where all of them name the same ranks. It reads pickles alone.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from benchmark.adapters.asking import NO_ANSWER, answer_all, blame
from benchmark.adapters.recorder_files import prefix_of
from benchmark.case_files import BenchmarkCase
from benchmark.judge import Json

PROGRAM = "torchfrtrace"
MISSING = re.compile(r"^missing ranks: \{([\d, ]+)\}", re.MULTILINE)
CULPRIT = re.compile(r"Culprit rank (\d+); Error type: (\w+)")
OTHER_STATE = "COLLECTIVE_STATE_MISMATCH"  # the calls are the same, one rank is further
ERROR = re.compile(r"^(?:missing ranks: \{[\d, ]+\}|error msg: .*)$", re.MULTILINE)


def ask(_case: BenchmarkCase, files: Path) -> Json:
    """Run the analyzer on the dumps of a case."""
    command = [PROGRAM, "--allow-incomplete-ranks", "-p", prefix_of(files), str(files)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer_of(ran.stdout + ran.stderr)


def answer_of(printed: str) -> Json:
    """The ranks of the first error that is printed."""
    errors = [_ranks(line) for line in ERROR.findall(printed)]
    named = [(verdict, ranks) for verdict, ranks in errors if ranks]
    return blame(named[0][0], [ranks for _, ranks in named]) if named else NO_ANSWER


def _ranks(error: str) -> tuple[str, list[int]]:
    if missing := MISSING.search(error):
        return "lagging-ranks", sorted(map(int, missing[1].split(",")))
    culprits = CULPRIT.findall(error)
    verdict = "lagging-ranks" if all(kind == OTHER_STATE for _, kind in culprits) else "collective-mismatch"
    return verdict, sorted({int(rank) for rank, _ in culprits})


if __name__ == "__main__":
    answer_all(PROGRAM, "", ask, ("dumps",), PROGRAM)
