"""Generated pages agree with the program; commands, options and links in the documentation exist."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
import typer

import ncclforensics.analyses  # noqa: F401  # registers the analyses
from ncclforensics import cli
from ncclforensics.data import settings
from ncclforensics.data.settings import ExpectedMachine, Thresholds
from ncclforensics.formats import dialect
from ncclforensics.frames import registry, run, stated_lines
from ncclforensics.frames.columns import columns_of
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.stated_lines import STATED_LINE
from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.folders import GRAMMARS
from ncclforensics.grammar.patterns import Shape
from tests.incidents import ROOT

DOCS = ROOT / "docs"
FRAMES = DOCS / "frames"
Golden = Callable[[Path, str], None]


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def ask(*command: str) -> str:
        with pytest.raises(SystemExit, match="0"):
            cli.app()([*command, "--help"], prog_name="ncclforensics")
        return capsys.readouterr().out

    return ask


def test_cli_md_holds_what_help_prints(help_of: Callable[..., str], golden: Golden) -> None:
    parts = ["# Commands\n\nGenerated from `--help` by `pytest --update`.\n"]
    for command in ([], *_commands()):
        parts.append(f"## {' '.join(['ncclforensics', *command])}\n\n```text\n{help_of(*command).strip()}\n```\n")
    parts.append(_exit_codes())

    golden(DOCS / "cli.md", "\n".join(parts))


def test_help_fits_a_terminal_of_80_columns(help_of: Callable[..., str]) -> None:
    lines = [line for command in ([], *_commands()) for line in help_of(*command).splitlines()]
    assert [line for line in lines if len(line) > 80] == []


def _commands() -> Iterator[list[str]]:
    """Every command, and every command of a group behind it."""
    program = typer.main.get_group(cli.app())
    for name in cli.COMMANDS:
        yield [name]
        yield from ([name, inner] for inner in getattr(program.commands[name], "commands", ()))


def _exit_codes() -> str:
    meaning = {
        cli.Exit.OK: "nothing at or above the threshold of `--fail-on`",
        cli.Exit.FINDINGS: "findings",
        cli.Exit.USAGE: "wrong usage, or no readable input at all",
        cli.Exit.UNDECIDABLE: "readable, but not enough to decide; the output says what to collect",
        cli.Exit.DEFECT: "the program itself failed: a defect, never a finding; what it found otherwise is printed",
        cli.Exit.INTERRUPTED: "interrupted",
    }
    rows = [f"| {int(code)} | {meaning[code]} |" for code in cli.Exit]
    return "\n".join(["## Exit codes\n", "| code | means |", "|---|---|", *rows, ""])


def test_every_command_and_every_option_has_help(help_of: Callable[..., str]) -> None:
    for command in _commands():
        text = help_of(*command)
        options = re.findall(r"^  (-\S.*)$", text, re.MULTILINE)
        assert len(options) >= (1 if command in (["test-rules"], ["history"]) else 2)
        for option in options:
            description = option.partition("  ")[2] or text.partition(option)[2].splitlines()[1]
            assert description.strip(), option


def test_frame_pages_agree_with_grammars_and_analyses(golden: Golden) -> None:
    pages = _frame_pages()
    for name, page in pages.items():
        golden(FRAMES / f"{name}.md", page.text)

    golden(DOCS / "frames.md", "\n".join(_frame_index(pages)))
    assert {path.stem for path in FRAMES.glob("*.md")} == set(pages)


def test_every_computed_frame_has_a_description() -> None:
    assert [name for name, computed in registry.analyses().items() if not inspect.getdoc(computed.function)] == []


@dataclass(frozen=True, slots=True)
class FramePage:
    """One page of docs/frames: the frames of one grammar or of the analyses of one room."""

    summary: str
    frames: list[str]
    text: str


def _frame_pages() -> dict[str, FramePage]:
    shapes: dict[str, list[Shape]] = {}
    for shape in dialect().with_all_formats.shapes:
        shapes.setdefault(shape.grammar, []).append(shape)
    computed: dict[str, list[str]] = {}
    for name, analysis in registry.analyses().items():
        computed.setdefault(analysis.function.__module__.split(".")[2], []).append(name)
    pages = {grammar: _parsed_page(grammar, shapes[grammar]) for grammar in sorted(shapes)}
    pages |= {f"analyses-{room}": _computed_page(room, sorted(computed[room])) for room in sorted(computed)}
    return pages | {"run": _run_page()}


def _frame_index(pages: dict[str, FramePage]) -> Iterator[str]:
    yield "# Frames\n"
    yield "The tables that analyses and rules read. Generated from `grammars/` and `analyses/` by `pytest --update`.\n"
    yield "Every parsed frame also has `source` (number of the file), `line`, and `pos` (order within one process).\n"
    parsed = [name for name in pages if name != "run" and not name.startswith("analyses-")]
    for title, names in {
        "Parsed: one row per line": parsed,
        "Computed by analyses": [name for name in pages if name.startswith("analyses-")],
        "Kept by the run": ["run"],
    }.items():
        yield f"## {title}\n\n| page | frames |\n|---|---|"
        for name in names:
            page = pages[name]
            links = ", ".join(f"[`{frame}`](frames/{name}.md#{frame})" for frame in page.frames)
            yield f"| **{name}**: {page.summary} | {links} |"
        yield ""


def _page(title: str, summary: str, tables: dict[str, Iterator[str]]) -> FramePage:
    parts = [f"# {title}\n", f"{summary} All frames: [frames.md](../frames.md).\n"]
    return FramePage(summary, list(tables), "\n".join([*parts, *(line for table in tables.values() for line in table)]))


def _parsed_page(grammar: str, shapes: list[Shape]) -> FramePage:
    text = (GRAMMARS / f"{grammar}.lark").read_text(encoding="utf-8").partition("// needs:")[0]
    summary = " ".join(line.removeprefix("//").strip() for line in text.splitlines()).strip().replace("|", "\\|")
    return _page(f"Frames of grammars/{grammar}.lark", summary, {shape.frame: _parsed(shape) for shape in shapes})


def _computed_page(room: str, names: list[str]) -> FramePage:
    package = sys.modules[f"ncclforensics.analyses.{room}"]
    tables = {}
    for name in names:
        computed = registry.analyses()[name]
        description = (inspect.getdoc(computed.function) or "").partition("\n\n")[0].replace("\n", " ")
        tables[name] = _table(name, description, _rows(computed.columns, computed.function.__module__))
    return _page(f"Frames of analyses/{room}", inspect.getdoc(package) or "", tables)


def _run_page() -> FramePage:
    empty = open_run([])
    tables = {"source": _table("source", "Every file that was read.", _rows(run.SOURCE_COLUMNS, run.__name__))}
    for name, (description, columns) in SETTINGS_FRAMES.items():
        tables[name] = _table(name, description, _rows(columns, settings.__name__))
    stated = "Every line that its grammar marks as a failure, a condition or a consequence."
    tables["stated_line"] = _table("stated_line", stated, _rows(STATED_LINE, stated_lines.__name__))
    for name, description in TEMPLATE_FRAMES.items():
        columns = empty[name].schema.items()
        rows = [(column, _dtype(dtype), COMMON.get(column, "")) for column, dtype in columns]
        tables[name] = _table(name, description, rows)
    return _page("Frames of the run", "The sources, what the site expects, and the calls as they are stored.", tables)


def _parsed(shape: Shape) -> Iterator[str]:
    forms = list(dict.fromkeys(pattern.form for pattern in shape.patterns if pattern.form))
    parts = [f"Such as `{shape.examples[0]}`", *_meanings(shape), f"Needs: {shape.needs}"]
    description = "\n\n".join(parts)
    rows = [("form", "Categorical", ", ".join(forms) or "always empty")] if forms else []
    rows += [(name, _dtype(base.dtype), base.unit) for name, base in shape.columns.items()]
    yield from _table(shape.frame, description, rows)


def _meanings(shape: Shape) -> Iterator[str]:
    """What its lines mean, where they are no facts: one item per mark."""
    meanings = grammar_file.load(shape.grammar).meanings[shape.frame]
    forms_of: dict[tuple[str, str], list[str]] = {}
    for form, meaning in meanings.items():
        if meaning.text:
            forms_of.setdefault((meaning.kind, meaning.text), []).append(form)
    items = [
        f"- {kind}{f' ({names})' if (names := ', '.join(filter(None, forms))) else ''}: {text}"
        for (kind, text), forms in forms_of.items()
    ]
    if items:
        yield "\n".join(items)


SETTINGS_FRAMES = {
    "expected_machine": (
        "What the site's configuration expects of each host; no row without it.",
        columns_of(ExpectedMachine),
    ),
    "threshold": ("One row: the thresholds that the site's configuration may move.", columns_of(Thresholds)),
}

# How the rows of `operation` are stored.
TEMPLATE_FRAMES = {
    "call_template": "The messages of `operation` without their `opcount`, each once, with the line of the first.",
    "call_occurrence": "Every line of `operation`: its position, its `opcount`, and its row of `call_template`.",
}

# Columns that mean the same in every frame.
COMMON = {
    "job": "number of the job; several jobs may lie in one folder",
    "rank_id": "number of a rank, counted over all jobs",
    "key": "name of the communicator, equal on all its ranks",
    "source": "number of the file",
    "line": "line in it; negative: counted from the end of a file not read whole",
    "pos": "order of the lines of one process",
    "host": "as the log prints it",
    "pid": "as the log prints it",
}


def _rows(columns: Mapping[str, pl.DataType], module: str) -> list[tuple[str, str, str]]:
    """The columns of an analysis; what they mean stands beside them in its module."""
    meaning = {**COMMON, **_comments(sys.modules[module], columns)}
    return [(name, _dtype(dtype), meaning.get(name, "")) for name, dtype in columns.items()]


def _comments(module: ModuleType, columns: Mapping[str, pl.DataType]) -> dict[str, str]:
    """The comments behind the columns, where the module or one that it imports names from declares them."""
    tree = ast.parse(inspect.getsource(module))
    imported = [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
    declaring = [sys.modules[name] for name in imported if name.startswith("ncclforensics.analyses.")]
    found: dict[str, str] = {}
    for source in (*declaring, module):
        found.update(_own_comments(source, columns))
    return found


def _own_comments(module: ModuleType, columns: Mapping[str, pl.DataType]) -> dict[str, str]:
    """The comments behind columns in a dictionary of these, or behind fields of a class that has these columns."""
    lines = inspect.getsource(module).splitlines()
    found: dict[str, str] = {}
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            is_theirs = getattr(module, ast.unparse(node.targets[0])).items() <= columns.items()
        elif isinstance(node, ast.ClassDef) and any(isinstance(part, ast.AnnAssign) for part in node.body):
            of_class = _columns_of(getattr(module, node.name))
            is_part = of_class.items() <= columns.items() or columns.items() <= of_class.items()
            is_theirs = is_part and bool(of_class)
        else:
            continue
        if is_theirs:
            block = "\n".join(lines[node.lineno : node.end_lineno])
            found.update(re.findall(r'^    "?(\w+)"?: .*?,?  # (.+)$', block, re.MULTILINE))
    return found


def _columns_of(of: type) -> dict[str, pl.DataType]:
    """Of a class that holds other values than those of columns, none."""
    try:
        return columns_of(of)
    except (KeyError, NameError, RecursionError, TypeError):
        return {}


def _dtype(dtype: pl.DataType) -> str:
    return str(dtype).split("(")[0] if isinstance(dtype, pl.Categorical) else str(dtype).replace("|", "\\|")


def _table(name: str, description: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    yield f"## {name}\n\n{description}\n"
    yield "| column | dtype | meaning |\n|---|---|---|"
    yield from (f"| `{column}` | {dtype} | {meaning.replace('|', chr(92) + '|')} |" for column, dtype, meaning in rows)
    yield ""


def test_commands_and_options_in_the_readme_exist(help_of: Callable[..., str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^ *(?:[^|\n]*\| )?ncclforensics ([a-z-]+)([^\n`#]*)", text, re.MULTILINE)

    known = {
        command: "".join(help_of(*names) for names in _commands() if names[0] == command)
        for command in {command for command, _ in shown if command in cli.COMMANDS}
    }
    assert known
    for command, arguments in shown:
        assert command.startswith("--") or command in known, command
        for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", arguments if command in known else ""):
            assert option in known[command], f"{command} {option}"


def test_links_between_pages_lead_to_existing_files() -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        # A table of frames holds example lines of logs, which may look like links to a number.
        for target in re.findall(r"\]\(([^)#:]+[.][a-z]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
