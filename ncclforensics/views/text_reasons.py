"""What the reason of a verdict tells beyond its title and its cause."""

from __future__ import annotations

from itertools import takewhile

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.rules.finding import Finding, Role, places_of

CLAUSE_END = "; "


def says_the_same(verdict: Finding, cause: Finding | None) -> bool:
    """Whether the reason of a verdict is its cause, or is told by it, as a line of both shows."""
    if cause is not None and verdict.role is Role.CONSEQUENCE:
        return True
    lines = [places_of(finding.evidence) for finding in (verdict, cause) if finding]
    return cause is not None and not lines[0].isdisjoint(lines[-1])


def remarks(answer: Answer) -> str:
    """Return what else is known beside what happened."""
    return CLAUSE_END.join(answer.remarks)


def beyond_title(verdict: Finding) -> str:
    """Return the reason of a verdict without the clauses at its beginning that stand in the title."""
    clauses = verdict.detail.split(CLAUSE_END)
    repeated = takewhile(lambda clause: _letters(clause) in _letters(verdict.title), clauses)
    return CLAUSE_END.join(clauses[len(list(repeated)) :])


def _letters(text: str) -> str:
    """Return the letters and digits of a text, to compare what two texts say."""
    return "".join(letter for letter in text.casefold() if letter.isalnum())
