"""Imports point one way, and what knows about text, terminals and arguments stays in its room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ncclforensics"
# A module may import what stands before it; `errors` and `data` are open to all.
ORDER = (
    "sources",
    "lines",
    "grammar",
    "language",
    "decoration",
    "matching",
    "parse",
    "reading",
    "span",
    "formats",
    "nearest",
    "columns",
    "frames",
    "analyses",
    "rules",
    "summary",
    "selection",
    "report",
    "views",
    "__init__",
    "cli",
)
OPEN_TO_ALL = ("errors", "data")
# It makes a folder that is handed to the front door: only the command line knows it, and it knows no other room.
BESIDE = "capture"
# What runs on each rank of a capture needs nothing but PyTorch.
ON_EACH_RANK = ("journal", "exercise", "worker", "warden")
# A line of a log is described by a grammar and by nothing else: who works with patterns says here why.
PATTERNS = {
    "sources.py": "the user's own pattern for a rank in a file's name",
    "views/exchange.py": "control characters in the program's own output",
}
# What Polars reads as a pattern unless it is told that the text is literal, and who applies patterns, and which.
OF_PATTERNS = {
    "contains", "count_matches", "extract", "extract_all", "extract_groups", "find", "replace", "replace_all",
}  # fmt: skip
APPLYING = {
    "lines.py": "escape sequences and control bytes, before there are lines",
    "decoration.py": "those of the grammars",
    "language.py": "those of the grammars",
    "matching.py": "those of the grammars",
    "parse.py": "those of the grammars",
    "nearest.py": "those of the grammars",
}
TERMINAL = ("rich", "textual")

# The slow half of `grammar`, which it imports only when it has to.
HALVES = {"derivation": "grammar"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    name = path.relative_to(PACKAGE).with_suffix("").parts[0]
    return HALVES.get(name, name)


def imports(path: Path) -> Iterator[str]:
    """The full names that a module imports, wherever in it; what only the type checker sees does not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING"
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def rooms_used(path: Path) -> set[str]:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("ncclforensics.")} - {"__version__"}
    is_room = {name: (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() for name in ours}
    return {HALVES.get(name, name) if is_room[name] else "__init__" for name in ours}


def arrows_against_the_order(room_of_it: str, used: set[str]) -> set[str]:
    if room_of_it in OPEN_TO_ALL:
        return used - set(OPEN_TO_ALL)
    if room_of_it == BESIDE:
        return used - {*OPEN_TO_ALL, BESIDE}
    allowed = {*OPEN_TO_ALL, *ORDER[: ORDER.index(room_of_it) + 1], *({BESIDE} if room_of_it == "cli" else ())}
    return used - allowed


every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


@every_module
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    assert arrows_against_the_order(room(path), rooms_used(path)) == set()


@every_module
def test_every_room_stands_in_the_order(path: Path) -> None:
    assert room(path) in {*ORDER, *OPEN_TO_ALL, BESIDE}


def test_an_arrow_against_the_order_is_found() -> None:
    assert arrows_against_the_order("lines", {"sources", "errors", "frames", "views"}) == {"frames", "views"}
    assert arrows_against_the_order("data", {"errors", "lines"}) == {"lines"}
    assert arrows_against_the_order("views", {"capture"}) == {"capture"}
    assert arrows_against_the_order("capture", {"views", "capture"}) == {"views"}


@pytest.mark.parametrize("name", ON_EACH_RANK)
def test_what_runs_on_each_rank_of_a_capture_needs_pytorch_alone(name: str) -> None:
    used = set(imports(PACKAGE / "capture" / f"{name}.py"))
    ours = {full.removeprefix("ncclforensics.capture.").split(".")[0] for full in used if "ncclforensics" in full}

    assert ours <= set(ON_EACH_RANK)
    assert {full.split(".")[0] for full in used} - {"ncclforensics", "torch"} <= sys.stdlib_module_names


@every_module
def test_only_views_know_the_terminal(path: Path) -> None:
    assert room(path) == "views" or libraries(path).isdisjoint(TERMINAL)


@every_module
def test_only_the_command_line_knows_arguments(path: Path) -> None:
    assert room(path) == "cli" or libraries(path).isdisjoint({"typer", "click", "argparse"})


@every_module
def test_only_grammars_know_what_a_line_looks_like(path: Path) -> None:
    assert path.relative_to(PACKAGE).as_posix() in PATTERNS or "re" not in libraries(path)


def applied_patterns(code: str) -> list[str]:
    """The calls of Polars' methods on text that read a pattern."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in OF_PATTERNS
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "str"
        and not any(keyword.arg == "literal" for keyword in node.keywords)
    ]


@every_module
def test_only_what_applies_grammars_searches_for_patterns(path: Path) -> None:
    assert path.relative_to(PACKAGE).as_posix() in APPLYING or applied_patterns(path.read_text(encoding="utf-8")) == []


def test_a_pattern_on_a_column_is_found() -> None:
    code = 'rows.filter(pl.col("a").str.contains("^x"), pl.col("b").str.contains("^", literal=True))'

    assert applied_patterns(code) == ["pl.col('a').str.contains('^x')"]


@every_module
def test_only_one_module_knows_lark(path: Path) -> None:
    assert path.stem == "derivation" or "lark" not in libraries(path)


@pytest.mark.parametrize("module", ["ncclforensics", "ncclforensics.cli"])
def test_what_answers_at_once_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {{'polars', 'lark', 'rich', 'textual'}}))"

    said = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)

    assert said.stdout.split() == []
