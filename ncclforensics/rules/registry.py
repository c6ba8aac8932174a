"""Registry of rules: functions that read frames and yield findings, with their docstrings as documentation.

The function's name is the rule's slug. The docstring's headings are fixed: Means, Not when, Do, Sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from inspect import cleandoc
from itertools import islice
from typing import Any, NamedTuple, cast

from ncclforensics.errors import BrokenFrameError, Defect, ForensicsError, UsageError, is_own, own_place
from ncclforensics.frames.declarations import declarations
from ncclforensics.frames.protocol import Frames, call
from ncclforensics.parsing.concurrency import DEFECTS
from ncclforensics.rules.finding import Category, Finding, Known, Role, Severity, checked

RuleFunction = Callable[..., Iterator[Finding]]


class Rule(NamedTuple):
    """A registered rule."""

    name: str
    module: str
    category: Category
    severity: Severity
    of: tuple[str, ...]  # the frames that it judges; it runs if at least one has rows
    hang: bool  # `hang` runs it: it explains a hang, and needs only both ends of each file
    fallback: bool = False  # a finding of it holds only where no other rule cites one of its lines
    verdict: str = ""  # the verdict on a job that its findings state
    last: bool = False  # a finding of it holds only where nothing but notes and what follows from others was found
    imported: RuleFunction | None = None  # the function, if its module was imported when this was registered

    @property
    def function(self) -> RuleFunction:
        """The function; its module is imported if need be."""
        return self.imported or cast(RuleFunction, getattr(import_module(self.module), self.name.replace("-", "_")))

    @property
    def page(self) -> str:
        """The rule's documentation: its docstring without indentation."""
        return cleandoc(self.function.__doc__ or "")

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


BESIDE = 10  # lines
MOST_FINDINGS = 256  # of one rule: nobody reads more, and each costs as much as parsing a thousand lines
HEADINGS = ("Means", "Not when", "Do", "Sources")
# Labels of lines that explain no warning among them: where a rank stands, and the warning whose error it returned.
WAITING, RETURNED = "waiting", "returned"
_RULES: dict[str, Rule] = {}


def rule(
    category: Category,
    severity: Severity,
    *,
    of: tuple[str, ...] = (),
    hang: bool = False,
    fallback: bool = False,
    verdict: str = "",
    last: bool = False,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as a rule. Raises ValueError for a second rule of the same name.

    `of`: the frames that the rule judges; it does not run if all of them are empty.
    `hang`: the command `hang` runs the rule, too; other rules run only in `check`, which reads every line.
    `fallback`: its findings are dropped where another rule explains one of the lines that they are about.
    `verdict`: the verdict on a job that its findings state.
    `last`: its findings are dropped where a cause was found, or what a fallback rule answers before their lines.
    """

    def register(function: RuleFunction) -> RuleFunction:
        name, module = function.__name__.replace("_", "-"), function.__module__
        taken = _RULES.get(name)
        if taken and (taken.imported or taken.module != module):
            raise ValueError(f"two rules are named {name}: {taken.module}, {module}")
        _RULES[name] = Rule(name, module, category, severity, of, hang, fallback, verdict, last, function)
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

    for name, module, category, severity, of, *flags in declarations(__name__.rpartition(".")[0], describe):
        declared = Rule(name, module, Category(category), Severity(severity), tuple(of), *flags)
        _RULES.setdefault(name, declared)


def select_rules(*, everything: bool, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Rule]:
    """Return the rules for `hang`, or all, restricted to those selected and not ignored by rule or category.

    Raises UsageError for a name that is neither a rule nor a category.
    """
    rules, wanted, unwanted = all_rules(), set(select), set(ignore)
    known = {name for rule in rules for name in (rule.name, str(rule.category))} | set(Category)
    for name in sorted((wanted | unwanted) - known):
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


def run_rules(run: Frames, rules: Iterable[Rule] | None = None) -> list[Finding]:
    """Run these rules (default: all) and return their findings: by role, severity and certainty.

    A rule that raises an exception is added to the defects of the run and finds nothing. Raises ForensicsError if a
    frame cannot be read.
    """
    chosen = all_rules() if rules is None else list(rules)
    of_program, of_user = _known(run)

    def findings_of(rule: Rule) -> list[Finding]:
        return _findings(run, rule, of_user if is_own(rule.module) else of_program)

    usual = [rule for rule in chosen if not rule.last]
    findings = [finding for rule in usual if not rule.fallback for finding in findings_of(rule)]
    fallbacks = [finding for rule in usual if rule.fallback for finding in findings_of(rule)]
    if fallbacks := _uncited(fallbacks, findings):
        unasked = [rule for rule in all_rules() if rule not in chosen and rule.of and not rule.fallback]
        others = findings + [finding for rule in unasked for finding in findings_of(rule)]
        findings += _unexplained(_uncited(fallbacks, others), others)
    strong = [finding for finding in findings if finding.severity is not Severity.INFO]
    unexplained = {rule.name for rule in chosen if rule.fallback}
    if all(finding.role is Role.CONSEQUENCE or finding.rule in unexplained for finding in strong):
        last = [finding for rule in chosen if rule.last for finding in findings_of(rule)]
        findings += _before(_far_from(last, findings), strong)
    return sorted(findings, key=_order)


def _findings(run: Frames, rule: Rule, known: Known) -> list[Finding]:
    """Return the findings of one rule, with what the rule left out."""
    yielded: list[Finding] = []
    try:
        findings = iter(call(run, rule) or ())
        yielded = [checked(finding, known) for finding in islice(findings, MOST_FINDINGS)]
        if next(findings, None):
            yielded.append(_rest_of(rule))
    except BrokenFrameError:  # the analysis that failed is named already
        pass
    except ForensicsError:  # a frame of the rule cannot be read
        raise
    except DEFECTS as error:  # a defect of one rule must not suppress the findings of the others
        run.defects.append(Defect.of(f"the rule {rule.name}", error, own_place=own_place(rule.function, error)))
    for finding in yielded:
        finding.rule = rule.name
        finding.ranks = sorted(set(finding.ranks))
        finding.category = finding.category or rule.category
        finding.severity = finding.severity or rule.severity
        finding.remedy = finding.remedy or rule.section("Do")
    return yielded


def _known(run: Frames) -> tuple[Known, Known]:
    """What findings may name: those of the program's rules, and those of a user's own.

    A line may name a rank beyond the largest communicator that the logs show: then the size of the world is unknown. A
    rule of a user's own is not believed so far.
    """
    of_program = Known(len(run.inputs), set(run["verdict"]["job"]))
    sizes, ranks = run["member"]["nranks"].drop_nulls(), run["rank"]["rank"].drop_nulls()
    size = max(sizes, default=None)
    is_stated = size is not None and max(ranks, default=-1) < size
    return of_program, of_program._replace(world_size=size if is_stated else None)


def _rest_of(rule: Rule) -> Finding:
    """Return the finding that stands for all findings of a rule beyond MOST_FINDINGS."""
    return Finding(
        f"more than {MOST_FINDINGS} findings of the rule {rule.name}",
        "the others are left out: these logs repeat one condition with other numbers or names",
        "certain",
        role=Role.CONTEXT,
        severity=Severity.INFO,
        explains=False,
        remedy="Select one rank or host, a time range, or fewer files, to see the others.",
    )


def _far_from(last: list[Finding], notes: list[Finding]) -> list[Finding]:
    """Return the findings whose first line no note stands beside: what stands around a line belongs to it."""
    cited = [
        line
        for note in notes
        if note.severity is Severity.INFO and note.category is not Category.INCOMPLETE_EVIDENCE
        for line in note.evidence
    ]
    return [
        finding
        for finding in last
        for first in finding.evidence[:1]
        if not any(line.source == first.source and abs(line.line - first.line) <= BESIDE for line in cited)
    ]


def _before(last: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return the findings whose first line stands before the lines that others cite; notes only where none do."""
    return [
        finding
        for finding in last
        for first in finding.evidence[:1]
        if not (others and finding.severity is Severity.INFO)
        and not any(
            line.source == first.source and _nth(line.line) <= _nth(first.line)
            for other in others
            for line in other.evidence
        )
    ]


def _nth(line: int) -> tuple[bool, int]:
    """Order the lines of a source: those of its tail, counted from its end, come behind those of its head."""
    return line < 0, line


def _uncited(fallbacks: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return the findings of fallback rules about lines that no other finding explains."""
    explained = {
        (line.source, line.line)
        for finding in others
        if finding.explains and finding.category is not Category.INCOMPLETE_EVIDENCE
        for line in finding.evidence
        if line.what not in (WAITING, RETURNED)
    }
    return [
        finding
        for finding in fallbacks
        if not explained & {(line.source, line.line) for line in finding.about} or not finding.about
    ]


def _unexplained(left: list[Finding], others: list[Finding]) -> list[Finding]:
    """Return these findings of fallback rules, as what other findings state leaves them.

    Beside a cause that another rule states, what no rule explains may follow from it: then it is context, or left out
    where its category is that of the cause.
    """
    strong = [
        finding
        for finding in (*others, *left)
        if finding.role is Role.CAUSE and finding.severity is Severity.ERROR and finding.certainty != "possible"
    ]
    known = [finding for finding in strong if finding not in left]
    topics = {
        finding.category for finding in others if finding.role is Role.CAUSE and finding.severity is not Severity.INFO
    }
    left = [
        finding
        for finding in left
        if finding.category not in topics and not (strong and finding.role is Role.CONSEQUENCE)
    ]
    for finding in left if known else []:
        severity = Severity.WARNING if finding.severity is Severity.ERROR else Severity.INFO
        finding.role, finding.certainty, finding.severity = Role.CONTEXT, "possible", severity
    return left


def _order(finding: Finding) -> tuple[int, int, int, str]:
    return (
        list(Role).index(finding.role),
        list(Severity).index(finding.severity or Severity.INFO),
        ["certain", "likely", "possible"].index(finding.certainty),
        finding.rule,
    )
