"""Runs and attempts on either side of New Year, where lines carry no year."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.generate import Fault, FaultKind
from ncclforensics.views.json_report import as_object
from tests.test_other_runs import prefix, write_logs

SYSLOG = "{time} gpu-a012 trainer[711]: "


@pytest.mark.parametrize("times", [("Dec 31 23:50:00", "Jan  1 00:20:00"), ("Jan  1 00:20:00", "Dec 31 23:50:00")])
def test_the_attempt_after_new_year_is_the_later_one(times: tuple[str, str], tmp_path: Path) -> None:
    """Rank 2 lags in the attempt of December, and rank 1 in that of January, on the same GPUs."""
    for seed, time in enumerate(times):
        lagging = 2 if time.startswith("Dec") else 1
        folder = tmp_path / f"try{seed}"
        write_logs(folder, ranks=4, tp=2, seed=seed, fault=Fault(FaultKind.LAGGING, (lagging,)))
        prefix(folder, SYSLOG.format(time=time))
        for log in folder.glob("nccl_rank*.log"):
            log.write_text(log.read_text().replace("gpu-b000", "gpu-d000"))  # the seed draws the hosts

    earlier = analyze([str(tmp_path)]).frames["earlier_run"]

    first = times.index("Dec 31 23:50:00")
    assert [tuple(row) for row in earlier.select("job", "next_job").iter_rows()] == [(first, 1 - first)]


@pytest.mark.parametrize(
    ("called", "ended", "is_silent"),
    [
        ("Dec 31 23:50:00", "Jan  1 00:20:00", True),
        ("Jan  1 00:20:00", "Jan  1 00:50:00", True),
        ("Dec 31 23:59:58", "Jan  1 00:00:02", False),
    ],
)
def test_silence_over_new_year_is_seen(called: str, ended: str, is_silent: bool, tmp_path: Path) -> None:
    write_logs(tmp_path, ranks=4, tp=2, lagging=2)
    prefix(tmp_path, SYSLOG.format(time=called))
    for log in tmp_path.glob("nccl_rank*.log"):
        with log.open("a") as file:
            file.write(f"{SYSLOG.format(time=ended)}still waiting\n")

    standstill = as_object(analyze([str(tmp_path)]))["hang"]["standstill"]

    assert ("silence" in standstill["by"]) is is_silent
