"""What an input may be. One module per format: its grammars, what a source that holds its lines is called.

A new format is one grammar and one module here; the modules are found by walking the package. NCCL's own log is looked
for everywhere; every other format is a guest: its shapes are tried on the sources that hold a line of its signs.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

from ncclforensics.formats import nccl
from ncclforensics.language import Guest, Language


class Format(Protocol):
    """The names a module of this package defines."""

    GRAMMARS: tuple[str, ...]  # in the order of trial
    KINDS: Mapping[str, str]  # by the frames that a source fills: the contract's `inputs[].kind`, the last one counts
    SIGNS: tuple[str, ...]  # frames: a source with a line of these holds this format; empty: look for it everywhere


class Document(Format, Protocol):
    """A format that is no lines but one object; its records take the place of lines."""

    OPENING: bytes  # how it begins
    TELLING: bytes  # and what stands in its beginning

    def records(self, data: bytes) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
        """Frame and columns of every record, in order, and what is wrong with the whole."""


@lru_cache(maxsize=1)
def all_formats() -> Mapping[str, Format]:
    """Every module of this package, by name."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: cast(Format, import_module(f"{__name__}.{name}")) for name in found}


def document(beginning: bytes) -> Document | None:
    """The format of something that begins so, if it is one object and no lines."""
    documents = [cast(Document, one) for one in all_formats().values() if hasattr(one, "records")]
    return next((one for one in documents if beginning.startswith(one.OPENING) and one.TELLING in beginning), None)


@lru_cache(maxsize=1)
def language() -> Language:
    """The shapes of NCCL's lines, and the guests among them."""
    guests = [Guest(name, one.GRAMMARS, one.SIGNS) for name, one in all_formats().items() if one.SIGNS]
    return replace(nccl.language(), guests=tuple(guests))
