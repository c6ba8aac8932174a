"""Folders of grammars: the program's own, and those of shapes that a user adds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
GRAMMARS = _PACKAGE / "grammars" if (_PACKAGE / "grammars").is_dir() else _PACKAGE.parent / "grammars"
_FOLDERS = [GRAMMARS]


def add_folder(folder: Path) -> None:
    """Let grammars of this folder be found by their names, behind those of the other folders."""
    if folder not in _FOLDERS:
        _FOLDERS.append(folder)


def folders() -> tuple[Path, ...]:
    """All folders with grammars, in the order in which a name is looked up."""
    return tuple(_FOLDERS)


def grammar_files() -> Iterator[Path]:
    """Yield the files of all grammars."""
    for folder in _FOLDERS:
        yield from sorted(folder.glob("*.lark"))


def path_of(name: str) -> Path:
    """The file of the grammar of this name; if there is none, where the program's own would be."""
    return _by_name(folders()).get(name, _FOLDERS[0] / f"{name}.lark")


@cache
def _by_name(_: tuple[Path, ...]) -> dict[str, Path]:
    """The first grammar of every name in these folders."""
    return {path.stem: path for path in reversed([*grammar_files()])}


def import_folders(path: Path) -> tuple[Path, ...]:
    """Where a grammar's `%import .name` is looked up: among the program's own grammars, then beside the file."""
    return tuple(dict.fromkeys((_FOLDERS[0], path.parent)))


def imported(path: Path, name: str) -> Path:
    """The file that `%import .name` means in the grammar at `path`."""
    candidates = [folder / f"{name}.lark" for folder in import_folders(path)]
    return next((candidate for candidate in candidates if candidate.exists()), candidates[0])


def shown(path: Path) -> str:
    """The file of a grammar as users read of it: `grammars/init.lark`, or the whole path of one that they added."""
    return f"grammars/{path.name}" if path.parent == GRAMMARS else str(path)
