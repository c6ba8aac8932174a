"""The words of docs/glossary.md are law: its private words are refused as names in the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from ncclforensics.formats import dialect
from tests.incidents import ROOT
from tests.source import MODULES, PACKAGE, nodes

pytestmark = pytest.mark.xdist_group("source")
GLOSSARY = ROOT / "docs" / "glossary.md"
# Where a refused word is the word of others: of a library, of a tool, of the JSON contract.
ALLOWED = {
    ("capture/worker.py", "says"),  # a key of the journal, which other versions read
    ("capture/collectives.py", "says"),
    ("capture/plan.py", "drills"),  # a key of the record of a capture
    ("capture/worker.py", "drills"),
    ("views/json_report.py", "standstill"),  # keys of the JSON report
    ("views/json_report.py", "heard"),
    ("rules/benchmark/sweeps.py", "together"),  # a label of evidence in the JSON report
    ("data/redaction_rules.py", "nobody"),  # a user of Unix
    ("data/redaction_rules.py", "it"),  # a top-level domain
    ("data/processes.py", "Actor"),  # of the name of a class of Monarch
    ("rules/job/log_collection.py", "read_launcher_decoration"),  # the name of a rule
}


def private_words(heading: str) -> frozenset[str]:
    """The words in the first column of the table below a sentence of the glossary."""
    text = GLOSSARY.read_text(encoding="utf-8").partition(f"\n{heading}:\n")[2].strip()
    rows = text.partition("\n\n")[0].splitlines()[2:]
    return frozenset(word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1]))


AS_NAME = private_words("Not as a name of its own")
AS_PART = private_words("Neither as a name nor as a part of one")


def is_private(name: str) -> bool:
    lowered = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return lowered in AS_NAME or not AS_PART.isdisjoint(lowered.split("_"))


def names(syntax: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """The names that a module defines, and the strings in it that may be names of columns, with their lines."""
    for node in syntax:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.keyword(arg=str(name)):
                yield name, node.value.lineno
            case ast.Attribute(attr=name, value=ast.Attribute(attr="col")):
                yield name, node.lineno
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text, node.lineno


def private_names(syntax: Iterable[ast.AST]) -> list[tuple[str, int]]:
    return sorted({(name, line) for name, line in names(syntax) if is_private(name)}, key=lambda hit: hit[1])


def test_the_package_uses_no_private_words_as_names() -> None:
    refused = []
    for path in MODULES:
        module = path.relative_to(PACKAGE).as_posix()
        hits = private_names(nodes(path))
        refused += [f"{module}:{line} {name}" for name, line in hits if (module, name) not in ALLOWED]
        refused += [module for part in path.relative_to(PACKAGE).with_suffix("").parts if is_private(part)]

    assert refused == []


def test_grammars_use_no_private_words_as_frames_or_columns() -> None:
    used = {name for shape in dialect().with_all_formats.shapes for name in (shape.frame, *shape.columns)}

    assert {name for name in used if is_private(name)} == set()


def test_private_names_are_found() -> None:
    code = """
def told(each):
    guest_lines = pl.col.said + pl.col("standstill")
    self.seat = rows.agg(drill_count=pl.len(), rank=1)
    return rows.walk(telling, whole_file=True)
"""
    expected = ["each", "told", "guest_lines", "said", "standstill", "seat", "drill_count"]

    assert sorted(name for name, _ in private_names(ast.walk(ast.parse(code)))) == sorted(expected)


def test_the_glossary_lists_private_words() -> None:
    assert {"told", "whole"} <= AS_NAME
    assert {"guest", "seat"} <= AS_PART


def test_the_glossary_explains_every_word_once() -> None:
    text = GLOSSARY.read_text(encoding="utf-8").partition("## Words not to use")[0]
    words = [word for row in re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE) for word in row.split(", ")]

    assert len(words) > 50
    assert len(words) == len(set(words))
