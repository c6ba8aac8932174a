"""Results that take long to compute: shipped with the program as JSON, or kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

LIFETIME = 90 * 24 * 3600  # seconds
SHIPPED = Path(__file__).parents[1] / "compiled"  # what a wheel brings along (`extensions.precompile`)


def digest(text: str) -> str:
    """A text of 64 characters that tells texts apart."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def _is_current() -> bool:
    return True


def kept(
    topic: str, name: str, key: str, compute: Callable[[], Any], is_current: Callable[[], bool] = _is_current
) -> Any:
    """The JSON value that `compute` gives, as it was shipped or kept in the user's cache under this key.

    It is kept in a file of its own per topic and name, of which the topic has no `-`; files of the topic that were not
    written for LIFETIME are removed. It is not kept where the key is not current any more once it is computed: files
    that are written anew while they are read would stay wrong for all later starts.
    """
    file_name = f"{topic}-{name}.json"
    for value in _written(SHIPPED / file_name, key):
        return value
    try:
        folder = _folder(os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME"))
    except RuntimeError:  # the user has no home directory
        return orjson.loads(orjson.dumps(compute()))
    file = folder / file_name
    for value in _written(file, key):
        return value
    value = orjson.loads(orjson.dumps(compute()))
    if not is_current():
        return value
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_bytes(orjson.dumps([key, value]))
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
        for stale in folder.glob(f"{topic}-*"):
            if stale.stat().st_mtime < time.time() - LIFETIME:
                stale.unlink(missing_ok=True)
    return value


def _written(file: Path, key: str) -> Iterator[Any]:
    """Yield the value that was written to a file under this key, if there is one."""
    with suppress(OSError, ValueError, TypeError):  # also of what another version wrote
        written_for, value = orjson.loads(file.read_bytes())
        if written_for == key:
            yield value


@lru_cache(maxsize=1)
def _folder(cache_home: str | None, _home: str | None) -> Path:
    """The cache folder by these variables; a start asks for it 60 times."""
    return Path(cache_home or Path.home() / ".cache") / "ncclforensics"
