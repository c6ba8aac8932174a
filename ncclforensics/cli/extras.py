"""Which optional parts of the program are installed, as the package's own metadata names them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

FOR_DEVELOPERS = ("dev", "docs")
AFTER_A_NAME = "<>=!~[( "  # what may follow the name of a library in a requirement


def describe_extras() -> Iterator[str]:
    """Say which extras are installed, and which libraries the others lack; nothing if the package is not installed."""
    installed, lacking = [], []
    for extra, libraries in _libraries().items():
        missing = [library for library in libraries if not _is_installed(library)]
        if missing:
            lacking.append(f"{extra} ({', '.join(missing)})")
        else:
            installed.append(extra)
    if installed:
        yield f"extras installed: {', '.join(installed)}"
    if lacking:
        yield f"extras not installed: {', '.join(lacking)}"


def _libraries() -> dict[str, list[str]]:
    """The libraries of each extra for users, in the order of pyproject.toml."""
    try:
        requirements = requires("ncclforensics") or []
    except PackageNotFoundError:
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        library, _, marker = requirement.partition(";")
        extra = marker.partition("extra ==")[2].strip(" '\"")
        if extra and extra not in FOR_DEVELOPERS:
            extras.setdefault(extra, []).append(_name(library))
    return extras


def _name(requirement: str) -> str:
    ends = [requirement.find(character) for character in AFTER_A_NAME if character in requirement]
    return requirement[: min(ends, default=len(requirement))].strip()


def _is_installed(library: str) -> bool:
    try:
        version(library)
    except PackageNotFoundError:
        return False
    return True
