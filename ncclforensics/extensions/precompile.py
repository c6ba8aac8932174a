"""Compute ahead of the first start what it would compute: compiled grammars, and what modules declare.

`python -m ncclforensics.extensions.precompile` writes it into the package, where `data.user_cache` looks first. Every
file holds the digest of what it was computed from: a change of a grammar or a module makes it unused, and never wrong.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ncclforensics.data import user_cache
from ncclforensics.formats import dialect
from ncclforensics.grammar import grammar_file

# Grammars of parts of lines, such as prefixes, which are searched for by the names of their rules.
PART_GRAMMARS = ("copied", "driverlog", "launcher", "prefix", "unread")


def precompile(folder: Path) -> None:
    """Write the results into a folder, in place of all that it held."""
    with TemporaryDirectory() as cache:
        user_cache.SHIPPED = Path(cache)
        os.environ["XDG_CACHE_HOME"] = cache
        _compute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in sorted(Path(cache, "ncclforensics").glob("*.json")):
            if not file.name.startswith("ncclforensics."):  # declarations by the times of modules
                shutil.copyfile(file, folder / file.name)


def _compute() -> None:
    """Ask for all that is kept, except for what depends on the machine."""
    import ncclforensics.analyses  # noqa: F401  # declares them
    from ncclforensics.rules.registry import all_rules

    all_rules()
    for name in grammar_file.names():
        grammar = grammar_file.load(name)
        grammar.shapes  # noqa: B018  # compiled on first use
        grammar.pieces  # noqa: B018
        if name in PART_GRAMMARS:
            grammar.compile_parts()
    dialect().template  # noqa: B018
    for embedded in dialect().embedded_formats:
        embedded.signatures  # noqa: B018


if __name__ == "__main__":
    precompile(Path(*sys.argv[1:2]) if sys.argv[1:] else user_cache.SHIPPED)
