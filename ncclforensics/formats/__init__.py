"""What an input may be. One module per format: its grammars, what a source that holds its lines is called.

A new format is one grammar and one module here; the modules are found by walking the package. NCCL's own log is looked
for everywhere; every other format is a guest: its shapes are tried on the sources that hold a line of its signs.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Protocol, cast

from ncclforensics.formats import nccl
from ncclforensics.grammar.dialect import Dialect, Guest


class Format(Protocol):
    """The names a module of this package defines."""

    GRAMMARS: tuple[str, ...]  # in the order of trial
    KINDS: Mapping[str, str]  # by the frames that a source fills: the contract's `inputs[].kind`, the last one counts
    SIGNATURES: tuple[
        str, ...
    ]  # frames: a source with a line of these holds this format; empty: look for it everywhere


Records = tuple[list[tuple[str, dict[str, Any]]], list[str]]  # frames and columns in order, and what is wrong


class Document(Format, Protocol):
    """A format that is no lines but one object; its records take the place of lines."""

    MAGIC: bytes  # how it begins
    MARKER: bytes  # and what stands in its beginning

    def records(self, data: bytes) -> Records:
        """Frame and columns of every record, in order, and what is wrong with the whole."""


class Folder(Format, Protocol):
    """A format of many files with a bare value each: what it is of is told by where it stands."""

    def holds(self, path: str, beginning: bytes) -> bool:
        """Whether a file at this path that begins so is one of them."""

    def value(self, path: str, data: bytes) -> Records:
        """Frame and columns of the one record that it is."""


@lru_cache(maxsize=1)
def all_formats() -> Mapping[str, Format]:
    """Every module of this package, by name."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: cast(Format, import_module(f"{__name__}.{name}")) for name in found}


def document(beginning: bytes, path: str) -> Callable[[bytes], Records] | None:
    """What reads something that begins so and stands there, if it is an object, or a value of many, and no lines."""
    for one in all_formats().values():
        if hasattr(one, "records"):
            whole = cast(Document, one)
            if beginning.startswith(whole.MAGIC) and whole.MARKER in beginning:
                return whole.records
        if hasattr(one, "holds"):
            folder = cast(Folder, one)
            if folder.holds(path, beginning):
                return partial(folder.value, path)
    return None


@lru_cache(maxsize=1)
def dialect() -> Dialect:
    """The shapes of NCCL's lines, and the guests among them."""
    guests = [Guest(name, one.GRAMMARS, one.SIGNATURES) for name, one in all_formats().items() if one.SIGNATURES]
    return replace(nccl.dialect(), guests=tuple(guests))
