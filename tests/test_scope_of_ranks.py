"""A rank of a process group is no rank of the job, and a device is no rank, where no line says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.budget import sample
from tests.test_meanings import SHAPES, Sample, samples

RANK_OF_JOB = re.compile(r"^\[rank\d+\]: ?")
GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID \S+?|\d+) Rank \d+\]")
OF_DEVICE = re.compile(r"^(?:\[[^\]]*\] )?\S+:\d+:\d+ \[\d+\] ")
ALL = [one for shape in SHAPES for one in samples(shape)]
OF_GROUPS = [one for one in ALL if GROUP.search(one.text)]
OF_DEVICES = [one for one in ALL if OF_DEVICE.match(one.text) and "rank" not in one.text.lower()]
NAMED = re.compile(r"\brank 5\b$|\brank 5 (?!of process group)|\b(?:called by|of) all ranks\b|\bof the world\b")


def sentences(text: str, folder: Path) -> tuple[list[str], dict[str, object]]:
    (folder / "job.log").write_text(f"{text}\n")
    report = json_report.as_object(analyze(str(folder / "job.log"), everything=True))
    hang = report["hang"]
    assert hang["culprits"] == []
    return [str(hang["reason"]), *(finding["title"] for finding in report["findings"])], report["run"]


@pytest.mark.parametrize("example", OF_GROUPS, ids=lambda one: f"{one.shape.frame}-{one.form}")
def test_a_rank_of_a_group_is_no_rank_of_the_job(example: Sample, tmp_path: Path) -> None:
    text = GROUP.sub("[PG ID 7 PG GUID 43(mesh_tp) Rank 5]", RANK_OF_JOB.sub("", example.text))

    texts, run = sentences(text, tmp_path)

    assert (run["world_size"], run["ranks_seen"]) == (None, [])
    assert [text for text in texts if NAMED.search(text)] == []


@pytest.mark.parametrize("example", sample(OF_DEVICES, 12), ids=lambda one: f"{one.shape.frame}-{one.form}")
def test_a_device_is_no_rank(example: Sample, tmp_path: Path) -> None:
    text = re.sub(r"\[\d+\] ", "[5] ", example.text.removeprefix("[2026-03-02 11:04:57] "), count=1)

    texts, _ = sentences(text, tmp_path)

    assert [text for text in texts if NAMED.search(text)] == []
