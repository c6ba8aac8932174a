"""Several runs of a job in one set of logs: the verdict is that of the last one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from tests.incidents import INCIDENTS

MISMATCH, LAGGING = "one-rank-calls-allgather-instead", "one-rank-stops-before-an-allreduce"
VERDICTS = {MISMATCH: "collective-mismatch", LAGGING: "lagging-ranks"}
every_order = pytest.mark.parametrize(("first", "second"), [(MISMATCH, LAGGING), (LAGGING, MISMATCH)])


def logs(incident: str) -> dict[str, str]:
    """The logs of some ranks of an incident, on hosts with the same names in all of them."""
    return {path.name: path.read_text(encoding="utf-8") for path in (INCIDENTS / incident).glob("*.log")}


def verdicts(folder: Path) -> list[str]:
    return [row["verdict"] for row in analyze([str(folder)]).verdicts]


@every_order
def test_a_run_appended_to_the_files_of_another_is_the_last_one(tmp_path: Path, first: str, second: str) -> None:
    earlier, later = logs(first), logs(second)
    for name in earlier.keys() | later.keys():
        (tmp_path / name).write_text(earlier.get(name, "") + later.get(name, ""), encoding="utf-8")

    assert verdicts(tmp_path) == [VERDICTS[second], VERDICTS[first]]


@every_order
def test_the_last_attempt_of_torchrun_is_the_last_run(tmp_path: Path, first: str, second: str) -> None:
    for number, incident in enumerate((first, second)):
        for name, text in logs(incident).items():
            file = tmp_path / f"attempt_{number}" / name.split(".")[0] / "stdout.log"
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")

    assert verdicts(tmp_path) == [VERDICTS[second], VERDICTS[first]]


@every_order
def test_times_tell_which_run_is_the_last_one(tmp_path: Path, first: str, second: str) -> None:
    for hour, incident in enumerate((first, second)):
        (tmp_path / incident).mkdir()
        for name, text in logs(incident).items():
            stamped = "".join(f"2026-11-21T0{hour}:14:15.1Z {line}\n" for line in text.splitlines())
            (tmp_path / incident / name).write_text(stamped, encoding="utf-8")

    assert verdicts(tmp_path) == [VERDICTS[second], VERDICTS[first]]


@every_order
def test_runs_whose_order_is_unknown_are_reported_worst_first(tmp_path: Path, first: str, second: str) -> None:
    for folder, incident in zip(("a", "b"), (first, second), strict=True):
        (tmp_path / folder).mkdir()
        for name, text in logs(incident).items():
            (tmp_path / folder / name).write_text(text, encoding="utf-8")

    assert verdicts(tmp_path) == ["collective-mismatch", "lagging-ranks"]
