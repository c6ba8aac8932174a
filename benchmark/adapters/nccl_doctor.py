"""Ask nccl-doctor: `python -m benchmark.adapters.nccl_doctor FOLDER ANSWERS.json`.

Needs `nccl-doctor` on the PATH. It reads a folder that its own wrapper collects; the logs of a case are laid out as it
asks. Of dumps it is not asked: its converter looks for numbers of calls under a name that PyTorch no longer writes.
Verdicts on transport and tuning are no answer to the question, and leave it open.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmark.adapters.asking import NO_ANSWER, answer_all
from benchmark.case_files import BenchmarkCase
from benchmark.judge import Json

PROGRAM = "nccl-doctor"
SURE = 0.6  # its confidence from which on an answer is taken as likely
NETWORK = ("TRANSIENT_FABRIC_LOSS", "FABRIC_LINK_DEGRADATION", "FABRIC_CONGESTION")


def ask(case: BenchmarkCase, files: Path) -> Json:
    """Lay out the files of a case, and take the verdict out of its JSON."""
    with tempfile.TemporaryDirectory() as name:
        job = Path(name)
        _lay_out(case, files, job)
        command = [PROGRAM, "analyze", str(job), "--json", "--no-store"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer_of(json.loads(ran.stdout)) if ran.stdout.startswith("{") else NO_ANSWER


def answer_of(report: Json) -> Json:
    """The stuck ranks, or a fault of the network."""
    found = report["error_analysis"]
    verdict, ranks = found["verdict"], found["origin"].get("true_origin_ranks", [])
    certainty = "likely" if found["confidence"] >= SURE else "possible"
    if ranks:
        return {"verdict": "lagging-ranks", "culprits": ranks, "certainty": certainty}
    if verdict.startswith(NETWORK):
        return {"verdict": "stuck-together", "culprits": [], "certainty": certainty}
    return NO_ANSWER


def _lay_out(case: BenchmarkCase, files: Path, job: Path) -> None:
    outcome = "SUCCESS" if case.is_healthy else "WATCHDOG_TIMEOUT"
    facts = {"job_id": "1", "nodes": [], "world_size": 8, "outcome": outcome}
    (job / "job.json").write_text(json.dumps(facts), encoding="utf-8")
    (job / "logs").mkdir()
    for log in files.rglob("*.log"):
        shutil.copy(log, job / "logs")


if __name__ == "__main__":
    answer_all(PROGRAM, "", ask, ("hang",), PROGRAM)
