"""What people and machines do to logs before they are read does not change the verdict."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.report.build import build_report
from ncclforensics.views import json_report
from tests import budget
from tests.handlings import STORED, read_logs, write_logs
from tests.incidents import ALL, Incident, answer

Json = dict[str, Any]
NAMES = (
    "one-rank-stops-before-an-allreduce",
    "one-rank-calls-allgather-instead",
    "a-recv-is-never-posted",
    "a-skipped-call-in-a-merged-log",
    "communicators-in-opposite-order",
)
INCIDENTS = [incident for incident in ALL if incident.name in NAMES]
TRIED = 1  # of these with each handling, in turn, unless all are asked for


def handled(incident: Incident, handling: str, folder: Path) -> Json:
    """The answer on an incident whose logs were handled so."""
    write(incident, handling, folder)
    return json_report.as_object(analyze([str(folder)]))


def write(incident: Incident, handling: str, folder: Path) -> None:
    """Put the logs of an incident into a folder, handled so."""
    logs = read_logs(incident.folder, incident.logs)
    write_logs(STORED[handling](logs, random.Random(handling)), folder)


def pairs(handlings: Iterable[str]) -> list[object]:
    """Every incident with every handling; in `make test`, one incident of five with each handling, in turn."""
    return [
        pytest.param(incident, handling, id=f"{incident.name}-{handling}")
        for place, handling in enumerate(handlings)
        for number, incident in enumerate(INCIDENTS)
        if budget.IS_FULL or (number - 2 * place) % len(INCIDENTS) < TRIED
    ]


@pytest.mark.parametrize(("incident", "handling"), pairs(STORED))
def test_the_verdict_is_that_of_the_logs_as_they_were(incident: Incident, handling: str, tmp_path: Path) -> None:
    expected = answer(incident).json
    found = handled(incident, handling, tmp_path)

    for name in ("verdict", "certainty", "culprits", "victims"):
        assert found["hang"][name] == expected["hang"][name], name
    assert found["run"]["world_size"] == expected["run"]["world_size"]
    for one in found["inputs"]:
        assert one["lines"] == sum(one[kind] for kind in ("recognised", "application", "unrecognised", "damaged"))
    recognised = sum(one["recognised"] for one in found["inputs"])
    assert recognised == sum(one["recognised"] for one in expected["inputs"])
    for cited in (line for finding in found["findings"] for line in finding["evidence"]):
        assert_stands_there(Path(cited["path"]), cited["line"], cited["text"])


WINDOWED = ("docker", "several lines in a record", "CRI around JSON lines", "rotated", "exported")


@pytest.mark.parametrize(("incident", "handling"), pairs(WINDOWED))
def test_windows_show_what_the_whole_of_handled_logs_shows(incident: Incident, handling: str, tmp_path: Path) -> None:
    expected = answer(incident).json["hang"]
    write(incident, handling, tmp_path)
    run = open_run(find([str(tmp_path)]), ReadPolicy(window=3 << 10, small_file=6 << 10, chunk=4 << 10))
    run.read_until_decided()
    found = json_report.as_object(build_report(run))

    for name in ("verdict", "certainty", "culprits", "victims"):
        assert found["hang"][name] == expected[name], name
    for one in found["inputs"]:
        assert one["lines"] == sum(one[kind] for kind in ("recognised", "application", "unrecognised", "damaged"))
    for cited in (line for finding in found["findings"] for line in finding["evidence"]):
        assert_stands_there(Path(cited["path"]), cited["line"], cited["text"])


def assert_stands_there(path: Path, number: int, text: str) -> None:
    """A line that is cited stands in the file with this number."""
    data = path.read_bytes()
    line = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")[number - 1]
    assert line.strip()[:500] == text
