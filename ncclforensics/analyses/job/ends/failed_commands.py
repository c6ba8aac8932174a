"""Commands that a program ran and that failed, by the message of subprocess.CalledProcessError."""

from __future__ import annotations

from pathlib import PurePosixPath

from ncclforensics.data.processes import COMMAND, RUNNERS
from ncclforensics.grammar.values import parse_value


def signal_of_command(message: str | None) -> int | None:
    """Return the signal that ended a command which runs ranks, by the message of CalledProcessError.

    torch.distributed.launch gives the command of the process that it started last, whichever ended.
    """
    ended = parse_value(message, "ended_command") if message and message.startswith(COMMAND) else None
    return ended["child_signal"] if message and ended and not runs_no_rank(message) else None


def runs_no_rank(message: str) -> bool:
    """Whether a command that failed, by the message of CalledProcessError, is one that does not run ranks."""
    words = message.removeprefix(COMMAND).translate(dict.fromkeys(map(ord, "[]'\","), " ")).split()
    return message.startswith(COMMAND) and bool(words) and not PurePosixPath(words[0]).name.startswith(RUNNERS)
