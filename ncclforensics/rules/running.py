"""Run rules on the frames of a run, and keep the findings that others leave."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.errors import BrokenFrameError, Defect, ForensicsError, is_own, own_place
from ncclforensics.frames.protocol import Frames, call
from ncclforensics.parsing.concurrency import DEFECTS
from ncclforensics.rules.finding import Category, Finding, Known, Role, Severity, checked, places_of
from ncclforensics.rules.registry import RETURNED, WAITING, Rule, all_rules

BESIDE = 10  # lines
MOST_FINDINGS = 256  # of one rule: more are not read, and each costs as much as parsing a thousand lines


def run_rules(run: Frames, rules: Iterable[Rule] | None = None) -> list[Finding]:
    """Run these rules (default: all) and return their findings: by role, severity and certainty.

    A rule that raises an exception is added to the defects of the run and finds nothing. Raises ForensicsError if a
    frame cannot be read.
    """
    chosen = all_rules() if rules is None else list(rules)
    of_program, of_user = _known(run)
    has_ended_well = bool((run["verdict"]["verdict"] == Kind.NO_HANG).any())

    def findings_of(rule: Rule) -> list[Finding]:
        return [] if has_ended_well and rule.of_failures else _findings(run, rule, of_program, of_user)

    usual = [rule for rule in chosen if not rule.last]
    findings = [finding for rule in usual if not rule.fallback for finding in findings_of(rule)]
    fallbacks = [finding for rule in usual if rule.fallback for finding in findings_of(rule)]
    if fallbacks := _uncited(fallbacks, findings):
        unasked = [rule for rule in all_rules() if rule not in chosen and rule.of and not rule.fallback]
        of_unasked = [finding for rule in unasked for finding in findings_of(rule)]
        others = findings + of_unasked
        left = _uncited(fallbacks, others)
        if all(finding.severity is Severity.INFO for finding in findings):
            findings += _answering([finding for finding in fallbacks if finding not in left], of_unasked)
        findings += _unexplained(left, others)
    strong = [finding for finding in findings if finding.severity is not Severity.INFO]
    unexplained = {rule.name for rule in chosen if rule.fallback}
    if all(finding.role is Role.CONSEQUENCE or finding.rule in unexplained for finding in strong):
        last = [finding for rule in chosen if rule.last for finding in findings_of(rule)]
        findings += _before(_far_from(last, findings), strong)
    last_rules = {rule.name for rule in chosen if rule.last}
    return sorted(findings, key=lambda finding: _order(finding, last_rules, unexplained))


def _findings(run: Frames, rule: Rule, of_program: Known, of_user: Known) -> list[Finding]:
    """Return the findings of one rule, with what the rule left out."""
    yielded: list[Finding] = []
    try:
        if (found := call(run, rule)) is None:
            return []
        findings, known = iter(found), of_user if is_own(rule.module) else of_program
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
        finding.role = rule.role if finding.role is Role.CAUSE else finding.role
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
    explained = places_of(
        line
        for finding in others
        if finding.explains and finding.category is not Category.INCOMPLETE_EVIDENCE
        for line in finding.evidence
        if line.what not in (WAITING, RETURNED)
    )
    return [finding for finding in fallbacks if not explained & places_of(finding.about) or not finding.about]


def _answering(fallbacks: list[Finding], of_unasked: list[Finding]) -> list[Finding]:
    """Return the findings of rules that were not asked, on lines of which no other finding tells."""
    asked_about = places_of(line for finding in fallbacks for line in finding.about)
    return [
        finding
        for finding in of_unasked
        if finding.severity is not Severity.INFO and places_of(finding.evidence) & asked_about
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


def _order(
    finding: Finding, last_rules: set[str], fallbacks: set[str]
) -> tuple[int, int, bool, int, bool, tuple[int, int], str]:
    first = min(((line.source, line.line) for line in finding.evidence), default=(0, 0))
    return (
        list(Role).index(finding.role),
        list(Severity).index(finding.severity or Severity.INFO),
        finding.role is Role.CONSEQUENCE and finding.rule in fallbacks,  # others say from what it follows
        ["certain", "likely", "possible"].index(finding.certainty),
        finding.rule in last_rules,  # it knows no more than words
        first if finding.about or finding.rule in fallbacks else (0, 0),  # a cause precedes what follows from it
        finding.rule,
    )
