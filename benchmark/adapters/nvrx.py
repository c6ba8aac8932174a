"""Ask NVRx attribution: `python -m benchmark.adapters.nvrx FOLDER ANSWERS.json`.

Needs NVIDIA's nvidia-resiliency-ext for the Python that `NVRX_PYTHON` names (else this one's `python3`): its
`fr_attribution`, on Flight Recorder dumps, without the language model. It prints a table of groups with the ranks that
each misses; all of these ranks are its answer, as likely where all groups miss the same ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmark.adapters.asking import NO_ANSWER, answer_all
from benchmark.adapters.recorder_files import prefix_of
from benchmark.case_files import BenchmarkCase
from benchmark.judge import Json

PYTHON = os.environ.get("NVRX_PYTHON", "python3")
MODULE = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"
COLUMNS = 6  # of its table, the last one of which lists ranks


def ask(_case: BenchmarkCase, files: Path) -> Json:
    """Run the analysis on the dumps of a case."""
    command = [PYTHON, "-m", MODULE, "--fr-path", str(files), "-p", f"{prefix_of(files)}*", "--emit-stdout"]
    return answer_of(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def answer_of(table: str) -> Json:
    """All ranks that the table lists as missing."""
    rows = [line.split("|") for line in table.splitlines()]
    sets = {row[-1].strip() for row in rows if len(row) == COLUMNS and row[-1].strip()[:1].isdigit()}
    ranks = sorted({int(rank) for row in sets for rank in row.split(",")})
    if not ranks:
        return NO_ANSWER
    return {"verdict": "lagging-ranks", "culprits": ranks, "certainty": "likely" if len(sets) == 1 else "possible"}


def main() -> None:
    """Answer all cases, or say what is not installed."""
    if subprocess.run([PYTHON, "-c", f"import {MODULE}"], capture_output=True, check=False).returncode:
        sys.exit(f"NVRx is not installed for {PYTHON}: it has no module {MODULE}")
    answer_all("NVRx attribution", "", ask, ("dumps",))


if __name__ == "__main__":
    main()
