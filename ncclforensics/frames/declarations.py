"""What the modules of a package declare, known without importing them: each is imported when it is needed.

The first start after a change of the program imports all modules, and keeps their declarations in the user's cache; a
wheel brings them along.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from ncclforensics.data.user_cache import digest, kept

PROGRAM = Path(__file__).parents[1]


def declarations(package: str, describe: Callable[[], list[Any]]) -> list[Any]:
    """What `describe` returns, as JSON, once all modules of a package of the program are imported."""
    folder = PROGRAM.joinpath(*package.split(".")[1:])

    def import_all() -> list[Any]:
        for module in walk_packages([str(folder)], f"{package}."):
            import_module(module.name)
        return describe()

    def of_these_texts() -> list[Any]:
        return list(kept("declarations", package, _digest_of_program(), import_all, is_unchanged))

    def is_unchanged() -> bool:
        return _state() == _state_of_program()

    return list(kept(package, digest(str(folder))[:16], _state_of_program(), of_these_texts, is_unchanged))


def _state() -> str:
    """Changes with every module: a declaration may name what any other module defines."""
    return digest("\n".join(sorted(_modules(str(PROGRAM)))))


_state_of_program = cache(_state)  # when this process started


@cache
def _digest_of_program() -> str:
    """A digest of the texts of all modules, wherever they are installed: to read them takes longer than their state."""
    texts = hashlib.sha256()
    for path in sorted(PROGRAM.rglob("*.py")):
        text = path.read_bytes()
        texts.update(f"{path.relative_to(PROGRAM).as_posix()} {len(text)}\n".encode() + text)
    return texts.hexdigest()


def _modules(folder: str) -> Iterator[str]:
    """Yield path, size and time of every module below a folder; Python knows by these whether bytecode is current."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                state = entry.stat()
                yield f"{entry.path} {state.st_size} {int(state.st_mtime)}"
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _modules(entry.path)
