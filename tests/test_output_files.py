"""What is written is complete or as it was, and never an input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclforensics import cli
from ncclforensics.archive.atomic_write import ABANDONED_AFTER, replacing
from tests.incidents import INCIDENTS

pytestmark = pytest.mark.usefixtures("shared_analyses")
HUNG = INCIDENTS / "one-rank-stops-before-an-allreduce"


def test_a_file_is_as_it_was_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"before")

    with pytest.raises(OSError, match="disk full"):
        _write_half(path)

    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def _write_half(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"half")
        raise OSError("disk full")


def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"of another")
    link.symlink_to(target)

    with replacing(link) as file:
        file.write(b"new")

    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"of another", b"new", False)


def test_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_bytes(b"")
    path.chmod(0o640)

    with replacing(path) as file:
        file.write(b"new")

    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("command", [["hang", "-o"], ["check", "-o"], ["save", "-o"]], ids=lambda command: command[0])
def test_an_input_is_never_overwritten(command: list[str], tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes((HUNG / "nccl_rank0.log").read_bytes())
    alias = tmp_path / "alias.log"
    alias.symlink_to(log)
    before = log.read_bytes()

    for output in (log, alias):
        assert cli.main([*command, str(output), "-q", str(log)]) == cli.Exit.USAGE
    assert log.read_bytes() == before


def test_a_report_goes_to_a_device_directly(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ncclforensics", "hang", "-o", "/dev/stdout", str(HUNG)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "LAGGING-RANKS" in ended.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_no_temporary_file_and_no_traceback(number: int, code: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ncclforensics", "hang", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("ncclforensics-*")) and time.monotonic() < deadline:
        time.sleep(0.02)

    process.send_signal(number)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == code
    assert b"Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, timeout=60)
    pid = int(ended.stdout)
    path, old = tmp_path / "report.md", time.time() - 2 * ABANDONED_AFTER
    abandoned, young, alive, other = (
        tmp_path / name for name in (f".report.md.{pid}", f".report.md.{pid}0", ".report.md.1", ".report.md.old")
    )
    for file in (abandoned, young, alive, other):
        file.write_bytes(b"half")
        os.utime(file, None if file == young else (old, old))

    with replacing(path) as file:
        file.write(b"new")

    assert sorted(tmp_path.iterdir()) == sorted([path, young, alive, other])
