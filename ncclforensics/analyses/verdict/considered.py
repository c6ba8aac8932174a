"""What else was considered beside an answer: rivals, with what they leave unexplained or would have to assume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.analyses.verdict.claims import Claim
from ncclforensics.analyses.verdict.doubts import Cost
from ncclforensics.analyses.verdict.explanation import EVIDENCE_LINE, Explanation, Row
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.analyses.verdict.wording import CANNOT, CLAIMS, FAULTS
from ncclforensics.data.names import ranks_text

CONSIDERED = {
    "fault": pl.String(),  # as the contract's `hang.verdict`; undecidable: another one, which nothing names
    "culprits": pl.List(pl.Int32()),  # rank ids
    "missing": pl.List(pl.Int32()),  # rank numbers of culprits without a log
    "cost": pl.String(),  # of what it assumes: ordinary, unusual; impossible: what contradicts it is no matter of doubt
    "assumes": pl.List(pl.String()),
    "against": pl.String(),  # what it does not explain
    "lines": pl.List(pl.Struct(EVIDENCE_LINE)),  # that contradict it
    "is_answer": pl.Boolean(),
}
IMPOSSIBLE = "impossible"
MOST_LINES = 2
OF_CULPRITS = ("culprit", "minority", "failure", "waiting")  # labels of lines that rivals do not explain
WITHOUT_FAULT = Claim.SUCCESS  # from here on claims show no failure
NOT_RIVALS = (Kind.UNDECIDABLE, Kind.NO_HANG)


@dataclass(frozen=True, slots=True)
class Considered:
    """One explanation that was considered."""

    fault: Kind
    culprits: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    cost: str = IMPOSSIBLE
    assumes: list[str] = field(default_factory=list)
    against: str = ""
    lines: list[Row] = field(default_factory=list)
    is_answer: bool = False

    def row(self) -> Row:
        """Return it as a row of CONSIDERED."""
        return {name: getattr(self, name) for name in CONSIDERED}


def considered(answer: Explanation, suggestions: Iterable[Explanation], numbers: list[int]) -> list[Row]:
    """Return the answer and its rivals, the cheapest first: rows of CONSIDERED.

    `suggestions`: all explanations that the sources suggested. `numbers`: rank numbers of the answer's culprits.
    """
    own = Considered(
        answer.verdict, answer.culprits, answer.missing, "", [], answer.claim, answer.evidence_lines[:MOST_LINES], True
    )
    rivals = [*_by_doubts(answer), *_by_suggestions(answer, suggestions), *_by_axioms(answer, numbers)]
    of_fault: dict[tuple[Kind, tuple[int, ...], str], Considered] = {}
    for rival in rivals:
        of_fault.setdefault((rival.fault, tuple(rival.culprits), "".join(rival.assumes)), rival)
    return [rival.row() for rival in (own, *of_fault.values())]


def _by_doubts(answer: Explanation) -> Iterator[Considered]:
    """Yield the worlds in which the evidence for the answer is false, the most frequent first."""
    if answer.verdict is Kind.UNDECIDABLE:
        for other in answer.between:
            yield Considered(other.verdict, other.culprits, cost=Cost.ORDINARY.name.lower(), assumes=[other.assumes])
        return
    for doubt in sorted(answer.doubts, key=lambda doubt: doubt.cost):
        rarity = Cost(min(doubt.cost + answer.confirmations, Cost.UNUSUAL))
        yield Considered(doubt.rival, cost=rarity.name.lower(), assumes=[doubt.assumes])


def _by_suggestions(answer: Explanation, suggestions: Iterable[Explanation]) -> Iterator[Considered]:
    """Yield what other claims suggest, on other ranks: it does not explain the claim that suggests the answer."""
    lines = [line for line in answer.evidence_lines if line["what"] in OF_CULPRITS][:MOST_LINES]
    for other in suggestions:
        is_rival = other.verdict not in NOT_RIVALS and other.suggested_by < WITHOUT_FAULT
        is_same = other.verdict == answer.verdict and not other.culprits
        if not is_rival or is_same or (other.culprits and set(other.culprits) <= set(answer.culprits)):
            continue
        if other.suggested_by > answer.suggested_by and answer.suggested_by in CLAIMS:
            against = f"leaves unexplained that {CLAIMS[answer.suggested_by]}"
            yield Considered(other.verdict, other.culprits, other.missing, against=against, lines=lines)


def _by_axioms(answer: Explanation, numbers: list[int]) -> Iterator[Considered]:
    """Yield the kinds of faults that cannot show what was seen."""
    ranks = ranks_text(numbers) or "a rank"
    lines = [line for line in answer.evidence_lines if line["what"] in OF_CULPRITS][:1]
    possible = {doubt.rival for doubt in answer.doubts}
    for fault in FAULTS:
        if fault in possible:
            continue
        if (text := CANNOT.get((fault, answer.verdict))) and answer.suggested_by < WITHOUT_FAULT and lines:
            yield Considered(fault, against=text.format(ranks=ranks), lines=lines)
