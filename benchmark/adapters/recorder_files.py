"""Flight Recorder dumps as files: which they are, and how their names begin."""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

NUMBERED = re.compile(r"(.*?)(\d+)(?:\.json)?$")
PICKLED = b"\x80"


class _PlainUnpickler(pickle.Unpickler):
    """Dumps hold dictionaries, lists, strings and numbers; nothing else is made of them."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"no dump of the Flight Recorder: {module}.{name}")


def prefix_of(folder: Path) -> str:
    """What the names of the dumps in a folder have in common before the rank; empty without dumps."""
    return next((found[1] for path in dump_paths(folder) if (found := NUMBERED.match(path.name))), "")


def dump_paths(folder: Path) -> list[Path]:
    """The dumps in a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and _is_dump(path))


def _is_dump(path: Path) -> bool:
    content = path.read_bytes()
    try:
        dump = _PlainUnpickler(io.BytesIO(content)).load() if content.startswith(PICKLED) else json.loads(content)
    except (ValueError, pickle.UnpicklingError, EOFError):
        return False
    return isinstance(dump, dict) and "entries" in dump and "pg_config" in dump
