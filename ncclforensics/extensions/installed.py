"""Whether a package with rules of its own is installed; to load one takes longer than most answers of `explain`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ncclforensics.data.user_cache import digest, kept

ENTRY_POINTS = "ncclforensics"  # the group of entry points; each names a package


def is_any_installed() -> bool:
    """Whether an installed package has an entry point in the group ENTRY_POINTS."""
    places = "\n".join(sys.path)
    return bool(kept("entrypoints", digest(places)[:16], digest(_state_of_installed_packages()), _has_entry_points))


def _has_entry_points() -> bool:
    from importlib.metadata import entry_points

    return bool(entry_points(group=ENTRY_POINTS))


def _state_of_installed_packages() -> str:
    """Changes when a package is installed or removed; looking through all of them takes 20 ms."""
    states = []
    for folder in sys.path:
        with suppress(OSError):
            state = Path(folder).stat()
            states.append(f"{folder} {state.st_dev} {state.st_ino} {state.st_mtime_ns}")
    return "\n".join(states)
