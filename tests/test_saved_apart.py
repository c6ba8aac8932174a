"""Logs that were saved in parts, each where it lies, give the verdict that all logs together give."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given

from ncclforensics import analyze
from ncclforensics.archive.write import save
from ncclforensics.simulate.generate import Plan, generate
from ncclforensics.views import json_report
from tests.budget import IS_FULL, examples
from tests.incidents import HANGS, Incident, answer
from tests.test_generated_runs import plans

OF_SEVERAL_LOGS = [incident for incident in HANGS if len(incident.logs) > 1]
SAMPLE = [incident for number, incident in enumerate(OF_SEVERAL_LOGS) if IS_FULL or number % 25 == 7]


def save_apart(parts: Sequence[Sequence[str]], folder: Path) -> list[str]:
    """Save each part of the logs as a file of its own, and return the paths of the files."""
    files = [folder / f"node{number}.ncclf" for number, _ in enumerate(parts)]
    for part, file in zip(parts, files, strict=True):
        save(analyze(part, full=True, everything=True), file)
    return [str(file) for file in files]


def said(paths: Sequence[str]) -> dict[str, Any]:
    """The report without the texts of evidence: a saved run holds those of the first and last lines of each kind."""
    report = json_report.as_object(analyze(paths))
    return without_texts(report)


def without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_texts(item) for name, item in value.items() if name != "text"}
    return [without_texts(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("incident", SAMPLE, ids=lambda incident: incident.name)
@pytest.mark.parametrize("nodes", [2, None], ids=["by node", "by rank"])
def test_logs_saved_apart_give_the_report_of_all_logs(incident: Incident, nodes: int | None, tmp_path: Path) -> None:
    parts = [incident.logs[number::nodes] for number in range(nodes)] if nodes else [[log] for log in incident.logs]
    with chdir(incident.folder):
        files = save_apart(parts, tmp_path)

    assert said(files) == without_texts(answer(incident).json)


@examples(1)
@given(plan=plans())
def test_generated_logs_saved_by_node_give_the_report_of_all_logs(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))
        logs = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file() and path.suffix != ".json")
        files = save_apart([logs[:8], logs[8:]], Path(folder))

        assert said(files) == said(logs)


def test_the_lines_that_a_verdict_over_parts_cites_are_quoted(tmp_path: Path) -> None:
    (incident,) = (incident for incident in HANGS if incident.name == "one-rank-stops-before-an-allreduce")
    with chdir(incident.folder):
        files = save_apart([incident.logs[:8], incident.logs[8:]], tmp_path)

    report = json_report.as_object(analyze(files))

    assert report["findings"] == answer(incident).json["findings"]
