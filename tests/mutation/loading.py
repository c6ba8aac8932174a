"""Load changed modules in place of those of the files."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

Change = Callable[[str, Path], "ast.Module | str | None"]


def load_changed(change: Change) -> None:
    """From now on compile what `change` gives for the name and the file of a module; null: the file as it is."""
    get_code = SourceFileLoader.get_code

    def changed(self: SourceFileLoader, name: str) -> CodeType | None:
        source = change(name, Path(self.path))
        return get_code(self, name) if source is None else compile(source, self.path, "exec")

    SourceFileLoader.get_code = changed  # type: ignore[method-assign]
