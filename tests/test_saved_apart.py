"""Logs that were saved in parts, each where it lies, give the verdict that all logs together give."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given

from ncclforensics import analyze, cli
from ncclforensics.archive.write import save
from ncclforensics.simulate.generate import Plan, generate
from ncclforensics.views import json_report
from tests.budget import IS_FULL, examples
from tests.incidents import HANGS, Incident, answer
from tests.test_generated_runs import plans

OF_SEVERAL_LOGS = [incident for incident in HANGS if len(incident.logs) > 1]
(LAGGING,) = (incident for incident in HANGS if incident.name == "one-rank-stops-before-an-allreduce")
READ = "read the traceback"  # by a command where its log is at hand
SAMPLE = [incident for number, incident in enumerate(OF_SEVERAL_LOGS) if IS_FULL or number % 25 == 7]


def save_apart(parts: Sequence[Sequence[str]], folder: Path, logs: Path) -> list[str]:
    """Save each part of the logs as a file of its own, and return the paths of the files; parts are paths in `logs`."""
    files = [folder / f"node{number}.ncclf" for number, _ in enumerate(parts)]
    with chdir(logs):
        for part, file in zip(parts, files, strict=True):
            report = analyze(part, full=True, everything=True)
            report.hash_inputs()
            save(report, file)
    return [str(file) for file in files]


def said(paths: Sequence[str]) -> dict[str, Any]:
    """The report without the texts of evidence: a saved run holds those of the first and last lines of each kind."""
    report = json_report.as_object(analyze(paths))
    return without_texts(report)


def without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_texts(item) for name, item in value.items() if name != "text"}
    if isinstance(value, str) and value.startswith(READ):
        return READ
    return [without_texts(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("incident", SAMPLE, ids=lambda incident: incident.name)
@pytest.mark.parametrize("nodes", [2, None], ids=["by node", "by rank"])
def test_logs_saved_apart_give_the_report_of_all_logs(incident: Incident, nodes: int | None, tmp_path: Path) -> None:
    parts = [incident.logs[number::nodes] for number in range(nodes)] if nodes else [[log] for log in incident.logs]
    files = save_apart(parts, tmp_path, incident.folder)

    assert said(files) == without_texts(answer(incident).json)


@examples(1)
@given(plan=plans())
def test_generated_logs_saved_by_node_give_the_report_of_all_logs(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))
        logs = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file() and path.suffix != ".json")
        files = save_apart([logs[:8], logs[8:]], Path(folder), Path.cwd())

        assert said(files) == said(logs)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A job of two nodes in which rank 11 stops, saved on each node."""
    return save_apart([LAGGING.logs[:8], LAGGING.logs[8:]], tmp_path_factory.mktemp("nodes"), LAGGING.folder)


def cut_frame(file: str, name: str) -> None:
    """Overwrite the middle of a frame, as a copy that was interrupted leaves it."""
    with zipfile.ZipFile(file) as archive:
        place = archive.getinfo(f"frames/{name}.parquet")
    data = bytearray(Path(file).read_bytes())
    start = place.header_offset + 200
    data[start : start + 100] = bytes(100)
    Path(file).write_bytes(data)


def test_the_lines_that_a_verdict_over_parts_cites_are_quoted(nodes: list[str]) -> None:
    report = json_report.as_object(analyze(nodes))

    assert report["hang"]["culprits"] == [11]
    assert report["findings"] == answer(LAGGING).json["findings"]


def test_merged_runs_give_the_report_of_their_parts(nodes: list[str], tmp_path: Path) -> None:
    merged = str(tmp_path / "job.ncclf")
    assert cli.main(["merge", merged, *nodes]) == 0

    assert json_report.as_object(analyze([merged])) == json_report.as_object(analyze(nodes))


def test_merging_parts_twice_counts_nothing_twice(nodes: list[str], tmp_path: Path) -> None:
    assert cli.main(["merge", str(tmp_path / "job.ncclf"), *nodes]) == 0

    report = json_report.as_object(analyze([str(tmp_path / "job.ncclf"), nodes[0]]))

    assert report["hang"] == json_report.as_object(analyze(nodes))["hang"]
    assert ["; left out" in "".join(one["problems"]) for one in report["inputs"]].count(True) == 8


@pytest.mark.parametrize("frame", ["small_frames", "operation"])
def test_a_damaged_part_is_named_and_the_others_are_used(
    frame: str, nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [shutil.copy(node, tmp_path) for node in nodes]
    cut_frame(parts[0], frame)

    assert cli.main(["merge", str(tmp_path / "job.ncclf"), *parts]) == 0

    assert f"{parts[0]}: is a damaged saved run: frame" in capsys.readouterr().err
    report = json_report.as_object(analyze([str(tmp_path / "job.ncclf")]))
    assert report["run"]["ranks_seen"] == json_report.as_object(analyze(nodes[1:]))["run"]["ranks_seen"]
    assert [bool(one["problems"]) for one in report["inputs"]].count(True) == 8
    assert report["hang"]["certainty"] != "certain"


def test_damage_of_all_parts_is_an_error(nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [shutil.copy(node, tmp_path) for node in nodes]
    for part in parts:
        cut_frame(part, "small_frames")

    assert cli.main(["hang", *parts]) == 2
    assert "is a damaged saved run" in capsys.readouterr().err


def test_merge_overwrites_nothing_and_takes_no_logs(
    nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(LAGGING.folder / LAGGING.logs[0])

    assert cli.main(["merge", *nodes]) == 2
    assert "exists: the first argument is the file that merge writes" in capsys.readouterr().err
    assert cli.main(["merge", str(tmp_path / "job.ncclf"), nodes[0], log]) == 2
    assert f"{log} is no saved run" in capsys.readouterr().err
