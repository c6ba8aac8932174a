"""Ask Ray's rule on RAS reports: `python -m benchmark.adapters.ray_ras FOLDER ANSWERS.json`.

Needs ray with `ray.train.v2._internal.callbacks.nccl_ras`. Of two reports of `ncclras` it says whether a communicator
has different counts of calls that did not move between them: that a job hangs, and never which rank is to blame. So
all its answers are open, and `sees_fault` is what it says.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from benchmark.adapters.asking import NO_ANSWER, answer_all
from benchmark.case_files import BenchmarkCase
from benchmark.judge import Json

MODULE = "ray.train.v2._internal.callbacks.nccl_ras"


def hangs(rule: Any, texts: list[str]) -> bool:
    """Whether the rule sees a communicator that stands still between the first report and the last."""
    reports = [report for report in map(rule.parse_ras_schema, texts) if report is not None]
    if not reports:
        return False
    moved = rule.compute_report_op_diff(reports[0], reports[-1])
    return any(
        all(not delta for counts in moved.get(name, {}).values() for delta in counts.values())
        for name in reports[-1].mismatched_comms
    )


def main() -> None:
    """Answer all cases, or say what is not installed."""
    try:
        rule = importlib.import_module(MODULE)
    except ImportError as error:
        sys.exit(f"this Python has no Ray with its rule on RAS reports: {error}")

    def ask(_case: BenchmarkCase, files: Path) -> Json:
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(files.iterdir())]
        return {**NO_ANSWER, "certainty": "likely", "sees_fault": hangs(rule, texts)}

    answer_all("Ray's RAS rule", "", ask, ("ras",))


if __name__ == "__main__":
    main()
