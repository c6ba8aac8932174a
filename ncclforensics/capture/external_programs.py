"""Run external programs, which may be absent."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

TIMEOUT = 15.0  # seconds; a hanging driver must not block the capture


def run_program(command: Sequence[str], limit: float = TIMEOUT) -> tuple[bytes, str]:
    """Run a program for at most `limit` seconds; return its output and the problem, which is empty on success."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return b"", f"{command[0]} not found"
    except subprocess.TimeoutExpired:
        return b"", f"did not end within {limit:.0f} s"
    except OSError as error:
        return b"", str(error.strerror)
    return done.stdout, f"ended with {done.returncode}" if done.returncode else ""
