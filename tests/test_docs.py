"""Pages that are generated say what the program says; what a README shows exists."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

import ncclforensics.analyses  # noqa: F401  # registers the analyses
from ncclforensics import cli
from ncclforensics.formats import dialect
from ncclforensics.frames import registry, run
from ncclforensics.grammar.grammar_file import Shape
from tests.incidents import ROOT

DOCS = ROOT / "docs"
COMMANDS = [command.callback.__name__ for command in cli.app.registered_commands if command.callback]
Golden = Callable[[Path, str], None]


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def ask(*command: str) -> str:
        with pytest.raises(SystemExit, match="0"):
            cli.app([*command, "--help"], prog_name="ncclforensics")
        return capsys.readouterr().out

    return ask


def test_cli_md_is_what_help_prints(help_of: Callable[..., str], golden: Golden) -> None:
    parts = ["# Commands\n\nGenerated from `--help` by `pytest --update`.\n"]
    for command in ([], *([name] for name in COMMANDS)):
        parts.append(f"## {' '.join(['ncclforensics', *command])}\n\n```text\n{help_of(*command).strip()}\n```\n")
    parts.append(_exit_codes())

    golden(DOCS / "cli.md", "\n".join(parts))


def _exit_codes() -> str:
    meaning = {
        cli.Exit.OK: "nothing at or above the threshold of `--fail-on`",
        cli.Exit.FINDINGS: "findings",
        cli.Exit.USAGE: "wrong usage, or no readable input at all",
        cli.Exit.UNDECIDABLE: "readable, but not enough to decide; the output says what to collect",
        cli.Exit.INTERRUPTED: "interrupted",
    }
    rows = [f"| {int(code)} | {meaning[code]} |" for code in cli.Exit]
    return "\n".join(["## Exit codes\n", "| code | means |", "|---|---|", *rows, ""])


def test_every_command_and_every_option_has_help(help_of: Callable[..., str]) -> None:
    for name in COMMANDS:
        text = help_of(name)
        options = re.findall(r"^  (-\S.*)$", text, re.MULTILINE)
        assert len(options) >= 2
        for option in options:
            told = option.partition("  ")[2] or text.partition(option)[2].splitlines()[1]
            assert told.strip(), option


def test_frames_md_is_made_of_the_grammars_and_the_analyses(golden: Golden) -> None:
    golden(DOCS / "frames.md", "\n".join(_frames()))


def test_every_frame_that_is_computed_says_what_it_is() -> None:
    assert [name for name, computed in registry.analyses().items() if not inspect.getdoc(computed.function)] == []


def _frames() -> Iterator[str]:
    yield "# Frames\n"
    yield "The tables that analyses and rules read. Generated from `grammars/` and `analyses/` by `pytest --update`.\n"
    yield "Every parsed frame also has `source` (number of the file), `line`, and `pos` (order within one process).\n"
    yield "## Parsed: one row per line\n"
    for shape in dialect().whole.shapes:
        yield from _parsed(shape)
    yield "## Computed\n"
    yield from _table("source", "Every file that was read.", _rows(run.SOURCE_COLUMNS, run.__name__))
    nothing = run.Run([], whole=True)
    for name, told in REPEATING.items():
        columns = nothing[name].schema.items()
        yield from _table(name, told, [(column, _dtype(dtype), COMMON.get(column, "")) for column, dtype in columns])
    for name, computed in registry.analyses().items():
        told = (inspect.getdoc(computed.function) or "").partition("\n\n")[0].replace("\n", " ")
        yield from _table(name, told, _rows(computed.columns, computed.function.__module__))


def _parsed(shape: Shape) -> Iterator[str]:
    forms = list(dict.fromkeys(pattern.form for pattern in shape.patterns if pattern.form))
    told = f"Lines of `grammars/{shape.grammar}.lark`, such as `{shape.examples[0]}`"
    rows = [("form", "Categorical", ", ".join(forms) or "always empty")] if forms else []
    rows += [(name, _dtype(base.dtype), base.unit) for name, base in shape.columns.items()]
    yield from _table(shape.frame, f"{told}\n\nNeeds: {shape.needs}", rows)


# The rows of `operation`, as they are kept.
REPEATING = {
    "call_template": "What lines of `operation` say but for `opcount`, each once, at the first of them.",
    "call_occurrence": "Every line of `operation`: its place, its `opcount`, and its row of `call_template`.",
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
    """The comments behind the columns, where the module declares them."""
    lines = inspect.getsource(module).splitlines()
    found: dict[str, str] = {}
    for node in ast.parse("\n".join(lines)).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        declared = getattr(module, ast.unparse(node.targets[0]))
        if declared is columns or declared.items() < columns.items():
            block = "\n".join(lines[node.lineno : node.end_lineno])
            found.update(re.findall(r'^    "(\w+)": .*,  # (.+)$', block, re.MULTILINE))
    return found


def _dtype(dtype: pl.DataType) -> str:
    return str(dtype).split("(")[0] if isinstance(dtype, pl.Categorical) else str(dtype).replace("|", "\\|")


def _table(name: str, told: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    yield f"### {name}\n\n{told}\n"
    yield "| column | dtype | meaning |\n|---|---|---|"
    yield from (f"| `{column}` | {dtype} | {meaning.replace('|', chr(92) + '|')} |" for column, dtype, meaning in rows)
    yield ""


def test_what_the_readme_runs_exists(help_of: Callable[..., str]) -> None:
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")

    text = readme.read_text(encoding="utf-8")
    shown = re.findall(r"^ *(?:[^|\n]*\| )?ncclforensics ([a-z-]+)([^\n`#]*)", text, re.MULTILINE)

    assert shown
    for command, arguments in shown:
        assert command.startswith("--") or command in COMMANDS, command
        if command in COMMANDS:
            known = help_of(command)
            for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", arguments):
                assert option in known, f"{command} {option}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        # A table of frames holds example lines of logs, which may look like links to a number.
        for target in re.findall(r"\]\(([^)#:]+[.][a-z]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
