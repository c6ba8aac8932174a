"""Run a program that the kernel kills when the parent process ends.

Usage: `python -m ncclforensics.capture.orphan_guard PARENT PROGRAM…`. It works however the parent ends (Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2); the setting survives exec


def main(parent: int, program: list[str]) -> None:
    """Replace this process by the program; does not return."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        os._exit(1)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
