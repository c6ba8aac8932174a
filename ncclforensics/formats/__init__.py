"""What an input may be. One module per format: its name, its grammars, what a buried line of it begins with.

A new format is one grammar and one module here; the modules are found by walking the package.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Protocol, cast

from ncclforensics.language import Language


class Format(Protocol):
    """The names a module of this package defines."""

    KIND: str  # the contract's `inputs[].kind`
    KINDS: Mapping[str, str]  # by the frames that a source fills: what it is, where it holds no line with our prefix

    def language(self) -> Language:
        """The shapes of this format."""
        ...


@lru_cache(maxsize=1)
def all_formats() -> tuple[Format, ...]:
    """Every module of this package."""
    found = pkgutil.iter_modules(__path__)
    return tuple(cast(Format, import_module(f"{__name__}.{module.name}")) for module in found)
