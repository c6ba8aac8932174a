"""Laws of the verdict: what a log lacks may lower the certainty or widen the suspects, and accuses no innocent rank.

`make test` tries them on a few incidents, a full run on all incidents about a job that stands still.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.budget import IS_FULL
from tests.handlings import ARRANGED, LOSSES, Logs, read_logs, write_logs
from tests.incidents import HANGS, Incident, answer, each_in_turn
from tests.selected_lines import SELECTED

Json = dict[str, Any]
FEW = ("one-rank-calls-allgather-instead", "one-rank-stops-before-an-allreduce")


def has_only_nccl_logs(incident: Incident) -> bool:
    """Whether NCCL prints in every one of several logs; dumps and journals are read as a whole."""
    texts = [(incident.folder / name).read_bytes() for name in incident.logs]
    return len(texts) > 1 and all(b" NCCL INFO " in text and b"journal" not in text for text in texts)


SEVERAL_RUNS = ("two-runs-in-the-same-files",)  # a loss may leave only the lines of the first, which stood still
LOGS = [incident for incident in HANGS if (IS_FULL or incident.name in FEW) and has_only_nccl_logs(incident)]
SEEDS = range(4 if IS_FULL else 1)
OF_ONE_RUN = [incident for incident in LOGS if incident.name not in SEVERAL_RUNS]
WITH_LESS = [(incident, loss) for loss in LOSSES for incident in OF_ONE_RUN] + each_in_turn(OF_ONE_RUN, SELECTED)
# Found by full runs: losses behind which an innocent rank was accused.
FOUND = {
    ("the-network-fails-for-all", "copies of unequal age", 1),
    ("a-rank-is-killed", "copies of unequal age", 1),
    ("old-logs-without-commid", "a stretch", 2),
    ("old-logs-without-commid", "lines overtaking", 1),
    ("a-straggler-that-always-arrives", "lines overtaking", 3),
}
DRAWN = [(incident, loss, seed) for seed in SEEDS for incident, loss in WITH_LESS]
FOUND_BEFORE = [
    (incident, loss, seed) for name, loss, seed in sorted(FOUND) for incident in HANGS if incident.name == name
]


def asked(logs: Logs, folder: Path) -> Json:
    write_logs(logs, folder)
    report = analyze([str(folder)])
    found: Json = json_report.as_object(report)["hang"]
    return {**found, "rests_on_stall": any(row.rests_on_stall for row in report.verdicts[:1])}


def accused(hang: Json) -> set[int]:
    return set(hang["culprits"])


def failed(report: Json) -> set[int]:
    """The ranks that report a failure of their own, of which an answer may accuse none where all do."""
    causes = (finding for finding in report["findings"] if (finding["severity"], finding["role"]) == ("error", "cause"))
    return {rank for finding in causes for rank in finding["ranks"]}


@pytest.mark.parametrize(
    ("incident", "loss", "seed"),
    DRAWN + [case for case in FOUND_BEFORE if case not in DRAWN],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_is_lost_accuses_nobody(incident: Incident, loss: str, seed: int, tmp_path: Path) -> None:
    intact = answer(incident).json
    before = intact["hang"]
    draw = random.Random(f"{incident.name} {loss} {seed}")

    after = asked({**LOSSES, **SELECTED}[loss](read_logs(incident.folder, incident.logs), draw), tmp_path)

    # Whoever asks `hang` says that the job stands still; a verdict that rests on that is only possible in `check`.
    is_sure = after["certainty"] != "possible" and not after["rests_on_stall"]
    innocent = accused(after) - accused(before) - failed(intact)
    has_more_suspects = bool(accused(before)) and accused(after) > accused(before) and after["certainty"] != "certain"
    assert not (innocent and is_sure) or has_more_suspects, f"{after['verdict']}: {after['reason']}"
    if before["verdict"] == "no-hang":
        assert after["verdict"] in ("no-hang", "undecidable") or not is_sure
    if after["certainty"] == "certain" and after["verdict"] not in ("undecidable", "no-hang"):
        assert accused(after) == accused(before)


ARRANGED_CASES = each_in_turn(LOGS, ARRANGED)
FOUND_STORED = (
    ("a-rank-never-splits", "printed twice"),
    ("a-rank-never-splits", "on a screen"),
    ("two-jobs-in-one-folder", "printed twice"),
)
FOUND_ARRANGED = [
    (incident, handling) for incident in HANGS for name, handling in FOUND_STORED if incident.name == name
]


@pytest.mark.parametrize(
    ("incident", "handling"),
    ARRANGED_CASES + [case for case in FOUND_ARRANGED if case not in ARRANGED_CASES],
    ids=lambda value: getattr(value, "name", value),
)
def test_how_lines_are_stored_changes_nothing(incident: Incident, handling: str, tmp_path: Path) -> None:
    before = answer(incident).json["hang"]
    draw = random.Random(f"{incident.name} {handling}")

    after = asked(ARRANGED[handling](read_logs(incident.folder, incident.logs), draw), tmp_path)

    for name in ("verdict", "culprits", "certainty"):
        assert after[name] == before[name], name
    if before["culprits"]:
        assert after["operation"] == before["operation"]
