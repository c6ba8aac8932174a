"""Change a module in one place at a time, and see whether a test fails: `make mutants MODULE=… TESTS=…`.

The changes are those of cosmic-ray. A module of rules is first asked about all incidents, all in one process, which
takes a fraction of a second for a change. What these do not notice, and every change of another module, runs the tests
in a process of its own, forked after the libraries were imported: about two seconds. Prints every change that nothing
noticed, as file and line, and counts at the end.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import lark  # noqa: F401  # imported before the forks, as are the other libraries
import polars  # noqa: F401
import pytest
import typer  # noqa: F401
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator

from tests.mutation.loading import load_changed

SECONDS = 120  # a test that has not ended by then has noticed the change
COMPARISONS = ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq", "Lt_Gt", "Gt_Lt", "Is_IsNot", "IsNot_Is")
CALCULATIONS = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "BitAnd_BitOr", "BitOr_BitAnd")
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{name}" for name in COMPARISONS),
    *(f"core/ReplaceBinaryOperator_{name}" for name in CALCULATIONS),
    *(f"core/{name}" for name in ("NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot")),
    *(f"core/{name}" for name in ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue")),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change."""

    line: int
    operator: str
    source: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a module but those of annotations, which do nothing."""
    source = path.read_text(encoding="utf-8")
    before = behaviour(source)
    for name in OPERATORS:
        operator = get_operator(name)()
        for place in count():
            changed = MutationVisitor.mutate_code(source, operator, place)
            if changed is None:
                break
            if behaviour(changed) not in (None, before):
                lines = zip(source.splitlines(), changed.splitlines(), strict=False)
                line = next(number for number, (old, new) in enumerate(lines, 1) if old != new)
                yield Mutant(line, name.removeprefix("core/"), changed)


def behaviour(source: str) -> str | None:
    """What a module does: its tree without annotations; None for what is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def survives(mutant: Mutant, path: Path, tests: list[str]) -> bool:
    """Run tests on a changed module, in a process of its own; whether all pass."""
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        load_changed(lambda _, file: mutant.source if file.resolve() == path.resolve() else None)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        os._exit(min(int(pytest.main([*options, *tests])), 1))
    return os.waitpid(child, 0)[1] == 0


def unnoticed_in_incidents(path: Path, sources: list[str]) -> list[int] | None:
    """Number of each changed source with which the module's rules find the same; None for a module without rules."""
    from tests.mutation.incidents import RulesOnIncidents

    rules = RulesOnIncidents(path)
    return [number for number, source in enumerate(sources) if not rules.notice(source)] if rules.names else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs=argparse.REMAINDER, help="arguments of pytest; none: only all incidents")
    given = parser.parse_args()
    os.environ["NCCLFORENSICS_TESTS"] = "quick"  # with the compiled grammars of earlier runs
    unchanged = Mutant(1, "", given.module.read_text(encoding="utf-8"))
    if given.tests and not survives(unchanged, given.module, given.tests):
        parser.error("these tests fail on the module as it is")
    found = list(mutants(given.module))
    # In another process, because this one must not import the module before the tests do.
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        unnoticed = pool.submit(unnoticed_in_incidents, given.module, [mutant.source for mutant in found]).result()
    if unnoticed is None and not given.tests:
        parser.error("a module without rules needs tests")
    survivors = 0
    for mutant in found if unnoticed is None else [found[number] for number in unnoticed]:
        if not given.tests or survives(mutant, given.module, given.tests):
            survivors += 1
            before = given.module.read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip()
            after = mutant.source.splitlines()[mutant.line - 1].strip()
            print(f"{given.module}:{mutant.line}: {mutant.operator}\n    {before}\n    {after}", flush=True)
    print(f"{given.module}: {len(found)} changes, {len(found) - survivors} noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
