"""How two runs came out: the verdict on each, and the findings that only one of them has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ncclforensics.diff import Difference, Kind, NotCompared, Side
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.build import Report, Row
from ncclforensics.report.questions import QUESTIONS
from ncclforensics.rules.finding import Category, Finding, Role, Severity

FINDINGS = "findings"
NOTHING = "no such finding"
SHOWN = 2  # lines of evidence
# What a run suffers, not what explains it.
_OUTCOMES = {Category.BENCHMARK_SLOW, Category.BENCHMARK_WRONG, Category.HANG, Category.TIMEOUT, Category.STRAGGLER}
_UNKNOWN = "undecidable"


def verdict_differences(good: Report, bad: Report) -> Iterator[Difference | NotCompared]:
    """The worst verdict of each run, where both have one."""
    ours, theirs = _worst(good), _worst(bad)
    if ours is None or theirs is None:
        absent = "good" if ours is None else "bad"
        if (told := ours or theirs) is not None:
            needs = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL on every rank"
            yield NotCompared("verdict", absent, needs, [told["verdict"]])
    elif ours["verdict"] != theirs["verdict"]:
        sides = [_verdict_side(report, row) for report, row in ((good, ours), (bad, theirs))]
        means = "One of both stands still or broke down; what else differs may be why, or may have come with it."
        yield Difference("verdict", "verdict", Kind.SYMPTOM, sides[0], sides[1], "job", means, theirs["certainty"])


def _worst(report: Report) -> Row | None:
    return next((row for row in report.verdicts if row["verdict"] != _UNKNOWN), None)


def is_decided(report: Report) -> bool:
    """Whether there is a verdict on the run."""
    return _worst(report) is not None


def _verdict_side(report: Report, row: Row) -> Side:
    told = next((finding for finding in report.findings if finding.job == row["job"]), None)
    return Side([(row["verdict"], 1)], told.evidence[:SHOWN] if told else [])


def finding_differences(good: Report, bad: Report) -> Iterator[Difference]:
    """Findings of a rule that only one of both runs has, or has as something worse."""
    ours, theirs = _by_rule(good), _by_rule(bad)
    for rule in dict.fromkeys([*theirs, *ours]):
        mine, yours = ours.get(rule), theirs.get(rule)
        if mine and yours and mine.severity == yours.severity:
            continue
        told = yours or mine
        assert told is not None
        if told.category is Category.INCOMPLETE_EVIDENCE or told.job is not None:
            continue  # what was logged, and the verdict, are compared for themselves
        yield _finding_difference(told, mine, yours, good.run if yours else bad.run, bad.run if yours else good.run)


def _by_rule(report: Report) -> dict[str, Finding]:
    """The first, and so the worst, of each rule."""
    return {finding.rule: finding for finding in reversed(report.findings)}


def _finding_difference(
    told: Finding, mine: Finding | None, yours: Finding | None, other: Frames, own: Frames
) -> Difference:
    worst = min((each.severity for each in (mine, yours) if each and each.severity), key=list(Severity).index)
    is_shown = (mine is not None and yours is not None) or _could_show(other, own, told)
    means = told.detail or told.title
    if not is_shown:
        means += "; the other run's files could not have shown it"
    is_symptom = told.category in _OUTCOMES or told.role is Role.CONSEQUENCE
    is_note = worst is Severity.INFO or told.role is Role.CONTEXT
    return Difference(
        FINDINGS,
        told.rule,
        Kind.CONTEXT if is_note else Kind.SYMPTOM if is_symptom else Kind.DIFFERENCE,
        _finding_side([mine]),
        _finding_side([yours]),
        "run",
        means,
        told.certainty if is_shown else "possible",
    )


def _finding_side(findings: Iterable[Finding | None]) -> Side:
    told = [each for each in findings if each is not None]
    if not told:
        return Side([(NOTHING, 0)], [])
    return Side([(each.title, 1) for each in told], [line for each in told for line in each.evidence[:SHOWN]])


def _could_show(other: Frames, own: Frames, told: Finding) -> bool:
    """Whether the other run logs what the lines of this finding are among."""
    places = {(line.source, line.line) for line in told.evidence}
    asked = [
        question
        for question in QUESTIONS
        if any(_holds(own, frame, places) for frame in (*question.frames, *question.related))
    ]
    return all(any(other[frame].height for frame in question.frames) for question in asked)


def _holds(run: Frames, frame: str, places: set[tuple[int, int]]) -> bool:
    rows = run[frame]
    if rows.is_empty() or "line" not in rows.columns:
        return False
    lines = rows.filter(rows["line"].is_in([line for _, line in places]))
    return any(place in places for place in lines.select("source", "line").iter_rows())
