"""Registry of rules: a rule is a function that reads frames and yields findings; its docstring is its page.

The function's name is the rule's id. The docstring's headings are fixed: Means, Not when, Do, Sources.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

from ncclforensics.errors import ForensicsError, UsageError
from ncclforensics.rules.finding import Category, Finding, Role, Severity


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule."""

    name: str
    category: Category
    severity: Severity
    function: Callable[..., Iterator[Finding]]
    of: tuple[str, ...]  # the frames whose rows it judges
    hang: bool  # it explains why a job stands still, and sees enough in both ends of each file

    @property
    def page(self) -> str:
        """The rule's documentation."""
        return cleandoc(self.function.__doc__ or "")

    def section(self, heading: str) -> str:
        """One of Means, Not when, Do, Sources."""
        for paragraph in self.page.split("\n\n"):
            for part in paragraph.split("\n"):
                if part.startswith(f"{heading}: "):
                    start = paragraph.index(part) + len(heading) + 2
                    rest = paragraph[start:].split("\n")
                    ends = (n for n, line in enumerate(rest) if n and line.split(":")[0] in HEADINGS)
                    return " ".join(line.strip() for line in rest[: next(ends, len(rest))])
        return ""


HEADINGS = ("Means", "Not when", "Do", "Sources")
_RULES: dict[str, Rule] = {}


def rule(
    category: Category, severity: Severity, *, of: tuple[str, ...] = (), hang: bool = False
) -> Callable[[Callable[..., Iterator[Finding]]], Callable[..., Iterator[Finding]]]:
    """Register a function as a rule; a second rule of that name is refused.

    `of`: the frames whose rows it judges. Where these are all empty it is not asked, for it has nothing to say.
    `hang`: the command `hang` asks it too; all others are asked by `check` alone, which reads every line.
    """

    def register(function: Callable[..., Iterator[Finding]]) -> Callable[..., Iterator[Finding]]:
        name = function.__name__.replace("_", "-")
        if name in _RULES:
            raise ValueError(f"two rules are called {name}: {_RULES[name].function.__module__}, {function.__module__}")
        _RULES[name] = Rule(name, category, severity, function, of, hang)
        return function

    return register


def all_rules() -> list[Rule]:
    """Every rule, in the order of the modules' names."""
    for module in pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}."):
        import_module(module.name)
    return list(_RULES.values())


def chosen(*, everything: bool, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Rule]:
    """The rules on a hang, or all; of these those selected, by rule or category, and not ignored. Raises UsageError."""
    rules, wanted, unwanted = all_rules(), set(select), set(ignore)
    known = {name for one in rules for name in (one.name, str(one.category))} | set(Category)
    for name in sorted((wanted | unwanted) - known):
        raise UsageError(f"{name}: neither a rule nor a category; docs/rules/ has a page for each rule")
    return [
        one
        for one in rules
        if (everything or one.hang)
        and (not wanted or wanted & {one.name, one.category})
        and not unwanted & {one.name, one.category}
    ]


def findings(
    call: Callable[[Callable[..., Iterator[Finding]], tuple[str, ...]], Iterable[Finding] | None],
    asked: Iterable[Rule] | None = None,
) -> list[Finding]:
    """What these rules say (all if none are given); `call` supplies a function with frames, as `call_with` does."""
    said: list[Finding] = []
    for one in all_rules() if asked is None else asked:
        try:
            found = list(call(one.function, one.of) or ())
        except ForensicsError:  # what the rule asked for cannot be read
            raise
        except Exception as error:  # a defect of one rule must not cost the answers of all others
            found = [failed(one, error)]
        for finding in found:
            finding.rule = one.name
            finding.category = finding.category or one.category
            finding.severity = finding.severity or one.severity
            finding.remedy = finding.remedy or one.section("Do")
            said.append(finding)
    return sorted(said, key=_order)


def failed(one: Rule, error: Exception) -> Finding:
    """What is said in place of a rule that broke down."""
    return Finding(
        f"the rule {one.name} broke down on these logs, so whatever it judges is not told",
        f"{type(error).__name__}: {error}",
        "certain",
        role=Role.CONTEXT,
        severity=Severity.INFO,
        category=Category.INCOMPLETE_EVIDENCE,
        remedy=f"Report this as a defect of the program. `--ignore {one.name}` leaves the rule out.",
    )


def _order(finding: Finding) -> tuple[int, int, int, str]:
    return (
        list(Role).index(finding.role),
        list(Severity).index(finding.severity or Severity.INFO),
        ["certain", "likely", "possible"].index(finding.certainty),
        finding.rule,
    )
