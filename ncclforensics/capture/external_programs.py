"""Other programs, each of which may be absent."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

PATIENCE = 15.0  # seconds; a driver that hangs must not hold up the capture


def said(command: Sequence[str]) -> tuple[bytes, str]:
    """What a program prints, and what went wrong (empty: nothing)."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return b"", f"{command[0]} is not here"
    except subprocess.TimeoutExpired:
        return b"", f"did not end within {PATIENCE:.0f} s"
    except OSError as error:
        return b"", str(error.strerror)
    return done.stdout, f"ended with {done.returncode}" if done.returncode else ""
