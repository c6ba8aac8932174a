"""Ask ncclforensics: `python -m benchmark.adapters.ncclforensics_cli FOLDER ANSWERS.json`.

Through its command line, as a user would, and from its JSON alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmark.case_files import FILES, BenchmarkCase, read_cases, write_answers
from benchmark.judge import OPEN, Json
from benchmark.make_cases import FAULTY, HEALTHY

COMMANDS = {"hang": "hang", "slow": "slow", "fabric": "check"}
OF_HEALTHY = {"hang": "check"}  # a job that ended well has no stuck rank to ask for
PART = re.compile(r"(?:gpu|leaf|spine)-[\w-]+")  # the names of the parts of the fabrics of this set


def ask(program: list[str], root: Path, case: BenchmarkCase) -> Json:
    """Run the command for the question of a case, and take the answer out of its JSON."""
    command = OF_HEALTHY.get(case.question, "") if case.is_healthy else ""
    command = command or COMMANDS[case.question]
    folder = str(root / case.name / FILES)
    ran = subprocess.run([*program, command, folder, "--format", "json"], capture_output=True, check=False)
    return answer_of(case.question, json.loads(ran.stdout))


def answer_of(question: str, report: Json) -> Json:
    """The verdict, the culprits and the certainty of a report."""
    if question == "hang":
        hang = report["hang"]
        return {"verdict": hang["verdict"], "culprits": hang["culprits"], "certainty": hang["certainty"]}
    if question == "slow":
        slow = report["slow"]
        return {"verdict": slow["verdict"], "culprits": slow["ranks"], "certainty": slow["certainty"]}
    return _of_fabric([row for row in report["findings"] if row["role"] != "consequence"])


def _of_fabric(findings: list[Json]) -> Json:
    """The part that the title of the first cause names first; a note that names one leaves it open."""
    causes = [row for row in findings if row["severity"] != "info"]
    if causes:
        named = [*PART.findall(causes[0]["title"]), *causes[0]["hosts"]][:1]
        return {"verdict": FAULTY, "culprits": named, "certainty": causes[0]["certainty"]}
    is_noted = any(PART.search(row["title"]) for row in findings)
    return {"verdict": OPEN if is_noted else HEALTHY, "culprits": [], "certainty": "possible"}


def answers(program: list[str], root: Path, processes: int) -> Iterator[tuple[str, Json]]:
    """Yield the answer to each case of a set."""
    cases = list(read_cases(root))
    with ThreadPoolExecutor(processes) as pool:
        found = pool.map(lambda case: ask(program, root, case), cases)
        yield from zip((case.name for case in cases), found, strict=True)


def main() -> None:
    """Ask about all cases of a set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    wanted = parser.parse_args()
    program = [sys.executable, "-m", "ncclforensics"]
    version = subprocess.run([*program, "--version"], capture_output=True, check=True, text=True).stdout.split()[1]
    found = answers(program, wanted.cases, wanted.processes)
    write_answers("ncclforensics", version, found, wanted.answers)


if __name__ == "__main__":
    main()
