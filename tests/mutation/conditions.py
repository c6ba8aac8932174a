"""Knock out every condition of the engine, one at a time, and see which incidents notice: `make knockouts`.

A condition is a test of `if` and of a conditional expression, an operand of `and` and `or`, and a filter of a
comprehension. It is knocked out by what leaves it out: the branch is not taken, the operand decides nothing, all items
pass. Only the engine runs again, on frames that are computed once for every incident, and only for incidents in which
the condition ever decided otherwise. Prints each condition that changes no answer, as file and line, and counts them.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.mutation.loading import load_changed

ENGINE = "ncclforensics.analyses.verdict"
ASKED = "ask_knocked_out"  # the name under which changed modules call `Knockouts.ask`


class Condition(NamedTuple):
    """A condition, and the value that leaves it out."""

    path: str
    line: int
    text: str
    without: bool


class Knockouts:
    """All conditions, the one that is knocked out, and the values that conditions had."""

    def __init__(self) -> None:
        self.conditions: list[Condition] = []
        self.knocked: int | None = None
        self.values: set[tuple[int, bool]] = set()

    def ask(self, number: int, value: object) -> object:
        """Return the value of a condition, or what leaves it out."""
        self.values.add((number, bool(value)))
        return self.conditions[number].without if number == self.knocked else value


class _Asking(ast.NodeTransformer):
    """Replace every condition by a call of `Knockouts.ask`."""

    def __init__(self, path: str, knockouts: Knockouts) -> None:
        self.path, self.knockouts = path, knockouts

    def _asked(self, node: ast.expr, *, without: bool) -> ast.expr:
        text = ast.unparse(node)
        changed = self.visit(node)
        self.knockouts.conditions.append(Condition(self.path, node.lineno, text, without))
        number = ast.Constant(len(self.knockouts.conditions) - 1)
        return ast.copy_location(ast.Call(ast.Name(ASKED, ast.Load()), [number, changed], []), node)

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self._asked(node.test, without=False)
        node.body = [self.visit(statement) for statement in node.body]
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        node.test = self._asked(node.test, without=False)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        node.iter = self.visit(node.iter)
        node.ifs = [self._asked(condition, without=True) for condition in node.ifs]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        is_and = isinstance(node.op, ast.And)
        *values, last = node.values
        is_default = not is_and and not isinstance(last, ast.Compare | ast.BoolOp | ast.UnaryOp)  # `found or []`
        asked = [self._asked(value, without=is_and) for value in values]
        node.values = [*asked, self.visit(last) if is_default else self._asked(last, without=is_and)]
        return node


def _ask_in_engine(knockouts: Knockouts) -> None:
    """Change the modules of the engine as they are loaded."""

    def asking(name: str, file: Path) -> ast.Module | None:
        if not name.startswith(ENGINE):
            return None
        tree = _Asking(str(file), knockouts).visit(ast.parse(file.read_text(encoding="utf-8")))
        return cast(ast.Module, ast.fix_missing_locations(tree))

    load_changed(asking)


def _frames_of_incidents() -> Iterator[dict[str, Any]]:
    """The frames that the engine is asked about, for every incident that has a job."""
    from ncclforensics.analyses.verdict import verdict
    from tests.incidents import ALL

    answers: Callable[..., Iterator[Any]] = verdict._answers
    found: list[dict[str, Any]] = []

    def keep(frames: dict[str, Any]) -> Iterator[Any]:
        found.append(dict(frames))
        return answers(frames)

    verdict._answers = keep
    for incident in ALL:
        incident.answer(everything=True)
    verdict._answers = answers
    yield from found


def _answer(frames: dict[str, Any]) -> object:
    from ncclforensics.analyses.verdict import verdict

    try:
        return list(verdict._answers(frames))
    except Exception as error:  # a condition that keeps the rest from failing is needed
        return type(error)


def main() -> None:
    knockouts = Knockouts()
    setattr(builtins, ASKED, knockouts.ask)
    _ask_in_engine(knockouts)
    cases = list(_frames_of_incidents())
    answers, decided = [], defaultdict(list)
    for case, frames in enumerate(cases):
        knockouts.values.clear()
        answers.append(_answer(frames))
        for number, value in knockouts.values:
            if value is not knockouts.conditions[number].without:
                decided[number].append(case)
    unneeded = 0
    for number, condition in enumerate(knockouts.conditions):
        knockouts.knocked = number
        if all(_answer(cases[case]) == answers[case] for case in decided[number]):
            unneeded += 1
            print(f"{condition.path}:{condition.line}: {condition.text}", flush=True)
    print(f"{unneeded} of {len(knockouts.conditions)} conditions change no answer of {len(cases)} incidents")


if __name__ == "__main__":
    main()
