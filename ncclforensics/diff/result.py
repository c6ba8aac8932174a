"""Compare the results of two runs: their verdicts, and the findings that only one of them has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import ranks_text
from ncclforensics.diff import Difference, Kind, NotCompared, Side
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.build import Report
from ncclforensics.report.questions import QUESTIONS
from ncclforensics.rules.finding import Category, Finding, Role, Severity, places_of

FINDINGS = "findings"
NOTHING = "no such finding"
SHOWN = 2  # lines of evidence
# Categories of symptoms, not of explanations.
_SYMPTOMS = {Category.BENCHMARK_SLOW, Category.BENCHMARK_WRONG, Category.HANG, Category.TIMEOUT, Category.STRAGGLER}
_UNKNOWN = "undecidable"


def verdict_differences(good: Report, bad: Report) -> Iterator[Difference | NotCompared]:
    """Yield the difference between the worst verdicts of the runs; NotCompared if only one run has a verdict."""
    good_row, bad_row = _worst(good), _worst(bad)
    if good_row is None or bad_row is None:
        absent = "good" if good_row is None else "bad"
        if (present := good_row or bad_row) is not None:
            needs = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL on every rank"
            yield NotCompared("verdict", absent, needs, [present.verdict])
    elif good_row.verdict != bad_row.verdict:
        sides = [_verdict_side(report, row) for report, row in ((good, good_row), (bad, bad_row))]
        means = "One run hangs or failed; the other differences may be causes or consequences."
        yield Difference("verdict", "verdict", Kind.SYMPTOM, sides[0], sides[1], "job", means, bad_row.certainty)
    elif (good_ranks := _culprits(good, good_row)) != (bad_ranks := _culprits(bad, bad_row)):
        sides = [
            Side([(ranks, 1)], _verdict_side(report, row).evidence)
            for report, row, ranks in ((good, good_row, good_ranks), (bad, bad_row, bad_ranks))
        ]
        means = f"Both runs end with {good_row.verdict}, and at other ranks: what these differ in may explain it."
        yield Difference("verdict", "culprits", Kind.SYMPTOM, sides[0], sides[1], "job", means, bad_row.certainty)


def _culprits(report: Report, answer: Answer) -> str:
    return ranks_text(report.numbers(answer.culprits)) or "no rank"


def _worst(report: Report) -> Answer | None:
    return next((answer for answer in report.verdicts if answer.verdict != _UNKNOWN), None)


def is_decided(report: Report) -> bool:
    """Whether there is a verdict on the run."""
    return _worst(report) is not None


def _verdict_side(report: Report, answer: Answer) -> Side:
    finding = next((finding for finding in report.findings if finding.job == answer.job), None)
    return Side([(answer.verdict, 1)], finding.evidence[:SHOWN] if finding else [])


def finding_differences(good: Report, bad: Report) -> Iterator[Difference]:
    """Yield a difference for each rule whose finding only one run has, or has with another severity."""
    good_findings, bad_findings = _by_rule(good), _by_rule(bad)
    for rule in dict.fromkeys([*bad_findings, *good_findings]):
        in_good, in_bad = good_findings.get(rule), bad_findings.get(rule)
        if in_good and in_bad and in_good.severity == in_bad.severity:
            continue
        finding = in_bad or in_good
        assert finding is not None
        if finding.category is Category.INCOMPLETE_EVIDENCE or finding.job is not None:
            continue  # missing logs and verdicts are compared separately
        runs = (bad.run, good.run) if in_bad else (good.run, bad.run)
        yield _finding_difference(finding, in_good, in_bad, *runs)


def _by_rule(report: Report) -> dict[str, Finding]:
    """Return the first finding of each rule, which is its worst."""
    return {finding.rule: finding for finding in reversed(report.findings)}


def _finding_difference(
    finding: Finding, in_good: Finding | None, in_bad: Finding | None, own: Frames, other: Frames
) -> Difference:
    """Make the difference for a finding of the run `own`; `other` is the run that lacks it or has it otherwise."""
    severities = [side.severity for side in (in_good, in_bad) if side and side.severity]
    worst = min(severities, key=list(Severity).index)
    is_shown = (in_good is not None and in_bad is not None) or _could_show(other, own, finding)
    means = finding.detail or finding.title
    if not is_shown:
        means += "; the other run did not log the lines that show it"
    is_symptom = finding.category in _SYMPTOMS or finding.role is Role.CONSEQUENCE
    is_note = worst is Severity.INFO or finding.role is Role.CONTEXT
    return Difference(
        FINDINGS,
        finding.rule,
        Kind.CONTEXT if is_note else Kind.SYMPTOM if is_symptom else Kind.DIFFERENCE,
        _finding_side([in_good]),
        _finding_side([in_bad]),
        "run",
        means,
        finding.certainty if is_shown else "possible",
    )


def _finding_side(findings: Iterable[Finding | None]) -> Side:
    present = [finding for finding in findings if finding is not None]
    if not present:
        return Side([(NOTHING, 0)], [])
    evidence = [line for finding in present for line in finding.evidence[:SHOWN]]
    return Side([(finding.title, 1) for finding in present], evidence)


def _could_show(other: Frames, own: Frames, finding: Finding) -> bool:
    """Whether the other run has lines of the same kinds as the evidence of this finding."""
    places = places_of(finding.evidence)
    questions = [
        question
        for question in QUESTIONS
        if any(_holds(own, frame, places) for frame in (*question.frames, *question.related))
    ]
    return all(any(other[frame].height for frame in question.frames) for question in questions)


def _holds(run: Frames, frame: str, places: set[tuple[int, int]]) -> bool:
    rows = run[frame]
    if rows.is_empty() or "line" not in rows.columns:
        return False
    lines = rows.filter(rows["line"].is_in([line for _, line in places]))
    return any(place in places for place in lines.select("source", "line").iter_rows())
