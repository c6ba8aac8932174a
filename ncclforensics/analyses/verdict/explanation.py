"""One explanation of what a job shows: a fault, the ranks at fault, its evidence, and the doubts that it leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypedDict, Unpack

from ncclforensics.analyses.verdict.answer import EvidenceLine, Operation
from ncclforensics.analyses.verdict.doubts import Cost, Doubt
from ncclforensics.analyses.verdict.vocabulary import Basis, Certainty, Claim, Detail, How, Kind, Source
from ncclforensics.frames.columns import Row

# A row or an object of a line of a rank, which is -1 if it is not known.
Placed = Row | tuple[Any, ...] | Operation | None
PLACE = ("rank_id", "source", "line")


def certainty_of(doubts: Iterable[Doubt], confirmations: int = 0) -> Certainty:
    """Return how sure an explanation is: as sure as the cheapest world is rare in which it is false.

    `confirmations`: sources of another kind that show the same, each of which such a world would have to doubt, too.

    >>> certainty_of([]), certainty_of([Doubt.RUNS_ON, Doubt.LINE_LOST]), certainty_of([Doubt.RUNS_ON], 1)
    (<Certainty.CERTAIN: 'certain'>, <Certainty.POSSIBLE: 'possible'>, <Certainty.CERTAIN: 'certain'>)
    """
    rarity = min((doubt.cost for doubt in doubts), default=None)
    if rarity is None or rarity + confirmations > Cost.UNUSUAL:
        return Certainty.CERTAIN
    return Certainty.LIKELY if rarity + confirmations == Cost.UNUSUAL else Certainty.POSSIBLE


class Fields(TypedDict, total=False):
    """Fields of an explanation that may be given where it is made."""

    suspects: list[int]
    key: str | None
    call: Operation | None
    how: How
    basis: Basis
    between: list[Alternative]


class FieldsAndAdvice(Fields, total=False):
    """The same, and what to collect."""

    collect: list[str]


class Alternative(NamedTuple):
    """One of the faults between which an answer is undecided."""

    verdict: Kind
    culprits: list[int]  # rank ids
    assumes: str  # what would have to be true


@dataclass(slots=True)
class Explanation:
    """A fault with its evidence. `culprits` and `victims` are rank ids; `call` is a row of a call."""

    verdict: Kind
    claim: str  # what happened, as the predicate of the culprits or as a sentence
    doubts: list[Doubt] = field(default_factory=list)
    culprits: list[int] = field(default_factory=list)
    victims: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # rank numbers of culprits without a log
    suspects: list[int] = field(default_factory=list)  # numbers of ranks without a log or an error: one may be it
    key: str | None = None
    call: Operation | None = None
    nth: int | None = None  # of that call, among the collectives of its communicator
    how: How = How.NOT_SAID
    basis: Basis = Basis.LINES
    detail: Detail = Detail.NOTHING
    fault: str = ""  # what failed in init, in words
    fields: list[str] = field(default_factory=list)
    collect: list[str] = field(default_factory=list)
    evidence_lines: list[EvidenceLine] = field(default_factory=list)
    rests_on_stall: bool = False  # it holds only if the job stood still, which nothing in the logs shows
    confirmations: int = 0  # sources of another kind that show the same
    remarks: list[str] = field(default_factory=list)  # what else is known, and what speaks against it
    suggested_by: Claim = Claim.QUIET  # the strongest claim that it explains
    source: Source | None = None  # that it rests on alone
    # Of an undecided answer: each fault that the evidence leaves, as far as its ranks are known.
    between: list[Alternative] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """What happened, with all remarks."""
        return "; ".join([self.claim, *self.remarks])

    @property
    def certainty(self) -> Certainty:
        """How sure it is."""
        return certainty_of(self.doubts, self.confirmations)

    def doubt(self, doubt: Doubt, clause: str = "") -> None:
        """Take a doubt into account, and say so in the reason."""
        if doubt not in self.doubts:
            self.doubts.append(doubt)
        if clause:
            self.remarks.append(clause)

    def add_evidence(self, **rows: Iterable[Placed]) -> Self:
        """Cite the lines of rows by what they show, each line once; rows without a line, and None, are skipped."""
        cited = {(line.rank_id, line.source, line.line) for line in self.evidence_lines}
        for what, row in ((what, row) for what, of_this in rows.items() for row in of_this if row):
            place: Any = map(row.get, PLACE) if isinstance(row, dict) else attrgetter(*PLACE)(row)
            rank_id, source, line = place
            rank_id = None if rank_id == -1 else rank_id
            if line is not None and (rank_id, source, line) not in cited:
                cited.add((rank_id, source, line))
                self.evidence_lines.append(EvidenceLine(what, rank_id, source, line))
        return self


def undecided(
    reason: str,
    collect: Iterable[str],
    of: Explanation | None = None,
    *,
    unless: str = "",
    context: Iterable[Placed] = (),
    **more: Unpack[Fields],
) -> Explanation:
    """Answer that the evidence does not show which fault holds.

    `of`: the explanation that it does not prove, `unless` something is true. Its culprits may wait like the others, and
    its lines are context, as those of the rows `context` are.
    """
    answer = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=[*collect], **more)
    if of is not None:
        answer.between += [Alternative(of.verdict, of.culprits, unless)] * bool(unless)
        answer.victims = sorted({*of.victims, *of.culprits})
        answer.evidence_lines = [
            line._replace(what="context") if line.what == "culprit" else line for line in of.evidence_lines
        ]
    return answer.add_evidence(context=context)
