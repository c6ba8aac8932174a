"""The floor plan: folders follow the data flow, imports point one way, libraries stay in their room."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.source import MODULES, PACKAGE, nodes

pytestmark = pytest.mark.xdist_group("source")
LINE = "a:1:2 [0] enqueue.cc:80 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'"
ROOMS = {
    "inputs", "grammar", "formats", "parsing", "frames", "analyses", "rules", "report", "diff", "views", "tui", "cli",
    "archive", "capture", "data", "mcp", "simulate", "watch", "extensions", "history",
}  # fmt: skip
TOPICS = {
    "job",
    "hang",
    "transport",
    "host",
    "fabric",
    "benchmark",
    "slow",
}  # the rooms inside `analyses` and `rules`
MOST_FILES, MOST_LINES = 5, 400
# A module imports modules of its own layer or of layers before it. The longest prefix decides to which it belongs.
LAYERS = (
    "errors",
    "data",
    "archive.atomic_write",
    "archive.manifest",
    "archive.parquet_footer",
    "inputs",
    "grammar",
    "formats",
    "parsing",
    "archive.small_frames",
    "archive.parquet",
    "archive.restore",
    "frames",
    "analyses.verdict.axioms",
    "analyses.job",
    "analyses.host",
    "analyses.fabric",
    "analyses.transport",
    "analyses.benchmark",
    "analyses.hang",
    "analyses.verdict",
    "analyses.slow",
    "analyses",
    "rules.finding",
    "rules.registry",
    "rules.running",
    "rules.shared",
    "rules",
    "extensions",
    "report",
    "archive.write",
    "archive.cluster",
    "diff",
    "history",
    "views",
    "api",
    "extensions.incidents",
    "watch",
    "tui",
    "mcp",
    "capture",
    "simulate",
    "cli",
    "__main__",
)
# What runs on each rank of a capture needs nothing but PyTorch.
ON_EACH_RANK = ("journal", "collectives", "pair_schedule", "worker", "orphan_guard")
# A line of a log is described by a grammar and by nothing else: who works with patterns says here why.
PATTERNS = {
    "inputs/lines.py": "escape sequences and control bytes of a quoted line",
    "parsing/explain_line.py": "those of the grammars, on one line",
    "inputs/plain_pickle.py": "runs of instructions of a pickle, which is no text",
    "inputs/chrome_trace.py": "where an event of a trace ends and the next one begins",
    "inputs/tolerant_json.py": "texts and brackets of JSON, to close what is cut off",
    "inputs/sources.py": "the user's own pattern for a rank in a file's name",
    "parsing/shortened_lines.py": "pieces of the shapes of the grammars, one after the other",
    "parsing/learned_tags.py": "a tag that is learned from the lines of one input, which no grammar can know",
    "report/identifiers.py": "addresses, GUIDs, URLs and tokens in any text, whoever printed it",
    "report/marked_names.py": "names of hosts, users and jobs in any text, by what stands before them",
    "report/pseudonyms.py": "words of any text, and what stands behind the name of a secret",
    "views/json_report.py": "control characters in the program's own output",
}
# What Polars reads as a pattern unless it is told that the text is literal, and who applies patterns, and which.
OF_PATTERNS = {
    "contains", "count_matches", "extract", "extract_all", "extract_groups", "find", "replace", "replace_all",
}  # fmt: skip
APPLYING = {
    "inputs/lines.py": "escape sequences and control bytes, before there are lines",
    "frames/source_order.py": "those of the grammars",
    "parsing/altered_lines.py": "parts of the grammar `copied`",
    "parsing/launcher_prefixes.py": "those of the grammars",
    "grammar/dialect.py": "those of the grammars",
    "parsing/learned_tags.py": "those of the grammars, and the tag that it learns",
    "grammar/values.py": "those of the grammar of values",
    "parsing/candidates.py": "those of the grammars",
    "parsing/matching.py": "those of the grammars",
    "parsing/continuations.py": "those of the grammars",
    "parsing/alike_rows.py": "numbers, whatever the text: what differs in lines of one kind",
    "parsing/copied_text.py": "those of the grammars",
    "parsing/documents.py": "parts of the grammar `copied`",
    "parsing/headed_values.py": "those of the grammars",
    "analyses/job/text/program_failures.py": "those of the grammar of lines that nothing else reads",
    "analyses/host/driver_reports.py": "those of the grammar of what drivers say",
    "parsing/wrapped_lines.py": "those of the grammars, after marks of other tools",
    "parsing/next_lines.py": "a part of the grammar `copied`",
    "parsing/parser.py": "those of the grammars",
    "parsing/templates.py": "those of the grammars",
    "parsing/messages_inside.py": "those of the grammar of copied text",
    "parsing/quoted_errors.py": "what the grammar says stands in front of a line",
    "extensions/examples.py": "those of the grammars",
    "report/marked_names.py": "its own, in whole files",
}
TERMINAL = ("rich", "textual")


def module_name(path: Path) -> str:
    """Dotted name below the package; the package itself is `api`, for it holds `analyze`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "api"


NAMES = {module_name(path): path for path in MODULES}


def layer(name: str) -> int:
    """Index of the layer with the longest prefix of this module name. Raises ValueError if there is none."""
    fitting = [one for one in LAYERS if name == one or name.startswith(f"{one}.")]
    return LAYERS.index(max(fitting, key=len)) if fitting else LAYERS.index(name)


@cache
def imports(path: Path, *, type_checking: bool = False) -> frozenset[str]:
    """Full names that a module imports at any level; those under TYPE_CHECKING only if asked for."""
    return frozenset(_imports(path, type_checking))


def _imports(path: Path, type_checking: bool) -> Iterator[str]:
    for_types = {
        id(inner)
        for outer in nodes(path)
        if isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING"
        for inner in ast.walk(outer)
    }
    for node in nodes(path):
        if id(node) in for_types and not type_checking:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def modules_used(path: Path, *, type_checking: bool = False) -> set[str]:
    """Names of the project's own modules that a module imports."""
    used = set()
    for full in imports(path, type_checking=type_checking):
        if full == "ncclforensics" or full.startswith("ncclforensics."):
            name = full.removeprefix("ncclforensics").removeprefix(".")
            if name == "__version__":
                continue
            while name and name not in NAMES:
                name = name.rpartition(".")[0]
            used.add(name or "api")
    return used - {module_name(path)}


def imports_against_the_flow(name: str, used: set[str]) -> set[str]:
    return {one for one in used if layer(one) > layer(name)}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The import cycles of a graph of modules, each as the sorted names of its modules."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, stack = set(), list(graph[start])
        while stack:
            name = stack.pop()
            if name not in seen:
                seen.add(name)
                stack.extend(graph.get(name, ()))
        reached[start] = seen
    on_cycle = [start for start in graph if start in reached[start]]
    found = {tuple(sorted({start} | {n for n in reached[start] if start in reached[n]})) for start in on_cycle}
    return [list(one) for one in sorted(found)]


def outside(*rooms: str) -> list[Path]:
    """The modules of all other rooms."""
    return [path for path in MODULES if module_name(path).split(".")[0] not in rooms]


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_the_package_has_the_rooms_of_the_floor_plan() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert folders == ROOMS
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize(("room", "others"), [("analyses", {"verdict"}), ("rules", {"shared"})])
def test_large_rooms_are_divided_by_topic(room: str, others: set[str]) -> None:
    assert {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")} == TOPICS | others


def test_no_module_exceeds_the_line_limit() -> None:
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}

    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_imports_follow_the_flow_of_the_data() -> None:
    against = {name: imports_against_the_flow(name, modules_used(path)) for name, path in NAMES.items()}

    assert {name: used for name, used in against.items() if used} == {}


def test_an_import_against_the_flow_is_found() -> None:
    assert imports_against_the_flow("inputs.lines", {"errors", "frames.run"}) == {"frames.run"}
    assert imports_against_the_flow("analyses.job.calls.calls", {"analyses.verdict.verdict"}) == {
        "analyses.verdict.verdict"
    }
    assert imports_against_the_flow("views.plots", {"cli.hang"}) == {"cli.hang"}


def test_no_modules_import_each_other() -> None:
    assert cycles({name: modules_used(path, type_checking=True) for name, path in NAMES.items()}) == []


def test_an_import_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_rules_do_not_import_rules() -> None:
    shared = ("rules.finding", "rules.registry", "rules.shared")
    own = {name: path for name, path in NAMES.items() if name.startswith("rules.") and not name.startswith(shared)}
    used = {
        name: {one for one in modules_used(path) if one.startswith("rules.") and not one.startswith(shared)}
        for name, path in own.items()
    }

    assert {name: rules for name, rules in used.items() if rules} == {}


def test_only_cli_imports_capture_and_capture_imports_little() -> None:
    used = {
        name: {one.split(".")[0] for one in modules_used(path) if not one.startswith("archive.atomic_write")}
        for name, path in NAMES.items()
    }

    assert {name.split(".")[0] for name, rooms in used.items() if "capture" in rooms} <= {"capture", "cli"}
    assert set().union(*(rooms for name, rooms in used.items() if name.startswith("capture"))) <= {
        "capture", "data", "errors",
    }  # fmt: skip


@pytest.mark.parametrize("name", ON_EACH_RANK)
def test_code_on_each_rank_of_a_capture_imports_only_pytorch(name: str) -> None:
    used = set(imports(PACKAGE / "capture" / f"{name}.py"))
    ours = {full.removeprefix("ncclforensics.capture.").split(".")[0] for full in used if "ncclforensics" in full}

    assert ours <= set(ON_EACH_RANK)
    assert {full.split(".")[0] for full in used} - {"ncclforensics", "torch"} <= sys.stdlib_module_names


def test_only_views_and_tui_import_terminal_libraries() -> None:
    assert [named(path) for path in outside("views", "tui") if libraries(path) & set(TERMINAL)] == []


def test_only_cli_imports_argument_parsers() -> None:
    assert [named(path) for path in outside("cli") if libraries(path) & {"typer", "click", "argparse"}] == []


def test_only_listed_modules_import_re() -> None:
    assert {named(path) for path in MODULES if "re" in libraries(path)} == set(PATTERNS)


def applied_patterns(syntax: Iterable[ast.AST]) -> list[str]:
    """The calls of Polars' methods on text that read a pattern."""
    return [
        ast.unparse(node)
        for node in syntax
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in OF_PATTERNS
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "str"
        and not any(keyword.arg == "literal" for keyword in node.keywords)
    ]


def test_only_listed_modules_apply_patterns_to_columns() -> None:
    assert {named(path) for path in MODULES if applied_patterns(nodes(path))} == set(APPLYING)


def test_a_pattern_on_a_column_is_found() -> None:
    code = 'rows.filter(pl.col("a").str.contains("^x"), pl.col("b").str.contains("^", literal=True))'

    assert applied_patterns(ast.walk(ast.parse(code))) == ["pl.col('a').str.contains('^x')"]


def test_only_one_module_imports_lark() -> None:
    assert [named(path) for path in MODULES if "lark" in libraries(path)] == ["grammar/compiler.py"]


@pytest.mark.parametrize("module", ["ncclforensics", "ncclforensics.cli", "ncclforensics.inputs.sources"])
def test_fast_commands_import_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {{'polars', 'lark', 'rich', 'textual'}}))"

    said = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)

    assert said.stdout.split() == []


@pytest.mark.parametrize(
    "what", ["ib-remote-access", "Xid 79", "NCCL_IB_HCA", LINE, LINE[40:], "the model is there", "via P2P/Disabled"]
)
def test_to_explain_a_rule_an_error_a_variable_or_a_line_loads_no_polars(what: str) -> None:
    code = f"""
import sys
from ncclforensics import cli
print(cli.main(["explain", {what!r}]), "polars" in sys.modules, file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)

    assert ended.stderr.split() == ["0", "False"]
