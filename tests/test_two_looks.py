"""Two looks show a standstill only at the files that the job writes to; a copy never grows."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from ncclforensics import analyze
from ncclforensics.archive.manifest import FIELDS
from ncclforensics.archive.write import save
from ncclforensics.inputs import file_state
from ncclforensics.report.live_files import LOOK_AGAIN
from ncclforensics.report.redacted_run import redact_report
from ncclforensics.views import json_report
from ncclforensics.views.text_screen import screen
from tests.budget import drawn
from tests.incidents import INCIDENTS

HANG, SAME_CALLS = "one-rank-stops-before-an-allreduce", "a-straggler-that-always-arrives"
SLURM_END = "slurmstepd: error: *** JOB 7 ON gpu-node-00 CANCELLED AT 2026-11-21T03:20:00 ***\n"
Copy = Callable[[Path, Path], object]


def live(folder: Path, incident: str = HANG) -> Path:
    """Write the logs of an incident as a job does: in a folder that is older than their last lines."""
    shutil.copytree(INCIDENTS / incident, folder, ignore=lambda _, names: [n for n in names if not n.endswith(".log")])
    for log in folder.iterdir():
        log.write_bytes(log.read_bytes())
    make_older(folder)
    return folder


def make_older(folder: Path) -> None:
    began = time.time() - 7200
    os.utime(folder, (began, began))


def add(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(line)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return the answer of `hang` to these paths, looked at so many seconds after the test began."""
    began = time.time()

    def answer(*paths: Path | str, later: float = 0.0, since: Path | None = None, saved: Path | None = None) -> Any:
        monkeypatch.setattr(file_state, "time", lambda: began + later)
        report = analyze(list(map(str, paths)), full=True, since_look=str(since) if since else None)
        if saved:
            save(report, saved)
        return json_report.as_object(report)["hang"]

    return answer


def shows_standstill(hang: dict[str, Any]) -> bool:
    """Whether the two looks show it: then nothing speaks against the verdict on rank 11."""
    is_shown = bool(hang["standstill"]["shown"])
    certainty = "certain" if is_shown else "likely"
    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("lagging-ranks", [11], certainty)
    assert hang["standstill"]["by"] == ["two-looks"] * is_shown
    return is_shown


def test_logs_that_were_written_to_and_get_no_call_show_a_standstill(look: Any, tmp_path: Path) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    look(logs, later=300, saved=first)

    late, soon = look(logs, later=400, since=first), look(logs, later=305, since=first)

    assert shows_standstill(late)
    assert late["reason"].endswith("no rank made a call in the 100 seconds since the earlier look")
    assert not shows_standstill(soon)
    assert soon["reason"].endswith("it was taken 5 s after the earlier one, and 60 s are needed")


@pytest.mark.parametrize("grown", ["nccl_rank0.log", "train.out"])
def test_growth_beside_logs_that_long_stood_still_shows_that_they_are_no_copies(
    look: Any, tmp_path: Path, grown: str
) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    add(logs / grown, "loading shard 7\n")
    make_older(logs)
    look(logs, later=3600, saved=first)
    still = look(logs, later=3700, since=first)
    add(logs / grown, "loading shard 8\n")

    assert not shows_standstill(still)
    assert "in the 10 minutes before" in still["reason"]
    assert shows_standstill(look(logs, later=3700, since=first))


def through_tar(source: Path, target: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(source, ".")
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        tar.extractall(target, filter="data")


COPIES: dict[str, Copy] = {
    "with the times of files and folder (cp -a, rsync -a)": shutil.copytree,
    "without times (cp, scp, kubectl cp)": lambda a, b: (
        b.mkdir(), [shutil.copyfile(file, b / file.name) for file in a.iterdir()],
    ),
    "out of a tar archive": through_tar,
}  # fmt: skip
copied = pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)


@copied
def test_a_copy_of_a_job_that_goes_on_shows_nothing(look: Any, tmp_path: Path, copy: Copy) -> None:
    logs, first = tmp_path / "copied", tmp_path / "first.ncclf"
    copy(live(tmp_path / "logs"), logs)
    look(logs, saved=first)

    hang = look(logs, later=100, since=first)

    assert not shows_standstill(hang)
    assert "the second look shows nothing: " in hang["reason"]
    assert "a copy, for its" in hang["reason"]


def test_growth_beside_copies_that_keep_their_times_makes_them_no_live_logs(look: Any, tmp_path: Path) -> None:
    logs, first = tmp_path / "copied", tmp_path / "first.ncclf"
    shutil.copytree(live(tmp_path / "logs"), logs)
    add(logs / "train.out", "step 7\n")
    look(logs, saved=first)
    add(logs / "train.out", "step 8\n")

    assert not shows_standstill(look(logs, later=100, since=first))


def test_a_saved_run_knows_when_it_looked_wherever_it_is_moved(look: Any, tmp_path: Path) -> None:
    logs, first, moved = live(tmp_path / "logs"), tmp_path / "first.ncclf", tmp_path / "elsewhere" / "moved.ncclf"
    look(logs, saved=first)
    moved.parent.mkdir()
    shutil.copyfile(first, moved)
    os.utime(moved, (0, 0))  # by this time, it would be old enough
    shutil.copytree(logs, tmp_path / "elsewhere" / "logs")

    there = look(tmp_path / "elsewhere" / "logs", later=100, since=moved)

    assert shows_standstill(look(logs, later=100, since=moved))
    assert not shows_standstill(look(logs, later=5, since=moved))
    assert not shows_standstill(there)
    assert "nccl_rank0.log is not the file that the earlier one read" in there["reason"]


def test_two_saved_runs_of_live_logs_are_two_looks(look: Any, tmp_path: Path) -> None:
    logs, first, second, again = live(tmp_path / "logs"), *(tmp_path / f"{n}.ncclf" for n in ("a", "b", "c"))
    look(logs, saved=first)
    look(logs, later=100, saved=second)
    look(first, later=100, saved=again)  # holds what `first` holds

    assert shows_standstill(look(second, later=9000, since=first))
    assert shows_standstill(look(second, later=9000, since=again))
    assert not shows_standstill(look(first, later=9000, since=again))


def test_a_saved_run_of_an_older_version_proves_nothing(look: Any, tmp_path: Path) -> None:
    logs, first, old = live(tmp_path / "logs"), tmp_path / "first.ncclf", tmp_path / "old.ncclf"
    look(logs, saved=first)
    with zipfile.ZipFile(first) as archive, zipfile.ZipFile(old, "w") as other:
        for member in archive.namelist():
            data = archive.read(member)
            if member == "manifest.json":
                manifest = orjson.loads(data)
                added = {"observed", "modified", "changed", "folder_modified", "inode"}
                assert added <= FIELDS.keys()
                manifest["inputs"] = [
                    {name: value for name, value in entry.items() if name not in added} for entry in manifest["inputs"]
                ]
                data = orjson.dumps(manifest)
            other.writestr(zipfile.ZipInfo(member), data)

    hang = look(logs, later=100, since=old)

    assert not shows_standstill(hang)
    assert "nothing shows whether" in hang["reason"]


def test_compressed_logs_prove_nothing(look: Any, tmp_path: Path) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    for log in list(logs.iterdir()):
        (logs / f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    look(logs, saved=first)

    assert not shows_standstill(look(logs, later=100, since=first))


def test_the_clock_of_the_file_server_may_be_an_hour_ahead(look: Any, tmp_path: Path) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    look(logs, later=-3600, saved=first)

    assert not shows_standstill(look(logs, later=-3500, since=first))


def test_logs_of_a_job_that_its_launcher_ended_prove_nothing(look: Any, tmp_path: Path) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    look(logs, saved=first)
    add(logs / "nccl_rank0.log", SLURM_END)

    hang = look(logs, later=100, since=first)

    assert not hang["standstill"]["shown"]
    assert hang["reason"].endswith("a launcher reports that it ended the job")


@copied
def test_a_further_call_shows_that_the_job_goes_on_in_copies_too(look: Any, tmp_path: Path, copy: Copy) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    path = logs / "nccl_rank3.log"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    look(logs, saved=first)
    path.write_text("".join(lines))
    copy(logs, tmp_path / "copied")

    hang = look(tmp_path / "copied", later=100, since=first)

    assert (hang["standstill"]["shown"], hang["certainty"]) == (False, "possible")
    assert "further calls" in hang["reason"]
    shown = screen(analyze([str(tmp_path / "copied")], since_look=str(first)), width=120)
    assert "Hung: no; ranks made further calls since the earlier look." in shown
    assert "since you ask" not in shown


def test_a_redacted_report_says_of_two_looks_what_the_report_says(look: Any, tmp_path: Path) -> None:
    logs, first = live(tmp_path / "logs"), tmp_path / "first.ncclf"
    look(logs, saved=first)
    look(logs, later=100)

    redacted, _ = redact_report(analyze([str(logs)], since_look=str(first)), None)

    assert shows_standstill(json_report.as_object(redacted)["hang"])


@pytest.mark.parametrize("name", [HANG, SAME_CALLS])
def test_a_second_look_is_advised_at_live_logs_only(look: Any, tmp_path: Path, name: str) -> None:
    logs, saved = live(tmp_path / "logs", name), tmp_path / "saved.ncclf"

    assert LOOK_AGAIN in look(logs, later=60, saved=saved)["collect_next"]
    assert LOOK_AGAIN not in look(logs, later=3600)["collect_next"]
    assert LOOK_AGAIN not in look(saved, later=60)["collect_next"]
    for number, copied_by in enumerate(drawn([*COPIES], 4)):
        COPIES[copied_by](logs, tmp_path / f"copied{number}")
        assert LOOK_AGAIN not in look(tmp_path / f"copied{number}")["collect_next"]
    add(next(logs.iterdir()), SLURM_END)
    assert LOOK_AGAIN not in look(logs, later=60)["collect_next"]


def test_no_second_look_is_advised_at_a_pipe_an_archive_or_dumps(
    look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = live(tmp_path / "logs")
    with tarfile.open(tmp_path / "logs.tar", "w") as tar:
        tar.add(logs, "logs")
    lines = b"".join(log.read_bytes() for log in sorted(logs.iterdir()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    dumps = tmp_path / "dumps"
    shutil.copytree(INCIDENTS / "flight-recorders-show-a-rank-that-stopped", dumps, copy_function=shutil.copyfile)
    os.utime(dumps, (0, 0))

    assert LOOK_AGAIN not in look("-")["collect_next"]
    assert LOOK_AGAIN not in look(tmp_path / "logs.tar")["collect_next"]
    assert LOOK_AGAIN not in look(dumps)["collect_next"]


def test_a_standstill_that_no_line_shows_is_taken_from_whoever_asks(tmp_path: Path) -> None:
    logs = str(live(tmp_path / "logs"))
    reports = analyze(logs), analyze(logs, everything=True)
    (hang, of_hang), (check, of_check) = ((json_report.as_object(r)["hang"], screen(r, width=120)) for r in reports)

    assert hang["standstill"] == check["standstill"] == {"shown": False, "by": []}
    assert hang["certainty"] == check["certainty"] == "likely"
    assert "since you ask about a hang: the job stands still" in of_hang
    assert "Only if the job stands still" in of_check
    assert "Hung: " not in of_hang + of_check
