"""What the modules of a package declare, known without importing them: each is imported when it is needed.

The first start after a change of the program imports all modules, and keeps their declarations in the user's cache.
"""

from __future__ import annotations

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

    return list(kept(package, digest(str(folder))[:16], _state_of_program(), import_all))


@cache
def _state_of_program() -> str:
    """Changes with every module: a declaration may name what any other module defines."""
    return digest("\n".join(sorted(_modules(str(PROGRAM)))))


def _modules(folder: str) -> Iterator[str]:
    """Yield path, size and time of every module below a folder; Python knows by these whether bytecode is current."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                state = entry.stat()
                yield f"{entry.path} {state.st_size} {int(state.st_mtime)}"
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _modules(entry.path)
