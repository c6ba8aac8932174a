"""That a job stood still is a claim of its own: what shows it, and what speaks against it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind, Plan, generate
from ncclforensics.views import json_report
from tests.incidents import INCIDENTS

HANG, ABORTED = "one-rank-stops-before-an-allreduce", "the-others-abort-after-a-timeout"
START, STEP = datetime(2026, 11, 21, 3, 14), timedelta(milliseconds=300)
Stamp = Callable[[datetime], str]


def by_nccl(time: datetime) -> str:
    return f"[{time:%Y-%m-%d %H:%M:%S}] "


def by_container(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}.500000000Z stdout F "


def stamped(folder: Path, stamp: Stamp, name: str = HANG, *, step: timedelta = STEP) -> datetime:
    """Write the logs of an incident, a time in front of every line; the last time."""
    last = START
    for path in (INCIDENTS / name).glob("*.log"):
        lines = path.read_text().splitlines()
        text = "".join(f"{stamp(START + number * step)}{line}\n" for number, line in enumerate(lines))
        (folder / path.name).write_text(text)
        last = max(last, START + (len(lines) - 1) * step)
    return last


def asked(folder: Path, *, check: bool = False) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json_report.json(analyze([str(folder)], everything=check)))["hang"]
    return answer


def add(folder: Path, name: str, line: str) -> None:
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")


@pytest.mark.parametrize("seconds", [1, 900])
def test_a_line_long_after_the_last_call_shows_a_standstill(tmp_path: Path, seconds: int) -> None:
    last = stamped(tmp_path, by_container)
    add(tmp_path, "nccl_rank0.log", f"{by_container(last + timedelta(seconds=seconds))}still waiting")

    hang, checked = asked(tmp_path), asked(tmp_path, check=True)

    is_long = seconds > 60
    assert hang["standstill"] == {"shown": is_long, "by": ["silence"] * is_long}
    assert (hang["culprits"], hang["certainty"]) == ([11], "likely")
    assert checked["certainty"] == "likely"


@pytest.mark.parametrize(("zone", "minutes"), [(0, 8), (2, 8), (-7, 8), (5.75, 0)])
def test_a_scheduler_may_print_the_time_of_another_zone(tmp_path: Path, zone: float, minutes: int) -> None:
    ended = stamped(tmp_path, by_nccl) + timedelta(hours=zone, minutes=minutes, seconds=5)
    add(
        tmp_path, "slurm.out", f"slurmstepd: error: *** JOB 7 ON gpu-node-00 CANCELLED AT {ended:%Y-%m-%dT%H:%M:%S} ***"
    )

    hang = asked(tmp_path)

    assert hang["standstill"]["by"] == ["silence"] * bool(minutes)
    assert (hang["culprits"], hang["certainty"]) == ([11], "likely" if minutes else "possible")


def test_a_job_that_was_cancelled_right_after_a_call_shows_no_rank_that_stopped(tmp_path: Path) -> None:
    ended = stamped(tmp_path, by_nccl)
    add(
        tmp_path, "slurm.out", f"slurmstepd: error: *** JOB 7 ON gpu-node-00 CANCELLED AT {ended:%Y-%m-%dT%H:%M:%S} ***"
    )

    hang = asked(tmp_path)

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert "until the job was ended" in hang["reason"]


def test_a_job_whose_calls_are_far_apart_has_not_stood_still(tmp_path: Path) -> None:
    last = stamped(tmp_path, by_container, step=timedelta(minutes=2))
    add(tmp_path, "nccl_rank0.log", f"{by_container(last + timedelta(minutes=5))}evaluation")

    assert not asked(tmp_path)["standstill"]["shown"]


def test_calls_of_others_long_after_a_log_ends_show_that_it_is_not_the_whole_one(tmp_path: Path) -> None:
    stamped(tmp_path, by_container)
    path = tmp_path / "nccl_rank11.log"
    path.write_text(path.read_text().replace("T03:", "T02:"))

    assert asked(tmp_path)["certainty"] == "possible"


def test_an_abort_of_all_ranks_shows_no_standstill(tmp_path: Path) -> None:
    logs = {path.name: path.read_text() for path in (INCIDENTS / ABORTED).glob("*.log")}
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
    before = asked(tmp_path)
    created = [line for line in logs["nccl_rank2.log"].splitlines() if line.endswith("Init COMPLETE")]
    for line in created:
        ended = re.sub(r"(INFO) \w+ (comm .*) nvmlDev.* (busId \w+).*", r"\1 \2 \3 - Abort COMPLETE", line)
        add(tmp_path, "nccl_rank2.log", ended)
    after = asked(tmp_path)

    assert (before["standstill"]["by"], before["certainty"]) == (["abort"], "likely")
    assert after["standstill"] == {"shown": False, "by": []}
    assert after["certainty"] == "possible"


def test_a_log_that_ends_while_nccl_connects_names_no_culprit(tmp_path: Path) -> None:
    """Copied while the job ran: the other ranks are one call further, this one still connects for its last call."""
    generate(Plan(nodes=1, tp=4, steps=0, fault=Fault(FaultKind.LAGGING, (2,), "tp", 1), version="2.27.7"), tmp_path)
    log = tmp_path / "nccl_rank2.log"
    lines = log.read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "Connected all rings" in line)
    assert analyze(tmp_path).verdicts[0].verdict == "lagging-ranks"
    log.write_text("".join(lines[: last - 1]))

    verdict = analyze(tmp_path).verdicts[0]

    assert (verdict.verdict, verdict.culprits) == ("undecidable", ())
    assert "while NCCL connects it" in verdict.reason


def test_ranks_that_still_connect_for_a_call_show_no_rank_that_does_not_come_to_it(tmp_path: Path) -> None:
    """Connecting takes seconds on a large job: copied then, the slowest rank has not yet made the call."""
    generate(Plan(nodes=1, tp=4, steps=0, fault=Fault(FaultKind.LAGGING, (2,), "tp", 0), version="2.27.7"), tmp_path)
    assert analyze(tmp_path).verdicts[0].verdict == "lagging-ranks"
    for rank in {*range(8)} - {2}:
        log = tmp_path / f"nccl_rank{rank}.log"
        lines = log.read_text().splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if "Connected all rings" in line)
        log.write_text("".join(lines[: last - 1]))

    verdict = analyze(tmp_path).verdicts[0]

    assert (verdict.verdict, verdict.culprits) == ("undecidable", ())
    assert "while NCCL connects it" in verdict.reason
