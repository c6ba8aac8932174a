"""Load rules, analyses and line shapes from a folder, or from an installed package with an entry point.

A folder holds grammars (`*.lark`) and Python modules (`*.py`), written by the recipes of the built-in ones. A module
that defines GRAMMARS is an input format; `@rule` and `@analysis` register functions. Loading executes the modules.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import module_from_spec
from itertools import count
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from types import ModuleType
from typing import Any, NamedTuple, cast

import ncclforensics.analyses  # noqa: F401  # registers the analyses, so that a second one of a name is refused
from ncclforensics.errors import GrammarError, UsageError, place_of
from ncclforensics.extensions.installed import ENTRY_POINTS
from ncclforensics.formats import Format, add_format, all_formats
from ncclforensics.frames.protocol import parameters
from ncclforensics.frames.registry import RUN_FRAMES, analyses, provider
from ncclforensics.grammar import folders, grammar_file
from ncclforensics.grammar.patterns import Shape
from ncclforensics.rules.registry import Rule, all_rules

NOT_LOADED = ("setup", "conftest")  # modules beside those of the user, which belong to other tools


class Extension(NamedTuple):
    """What a folder or a package added."""

    folder: Path
    shapes: tuple[Shape, ...]
    rules: tuple[Rule, ...]


_LOADED: dict[Path, Extension] = {}
_NUMBERS = count()  # for the names of the folders as packages


def load_folder(folder: Path) -> Extension:
    """Load the grammars and modules of a folder; a second time, return what the first one added.

    Raises UsageError, which names file and line, for what cannot be loaded.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder with rules")
    if folder not in _LOADED:
        name = f"ncclforensics_extension_{next(_NUMBERS)}"
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[name] = module_from_spec(spec)
        _LOADED[folder] = _load(folder, sys.modules[name])
    return _LOADED[folder]


def load_installed() -> list[Extension]:
    """Load every installed package that has an entry point in the group ENTRY_POINTS. Raises UsageError."""
    loaded = []
    for entry in entry_points(group=ENTRY_POINTS):
        all_rules()  # before those of the package, which may not have their names
        try:
            package = entry.load()
        except Exception as error:
            raise UsageError(
                f"the entry point {entry.name} = {entry.value}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
            raise UsageError(f"the entry point {entry.name} = {entry.value}: is not a package")
        folder = Path(next(iter(package.__path__))).resolve()
        if folder not in _LOADED:
            _LOADED[folder] = _load(folder, package)
        loaded.append(_LOADED[folder])
    return loaded


def loaded_folders() -> tuple[Path, ...]:
    """The folders of all that was loaded."""
    return tuple(_LOADED)


def _load(folder: Path, package: ModuleType) -> Extension:
    all_rules()  # registers the built-in ones, so that a second one of a name is refused
    grammars = sorted(folder.glob("*.lark"))
    _refuse_taken_names(grammars)
    folders.add_folder(folder)
    shapes = tuple(shape for path in grammars for shape in _shapes(path))
    named: set[str] = set()
    for found in iter_modules(package.__path__):
        if found.ispkg or found.name in NOT_LOADED or found.name.startswith("_"):
            continue
        with _errors_in(folder):
            module = import_module(f"{package.__name__}.{found.name}")
        if hasattr(module, "GRAMMARS"):
            named.update(_add_format(module))
    if unnamed := [path for path in grammars if path.stem not in named]:
        raise UsageError(f"{unnamed[0]}: no module of this folder names {unnamed[0].stem} in its GRAMMARS")
    rules = tuple(rule for rule in all_rules() if _is_of(package, rule.module))
    computed = [(name, added) for name, added in analyses().items() if _is_of(package, added.module)]
    _refuse_unknown_frames((f"the rule {rule.name}", rule.function, rule.of) for rule in rules)
    _refuse_unknown_frames((f"the analysis {name}", added.function, added.of) for name, added in computed)
    return Extension(folder, shapes, rules)


def _is_of(package: ModuleType, module: str) -> bool:
    """Whether a module is a package or one of its modules."""
    return f"{module}.".startswith(f"{package.__name__}.")


def _refuse_taken_names(grammars: Iterable[Path]) -> None:
    """Raise UsageError if a grammar or one of its rules has the name of one that exists."""
    places: dict[str, str] = {}
    for path in grammars:
        if (taken := folders.path_of(path.stem)).exists():
            raise UsageError(f"{path}: there is a grammar of this name: {folders.shown(taken)}")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            name = line.partition(":")[0].partition(".")[0].strip()
            if not (line[:1].islower() and ":" in line):
                continue
            if place := provider(name) or places.get(name):
                raise UsageError(f"{path}, line {number}: a frame is called {name} already: {place}")
            places[name] = str(path)


def _shapes(path: Path) -> tuple[Shape, ...]:
    try:
        grammar = grammar_file.load(path.stem)
        return tuple(shape for shape in grammar.shapes if shape.frame in grammar.meanings)
    except GrammarError as error:
        first = str(error).partition("\n")[0]
        number = _line_named_in(first, path)
        place = f"{path}, line {number}" if number else str(path)
        raise UsageError(f"{place}: {first.partition(': ')[2]}") from error
    except Exception as error:  # what the compiler does not expect of a grammar of ours
        raise UsageError(f"{path}: cannot become patterns: {type(error).__name__}: {error}") from error


def _line_named_in(message: str, path: Path) -> int:
    """The number of the line that a message is about: of the rule or of the word at its end; 0 if unknown."""
    rule = message.partition(", rule ")[2].partition(":")[0]
    if number := line_of_rule(path, rule):
        return number
    word = message.rpartition(": ")[2].partition(" ")[0].strip("'\"`")
    lines = path.read_text(encoding="utf-8").splitlines()
    uses = (number for number, line in enumerate(lines, 1) if word in line.split() and not line.startswith("//"))
    return next(uses, 0)


def line_of_rule(path: Path, rule: str) -> int:
    """The number of the line of a grammar on which a rule begins; 0 if it has none of that name."""
    lines = path.read_text(encoding="utf-8").splitlines()
    begins = (number for number, line in enumerate(lines, 1) if line.startswith((f"{rule}:", f"{rule}.")))
    return next(begins, 0) if rule else 0


@contextmanager
def _errors_in(folder: Path) -> Iterator[None]:
    """Raise UsageError, with the file and the line in this folder, for what a module raises while it is imported."""
    try:
        yield
    except SyntaxError as error:
        raise UsageError(f"{error.filename or folder}, line {error.lineno or 1}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).parent == folder]
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(folder)
        raise UsageError(f"{place}: {type(error).__name__}: {error}") from error


def _add_format(module: ModuleType) -> tuple[str, ...]:
    """Add a module as an input format, and return its grammars. Raises UsageError if one of its names is wrong."""
    kinds = {kind for form in all_formats().values() for kind in form.KINDS.values()}
    for name in ("SIGNATURES", "KINDS"):
        if not hasattr(module, name):
            raise _wrong(module, "GRAMMARS", f"an input format defines {name}, too")
    for name in ("GRAMMARS", "SIGNATURES"):
        value = getattr(module, name)
        if not isinstance(value, tuple | list) or not all(isinstance(text, str) for text in value):
            raise _wrong(module, name, f"{name} is a tuple of texts")
    if not isinstance(module.KINDS, dict):
        raise _wrong(module, "KINDS", "KINDS is a dictionary from rules of a grammar to kinds of input")
    form = cast(Format, module)
    for grammar in form.GRAMMARS:
        if not folders.path_of(grammar).exists():
            raise _wrong(module, "GRAMMARS", f"there is no grammar {grammar}")
        if not form.SIGNATURES and folders.path_of(grammar).parent == folders.GRAMMARS:
            raise _wrong(module, "SIGNATURES", f"without signatures the lines of {grammar} would be found twice")
    frames = {shape.frame for grammar in form.GRAMMARS for shape in grammar_file.load(grammar).shapes}
    if unknown := sorted(set(form.SIGNATURES) - frames):
        raise _wrong(module, "SIGNATURES", f"no grammar of this format has a rule {unknown[0]}")
    for frame in (name for pair in getattr(module, "FILLS", {}).items() for name in pair):
        if not grammar_file.grammar_of(frame):
            raise _wrong(module, "FILLS", f"no grammar has a rule {frame}")
    if unknown := [frame for frame in form.KINDS if not provider(frame)]:
        raise _wrong(module, "KINDS", f"no grammar has a rule {unknown[0]}")
    if unknown := sorted(set(form.KINDS.values()) - kinds):
        raise _wrong(module, "KINDS", f"{unknown[0]} is no kind of input; there are {', '.join(sorted(kinds))}")
    add_format(module.__name__, form)
    return form.GRAMMARS


def _wrong(module: ModuleType, name: str, reason: str) -> UsageError:
    """The error about the value of a name that a module defines, with the line on which it does."""
    path = Path(module.__file__ or "")
    targets = [
        (node.lineno, target)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    ]
    number = next((line for line, target in targets if isinstance(target, ast.Name) and target.id == name), 1)
    return UsageError(f"{path}, line {number}: {reason}")


def _refuse_unknown_frames(readers: Iterable[tuple[str, Callable[..., Any], tuple[str, ...]]]) -> None:
    """Raise UsageError if a rule or an analysis (its name, function and `of`) names a frame that is not there."""
    for reader, function, of in readers:
        for name in (*parameters(function), *of):
            if not provider(name):
                known = [*analyses(), *RUN_FRAMES, *(shape.frame for shape in _all_shapes())]
                similar = get_close_matches(name, known, n=1)
                hint = f"; perhaps {similar[0]} is meant" if similar else ""
                raise UsageError(f"{place_of(function)}: {reader} names a frame {name}, which is not there{hint}")


def _all_shapes() -> Iterator[Shape]:
    for name in grammar_file.names():
        yield from grammar_file.load(name).shapes
