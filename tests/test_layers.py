"""Imports point one way, and what knows about text, terminals and arguments stays in its room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ncclforensics"
# A module may import what stands before it; `errors` and `data` are open to all.
ORDER = (
    "saved",
    "sources",
    "lines",
    "grammar",
    "language",
    "decoration",
    "matching",
    "repetition",
    "engine",
    "parse",
    "reading",
    "span",
    "objects",
    "formats",
    "nearest",
    "columns",
    "parquet",
    "batches",
    "joining",
    "readers",
    "frames",
    "analyses",
    "rules",
    "summary",
    "selection",
    "report",
    "comparison",
    "redaction",
    "saving",
    "views",
    "__init__",
    "tui",
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
    "redaction.py": "words of any text, whoever printed it, and what stands behind the name of a secret",
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


@cache
def imports(path: Path) -> frozenset[str]:
    """The full names that a module imports, wherever in it; what only the type checker sees does not count."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
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


def outside(*rooms: str) -> list[Path]:
    """The modules of all other rooms."""
    return [path for path in MODULES if room(path) not in rooms]


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_a_module_imports_only_what_stands_before_it() -> None:
    against = {named(path): arrows_against_the_order(room(path), rooms_used(path)) for path in MODULES}

    assert {name: arrows for name, arrows in against.items() if arrows} == {}


def test_every_room_stands_in_the_order() -> None:
    assert {room(path) for path in MODULES} <= {*ORDER, *OPEN_TO_ALL, BESIDE}


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


def test_only_views_and_screens_know_the_terminal() -> None:
    assert [named(path) for path in outside("views", "tui") if libraries(path) & set(TERMINAL)] == []


def test_only_the_command_line_knows_arguments() -> None:
    assert [named(path) for path in outside("cli") if libraries(path) & {"typer", "click", "argparse"}] == []


def test_only_grammars_know_what_a_line_looks_like() -> None:
    assert {named(path) for path in MODULES if "re" in libraries(path)} == set(PATTERNS)


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


def test_only_what_applies_grammars_searches_for_patterns() -> None:
    assert {named(path) for path in MODULES if applied_patterns(path.read_text(encoding="utf-8"))} == set(APPLYING)


def test_a_pattern_on_a_column_is_found() -> None:
    code = 'rows.filter(pl.col("a").str.contains("^x"), pl.col("b").str.contains("^", literal=True))'

    assert applied_patterns(code) == ["pl.col('a').str.contains('^x')"]


def test_only_one_module_knows_lark() -> None:
    assert [named(path) for path in MODULES if "lark" in libraries(path)] == ["derivation.py"]


@pytest.mark.parametrize("module", ["ncclforensics", "ncclforensics.cli", "ncclforensics.sources"])
def test_what_answers_at_once_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {{'polars', 'lark', 'rich', 'textual'}}))"

    said = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)

    assert said.stdout.split() == []
