"""Screens end quietly with their terminal; a command that ignores SIGHUP goes on without one."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.incidents import INCIDENTS

HUNG = INCIDENTS / "one-rank-stops-before-an-allreduce"
PROGRAM = [sys.executable, "-m", "ncclforensics"]
# As a login does: the kernel sends SIGHUP and SIGCONT to a process whose controlling terminal is closed.
CONTROLLED = [sys.executable, "-c", "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"]
ALTERNATE_SCREEN = b"\x1b[?1049h"


@pytest.mark.parametrize("wrapper", [CONTROLLED, []], ids=["with a signal", "without a signal"])
def test_the_screens_end_with_their_terminal(wrapper: list[str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*wrapper, *PROGRAM, "tui", str(HUNG)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=not wrapper,
    )
    os.close(theirs)
    assert ALTERNATE_SCREEN in os.read(ours, 1 << 16)

    os.close(ours)

    assert process.wait(timeout=60) == 128 + signal.SIGHUP
    assert list(tmp_path.iterdir()) == []


def test_a_command_started_by_nohup_outlives_its_terminal() -> None:
    process = subprocess.Popen(
        ["nohup", *PROGRAM, "hang", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write((HUNG / "nccl_rank0.log").read_bytes() * 10)  # more than a pipe holds: it reads
    process.stdin.flush()

    process.send_signal(signal.SIGHUP)

    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert b"UNDECIDABLE" in output
