"""Cases that were recorded: jobs of the real NCCL on emulated GPUs, and of PyTorch over gloo, with a fault on purpose.

They are the incidents of this repository of which the truth is known, one case each, as files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from benchmark.adapters.recorder_files import dump_paths
from benchmark.case_files import FILES, BenchmarkCase, write_case
from benchmark.judge import Json, Truth

INCIDENTS = Path(__file__).parents[1] / "fixtures" / "incidents"
ORIGINS = ("emulated GPUs", "gloo")  # how `origin` names a recorded job
BESIDE = ("case.json", "report.md")  # what an incident holds beside its files


def write_recorded(root: Path, questions: Collection[str]) -> Iterator[BenchmarkCase]:
    """Copy the recorded jobs below a folder and yield their cases; none where the incidents are absent."""
    for path in sorted(INCIDENTS.glob("*/case.json")):
        incident = json.loads(path.read_text(encoding="utf-8"))
        if not _is_recorded(incident):
            continue
        files = {file for file in path.parent.rglob("*") if file.is_file() and file.name not in BESIDE}
        question = "dumps" if files == set(dump_paths(path.parent)) else "hang"
        if question not in questions:
            continue
        kind, truth = _kind_and_truth(incident["truth"])
        name = f"recorded/{kind}/{path.parent.name}"
        folder = root / name
        shutil.copytree(path.parent, folder / FILES, ignore=shutil.ignore_patterns(*BESIDE), dirs_exist_ok=True)
        yield write_case(BenchmarkCase(name, question, kind, truth, {}), folder)


def _is_recorded(incident: Json) -> bool:
    if incident["synthetic"] or incident["truth"].get("verdict") is None or incident.get("other_jobs"):
        return False
    return any(origin in incident["origin"] for origin in ORIGINS)


def _kind_and_truth(truth: Json) -> tuple[str, Truth]:
    verdict = truth["verdict"]
    kind = "none" if verdict == "no-hang" else verdict
    return kind, Truth(frozenset({verdict}), (frozenset(truth["culprits"] or ()),))
