"""Ask ncclforensics: `python -m benchmark.adapters.ncclforensics_cli FOLDER ANSWERS.json`.

Through its command line, as a user would, and from its JSON alone.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmark.adapters.asking import answer_all
from benchmark.case_files import QUESTIONS, BenchmarkCase
from benchmark.judge import OPEN, Json
from benchmark.make_cases import FAULTY, HEALTHY
from ncclforensics import __version__
from ncclforensics.cli import main

OF_HANGS = ("hang", "dumps", "ras")
COMMANDS = {**dict.fromkeys(OF_HANGS, "hang"), "slow": "slow", "fabric": "check"}
OF_HEALTHY = dict.fromkeys(OF_HANGS, "check")  # a job that ended well has no stuck rank to ask for
PART = re.compile(r"(?:gpu|leaf|spine)-[\w-]+")  # the names of the parts of the fabrics of this set


def report_of(command: str, folder: str) -> Json:
    """What a command of the program prints as JSON."""
    with tempfile.TemporaryDirectory() as beside:
        path = Path(beside) / "report.json"
        main([command, folder, "--format", "json", "--output", str(path)])
        report: Json = json.loads(path.read_bytes())
    return report


def answer_of(question: str, report: Json) -> Json:
    """The verdict, the culprits and the certainty of a report."""
    if question in OF_HANGS:
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


def _answer_all() -> None:
    """Ask in as many processes as threads wait for them: a start of the program takes longer than most answers."""
    os.environ["POLARS_MAX_THREADS"] = "1"  # each process takes one core
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:

        def ask(case: BenchmarkCase, files: Path) -> Json:
            command = OF_HEALTHY.get(case.question, "") if case.is_healthy else ""
            found = pool.submit(report_of, command or COMMANDS[case.question], str(files))
            return answer_of(case.question, found.result())

        answer_all("ncclforensics", __version__, ask, QUESTIONS)


if __name__ == "__main__":
    _answer_all()
