"""What people and machines do to logs before they are read does not change the verdict."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
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
from tests.incidents import ALL, Incident, answer

Json = dict[str, Any]
Logs = dict[str, bytes]
TIME = "2026-11-21T03:14:15.100000000Z"
NAMES = (
    "one-rank-stops-before-an-allreduce",
    "one-rank-calls-allgather-instead",
    "a-recv-is-never-posted",
    "a-skipped-call-in-a-merged-log",
    "communicators-in-opposite-order",
)
INCIDENTS = [incident for incident in ALL if incident.name in NAMES]
TRIED = 2  # of these with each handling, unless all are asked for


def by_line(wrap: Callable[[str], str]) -> Callable[[Logs], Logs]:
    """Something done to every line of every log; each still stands in a line of its own."""

    def handle(logs: Logs) -> Logs:
        return {
            name: "".join(wrap(line) + "\n" for line in data.decode().splitlines()).encode()
            for name, data in logs.items()
        }

    return handle


def renamed(logs: Logs) -> Logs:
    return {f"{len(logs) - place:03d}-{place * 7919 % 1000:x}.txt": data for place, data in enumerate(logs.values())}


def exported(logs: Logs) -> Logs:
    """As a log store answers: one array, the newest record first."""
    return {
        f"{name}.json": json.dumps(
            [
                {"timestamp": f"2026-11-21T03:14:{number // 1000 % 60:02d}.{number % 1000:03d}Z", "message": line}
                for number, line in enumerate(data.decode().splitlines())
            ][::-1],
            indent=1,
        ).encode()
        for name, data in logs.items()
    }


def rotated(logs: Logs) -> Logs:
    parts: Logs = {}
    for name, data in logs.items():
        lines = data.splitlines(keepends=True)
        first, second = len(lines) // 3, 2 * len(lines) // 3
        parts[f"{name}.2.gz"] = gzip.compress(b"".join(lines[:first]))
        parts[f"{name}.1"] = b"".join(lines[first:second])
        parts[name] = b"".join(lines[second:])
    return parts


def with_older_copies(logs: Logs) -> Logs:
    older = {f"{name}.gz": gzip.compress(data[: len(data) * 2 // 3]) for name, data in list(logs.items())[:2]}
    return logs | older | {f"logs.bak/{name}": data for name, data in list(logs.items())[-2:]}


def in_batches(logs: Logs) -> Logs:
    """Three lines in one record."""
    batches: Logs = {}
    for name, data in logs.items():
        lines = data.decode().splitlines()
        texts = ["\n".join(lines[start : start + 3]) for start in range(0, len(lines), 3)]
        batches[name] = "".join(json.dumps({"time": TIME, "message": text}) + "\n" for text in texts).encode()
    return batches


HANDLINGS: Mapping[str, Callable[[Logs], Logs]] = {
    "docker": by_line(lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": TIME})),
    "JSON lines": by_line(lambda line: json.dumps({"timestamp": TIME, "level": "info", "message": line})),
    "journald": by_line(lambda line: json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1795230855100000"})),
    "docker around JSON lines": by_line(
        lambda line: json.dumps({"log": json.dumps({"msg": line, "level": "info"}) + "\n", "time": TIME})
    ),
    "CRI": by_line(lambda line: f"{TIME} stdout F {line}"),
    "CRI around JSON lines": by_line(lambda line: f"{TIME} stdout F {json.dumps({'msg': line, 'level': 'info'})}"),
    "CRLF": by_line(lambda line: f"{line}\r"),
    "padded with blanks": by_line(lambda line: line.ljust(240)),
    "compressed": lambda logs: {f"{name}.gz": gzip.compress(data) for name, data in logs.items()},
    "renamed": renamed,
    "exported": exported,
    "rotated": rotated,
    "older copies": with_older_copies,
    "several lines in a record": in_batches,
}


def handled(incident: Incident, handling: str, folder: Path) -> Json:
    """The answer on an incident whose logs were handled so."""
    write(incident, handling, folder)
    return json_report.as_object(analyze([str(folder)]))


def write(incident: Incident, handling: str, folder: Path) -> None:
    """Put the logs of an incident into a folder, handled so."""
    logs = {name: (incident.folder / name).read_bytes() for name in incident.logs}
    for name, data in HANDLINGS[handling](logs).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def pairs(handlings: Iterable[str]) -> list[object]:
    """Every incident with every handling; in `make test`, two incidents of five with each handling, in turn."""
    return [
        pytest.param(incident, handling, id=f"{incident.name}-{handling}")
        for place, handling in enumerate(handlings)
        for number, incident in enumerate(INCIDENTS)
        if budget.IS_FULL or (number - 2 * place) % len(INCIDENTS) < TRIED
    ]


@pytest.mark.parametrize(("incident", "handling"), pairs(HANDLINGS))
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
