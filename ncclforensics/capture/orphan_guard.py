"""Binds a process to the life of the one that started it, and becomes the program it is told to run.

`python -m ncclforensics.capture.orphan_guard PARENT PROGRAM…`: however the parent ends, the kernel ends the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2); kept by the program that takes this one's place


def main(parent: int, program: list[str]) -> None:
    """Never returns."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before it could be watched
        os._exit(1)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
