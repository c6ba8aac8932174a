"""Registry of rules: functions that read frames and yield findings, with their docstrings as documentation.

The function's name is the rule's slug. The docstring's headings are fixed: Means, Not when, Do, Sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any, NamedTuple, cast

from ncclforensics.errors import UsageError
from ncclforensics.frames.declarations import declarations
from ncclforensics.rules.finding import Category, Finding, Role, Severity

RuleFunction = Callable[..., Iterator[Finding]]


class Rule(NamedTuple):
    """A registered rule."""

    name: str
    module: str
    category: Category
    severity: Severity
    of: tuple[str, ...]  # the frames that it judges; it runs if at least one has rows
    role: Role  # of its findings, where they are no cause
    hang: bool  # `hang` runs it: it explains a hang, and needs only both ends of each file
    fallback: bool = False  # a finding of it holds only where no other rule cites one of its lines
    verdict: str = ""  # the verdict on a job that its findings state
    last: bool = False  # a finding of it holds only where nothing but notes and what follows from others was found
    of_failures: bool = False  # what it tells of is none of a job that ended well
    page: str = ""  # its documentation: the docstring without indentation
    imported: RuleFunction | None = None  # the function, if its module was imported when this was registered

    @property
    def function(self) -> RuleFunction:
        """The function; its module is imported if need be."""
        return self.imported or cast(RuleFunction, getattr(import_module(self.module), self.name.replace("-", "_")))

    def section(self, heading: str) -> str:
        """Return the text under a heading (one of HEADINGS), or an empty string."""
        for paragraph in self.page.split("\n\n"):
            for part in paragraph.split("\n"):
                if part.startswith(f"{heading}: "):
                    start = paragraph.index(part) + len(heading) + 2
                    rest = paragraph[start:].split("\n")
                    ends = (n for n, line in enumerate(rest) if n and line.split(":")[0] in HEADINGS)
                    return " ".join(line.strip() for line in rest[: next(ends, len(rest))])
        return ""


HEADINGS = ("Means", "Not when", "Do", "Sources")
# Labels of lines that explain no warning among them: where a rank stands, and the warning whose error it returned.
WAITING, RETURNED = "waiting", "returned"
_RULES: dict[str, Rule] = {}


def rule(
    category: Category,
    severity: Severity,
    *,
    of: tuple[str, ...] = (),
    role: Role = Role.CAUSE,
    hang: bool = False,
    fallback: bool = False,
    verdict: str = "",
    last: bool = False,
    of_failures: bool = False,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as a rule. Raises ValueError for a second rule of the same name.

    `of`: the frames that the rule judges; it does not run if all of them are empty.
    `role`: of its findings, where they name no other one than that of a cause.
    `hang`: the command `hang` runs the rule, too; other rules run only in `check`, which reads every line.
    `fallback`: its findings are dropped where another rule explains one of the lines that they are about.
    `verdict`: the verdict on a job that its findings state.
    `last`: its findings are dropped where a cause was found, or what a fallback rule answers before their lines.
    `of_failures`: it does not run where a job ended well, which survived whatever its lines tell of.
    """

    def register(function: RuleFunction) -> RuleFunction:
        name, module = function.__name__.replace("_", "-"), function.__module__
        taken = _RULES.get(name)
        if taken and (taken.imported or taken.module != module):
            raise ValueError(f"two rules are named {name}: {taken.module}, {module}")
        page = cleandoc(function.__doc__ or "")
        how = (role, hang, fallback, verdict, last, of_failures)
        _RULES[name] = Rule(name, module, category, severity, of, *how, page, function)
        return function

    return register


def all_rules() -> list[Rule]:
    """Return every rule, in the order of the module names; modules of the program need not be imported for that."""
    _declare_rules()
    return list(_RULES.values())


@cache
def _declare_rules() -> None:
    """Register the rules in all modules of this package."""

    def describe() -> list[Any]:
        return [[*(getattr(rule, name) for name in Rule._fields if name != "imported")] for rule in _RULES.values()]

    for name, module, category, severity, of, role, *rest in declarations(__name__.rpartition(".")[0], describe):
        declared = Rule(name, module, Category(category), Severity(severity), tuple(of), Role(role), *rest)
        _RULES.setdefault(name, declared)


def select_rules(*, everything: bool, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Rule]:
    """Return the rules for `hang`, or all, restricted to those selected and not ignored by rule or category.

    Raises UsageError for a name that is neither a rule nor a category.
    """
    rules, wanted, unwanted = all_rules(), set(select), set(ignore)
    known = {name for rule in rules for name in (rule.name, str(rule.category))} | set(Category)
    for name in sorted((wanted | unwanted) - known):
        from difflib import get_close_matches

        similar = get_close_matches(name, known, n=1)
        hint = f"perhaps {similar[0]} is meant" if similar else "`ncclforensics explain` lists all rules"
        raise UsageError(f"{name}: neither a rule nor a category; {hint}")
    return [
        rule
        for rule in rules
        if (everything or rule.hang)
        and (not wanted or wanted & {rule.name, rule.category})
        and not unwanted & {rule.name, rule.category}
    ]
