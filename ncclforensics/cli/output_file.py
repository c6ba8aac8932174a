"""Refuse an output file that cannot be written, before anything is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check_writable(output: Path) -> None:
    """Raise OSError, before anything is read, if no file can be written there."""
    place = output if output.exists() else output.parent
    if output.is_dir():
        reason = errno.EISDIR
    elif not (output.exists() or place.is_dir()):
        reason = errno.ENOENT
    elif not os.access(place, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise OSError(reason, f"cannot be written: {os.strerror(reason)}", str(output))
