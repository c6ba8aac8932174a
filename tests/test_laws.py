"""Laws of the verdict: what a log lacks may lower the certainty or widen the suspects, and accuses no innocent rank.

`make test` tries them on a few incidents, a full run on all incidents about a job that stands still.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.budget import IS_FULL
from tests.incidents import HANGS, Incident, answer

Json = dict[str, Any]
Logs = dict[str, list[bytes]]
CALL = re.compile(rb"NCCL (INFO|TRACE) [A-Za-z]+: opCount|NCCL CALL ")
FEW = ("one-rank-calls-allgather-instead", "one-rank-stops-before-an-allreduce")


def has_only_nccl_logs(incident: Incident) -> bool:
    """Whether NCCL prints in every one of several logs; dumps and journals are read as a whole."""
    texts = [(incident.folder / name).read_bytes() for name in incident.logs]
    return len(texts) > 1 and all(b" NCCL INFO " in text and b"journal" not in text for text in texts)


LOGS = [incident for incident in HANGS if (IS_FULL or incident.name in FEW) and has_only_nccl_logs(incident)]
SEEDS = range(4 if IS_FULL else 1)
LONGEST = 40  # lines in one stretch


def stretch(lines: list[bytes], draw: random.Random, longest: int) -> tuple[int, int]:
    """The first and the last line of a stretch that ends before the last call."""
    last_call = max((number for number, line in enumerate(lines) if CALL.search(line)), default=len(lines) - 1)
    first = draw.randrange(max(last_call, 1))
    return first, min(first + draw.randrange(1, longest + 1), last_call)


def without_stretch(logs: Logs, draw: random.Random, *, longest: int = LONGEST, mark: bytes = b"") -> Logs:
    name = draw.choice(sorted(logs))
    first, last = stretch(logs[name], draw, longest)
    return {**logs, name: logs[name][:first] + [mark] * bool(mark) + logs[name][last:]}


def without_line(logs: Logs, draw: random.Random) -> Logs:
    return without_stretch(logs, draw, longest=1)


def with_omissions(logs: Logs, draw: random.Random) -> Logs:
    """Lines are left out of every log, and a line says so."""
    for name in logs:
        part = without_stretch({name: logs[name]}, draw, mark=draw.choice([b"[...]\n", b"(12 lines omitted)\n"]))
        logs = {**logs, **part}
    return logs


def without_log(logs: Logs, draw: random.Random) -> Logs:
    absent = draw.choice(sorted(logs))
    return {name: lines for name, lines in logs.items() if name != absent}


def without_beginnings(logs: Logs, draw: random.Random) -> Logs:
    """Every log begins in the middle, each at another line."""
    return {name: lines[stretch(lines, draw, 1)[0] :] for name, lines in logs.items()}


def with_one_short_log(logs: Logs, draw: random.Random) -> Logs:
    """One log was copied earlier than the others."""
    name = draw.choice(sorted(logs))
    return {**logs, name: logs[name][: stretch(logs[name], draw, 1)[0]]}


def ends_only(logs: Logs, draw: random.Random) -> Logs:
    """As `kubectl logs --tail` or `tail` prints, of every log as many lines."""
    longest = max(1, draw.randrange(max(map(len, logs.values()))))
    return {name: lines[-longest:] for name, lines in logs.items()}


LOSSES: Mapping[str, Callable[[Logs, random.Random], Logs]] = {
    "a line": without_line,
    "a stretch": without_stretch,
    "what an omission marks": with_omissions,
    "a log": without_log,
    "all beginnings": without_beginnings,
    "the end of a log": with_one_short_log,
    "all but the last lines": ends_only,
}


def merged(logs: Logs, draw: random.Random) -> Logs:
    """All logs in one file; the lines of a process keep their order, and processes advance together."""
    placed = [
        ((number + draw.random()) / len(lines), name, number)
        for name, lines in logs.items()
        for number in range(len(lines))
    ]
    rest = {name: iter(lines) for name, lines in logs.items()}
    return {"job.log": [next(rest[name]).rstrip(b"\n") + b"\n" for _, name, _ in sorted(placed)]}


def renamed(logs: Logs, draw: random.Random) -> Logs:
    return {f"{draw.randrange(1 << 30):08x}.txt": lines for lines in logs.values()}


def in_halves(logs: Logs, draw: random.Random) -> Logs:
    """Each log in two files that rotation could have made."""
    halves: Logs = {}
    for name, lines in logs.items():
        middle = draw.randrange(len(lines) // 3, 2 * len(lines) // 3 + 1)
        halves |= {f"{name}.1": lines[:middle], name: lines[middle:]}
    return halves


def stamped(logs: Logs, draw: random.Random) -> Logs:
    return {
        name: [b"2026-11-21T03:14:%02d.%03dZ " % divmod(number, 1000) + line for number, line in enumerate(lines)]
        for name, lines in logs.items()
    }


def on_a_screen(logs: Logs, draw: random.Random) -> Logs:
    """Copied from a screen of 80 columns that fills its lines with blanks."""
    return {
        name: [
            line.rstrip(b"\n")[start : start + 80].ljust(80) + b"\n"
            for line in lines
            for start in range(0, max(1, len(line) - 1), 80)
        ]
        for name, lines in logs.items()
    }


def printed_twice(logs: Logs, draw: random.Random) -> Logs:
    """Into a file of each rank, and into the output of the job."""
    return logs | merged(logs, draw)


def two_in_a_file(logs: Logs, draw: random.Random) -> Logs:
    """NCCL_DEBUG_FILE without %p: two ranks print into one file."""
    names = sorted(logs)
    pairs = [names[first : first + 2] for first in range(0, len(names), 2)]
    return {
        f"nccl_{number}.log": merged({name: logs[name] for name in pair}, draw)["job.log"]
        for number, pair in enumerate(pairs)
    }


HANDLINGS: Mapping[str, Callable[[Logs, random.Random], Logs]] = {
    "merged": merged, "renamed": renamed, "in halves": in_halves, "stamped": stamped, "on a screen": on_a_screen,
    "printed twice": printed_twice, "two in a file": two_in_a_file,
}  # fmt: skip


def logs_of(incident: Incident) -> Logs:
    return {name: (incident.folder / name).read_bytes().splitlines(keepends=True) for name in incident.logs}


def asked(logs: Logs, folder: Path) -> Json:
    for name, lines in logs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"".join(lines))
    report = analyze([str(folder)])
    found: Json = json_report.as_object(report)["hang"]
    return {**found, "rests_on_stall": any(row["rests_on_stall"] for row in report.verdicts[:1])}


def accused(hang: Json) -> set[int]:
    return set(hang["culprits"])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("incident", LOGS, ids=lambda incident: incident.name)
def test_what_is_lost_accuses_nobody(incident: Incident, loss: str, seed: int, tmp_path: Path) -> None:
    before = answer(incident).json["hang"]
    draw = random.Random(f"{incident.name} {loss} {seed}")

    after = asked(LOSSES[loss](logs_of(incident), draw), tmp_path)

    # Whoever asks `hang` says that the job stands still; a verdict that rests on that is only possible in `check`.
    is_sure = after["certainty"] != "possible" and not after["rests_on_stall"]
    innocent = accused(after) - accused(before)
    has_more_suspects = bool(accused(before)) and accused(after) > accused(before) and after["certainty"] != "certain"
    assert not (innocent and is_sure) or has_more_suspects, f"{after['verdict']}: {after['reason']}"
    if before["verdict"] == "no-hang":
        assert after["verdict"] in ("no-hang", "undecidable") or not is_sure
    if after["certainty"] == "certain" and after["verdict"] not in ("undecidable", "no-hang"):
        assert accused(after) == accused(before)


@pytest.mark.parametrize("handling", HANDLINGS)
@pytest.mark.parametrize("incident", LOGS, ids=lambda incident: incident.name)
def test_how_lines_are_stored_changes_nothing(incident: Incident, handling: str, tmp_path: Path) -> None:
    before = answer(incident).json["hang"]
    draw = random.Random(f"{incident.name} {handling}")

    after = asked(HANDLINGS[handling](logs_of(incident), draw), tmp_path)

    for name in ("verdict", "culprits", "certainty", "operation"):
        assert after[name] == before[name], name
