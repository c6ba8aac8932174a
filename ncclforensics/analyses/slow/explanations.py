"""Explanations of a slow job, and which of them is the answer.

Each source of evidence (traces, step lines, rates, tables) is a module with a function that takes the frames it needs
and returns explanations: a verdict, what is claimed, whom it names, what it costs, the doubts it leaves, and the lines
that show it. A source without inputs returns nothing, and one whose inputs do not suffice returns one of the verdict
`undecidable`, with what to collect.

To add a source: write such a function, and hand its result to `slow_answer` (`verdict.py`) as one more item of its
list, with the frames it reads as parameters there. Doubts are rows of the table in `analyses/verdict/doubts.py`; the
certainty follows from them by the one function that `hang` uses, too. No source lowers a certainty, ranks itself, or
reads what another one says. A source asks for observations of other kinds by naming the kind, so that none is asked for
that is there; what it lacks of its own kind, it asks for without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

from ncclforensics.analyses.slow.answer import Place, SlowAnswer, SlowKind, SlowRival
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import certainty_of
from ncclforensics.analyses.verdict.vocabulary import Certainty

HOURS_OF_DAY = 24
MOST_EVIDENCE = 8  # places


class Observation(Enum):
    """A kind of input that shows the speed of a job."""

    TRACES = auto()
    RECORDER = auto()  # dumps of the Flight Recorder
    INSPECTOR = auto()
    STEP_LINES = auto()
    COUNTERS = auto()  # of links
    BENCHMARK = auto()


class Request(NamedTuple):
    """What to collect. `kind`: not asked for where such an input is there; None: asked for in any case."""

    text: str
    kind: Observation | None = None


@dataclass(frozen=True, slots=True)
class SlowExplanation:
    """What may make a job slow. Seconds of a step; shares of a step, from 0 to 1; None is unknown.

    `step_share`: what a step would gain without it; `uneven_share`: without all uneven arrival. `gpus`: of the job.
    """

    verdict: SlowKind
    claim: str  # one line that says it all
    doubts: tuple[Doubt, ...] = ()
    details: tuple[str, ...] = ()  # further sentences
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    group: str | None = None
    link: str | None = None
    since_step: int | None = None
    since: str | None = None  # ISO 8601
    step_seconds: float | None = None
    step_share: float | None = None
    uneven_share: float | None = None
    gpus: int | None = None
    cause: str | None = None
    missing: tuple[int, ...] = ()  # rank numbers of which nothing is there
    collect: tuple[Request, ...] = ()
    evidence: tuple[tuple[int, int], ...] = ()  # source and line
    confirmations: int = 0  # sources of another kind that show the same

    @property
    def certainty(self) -> Certainty:
        """How sure it is."""
        return certainty_of(self.doubts, self.confirmations)

    @property
    def subject(self) -> tuple[object, ...]:
        """Whom or what it names."""
        return (frozenset(self.ranks), self.group, self.link)

    @property
    def names(self) -> bool:
        """Whether it names anything."""
        return any(self.subject)


def answer_of(
    explanations: Iterable[SlowExplanation], collect: Iterable[Request], present: Collection[Observation]
) -> SlowAnswer:
    """Return the explanation that is told first, with what else was considered.

    Verdicts that name ranks, or a link, say more than those that describe a change, and these more than what every job
    shows; that ranks are missing, one of which may be named, goes before these. One that names nothing adds to another
    of its verdict that does. `collect`: what to collect where nothing was explained; `present`: kinds of inputs here.
    """
    found = sorted(explanations, key=_order)
    if not found:
        lines = (
            "too few step lines to show a change" if Observation.STEP_LINES in present else "no step line with a time"
        )
        claim = f"no trace, no tables of profilers of all ranks, and {lines} were recognised in these files"
        found = [SlowExplanation(SlowKind.UNDECIDABLE, claim, (Doubt.OPEN,), collect=tuple(collect))]
    best = found[0]
    alike = [other for other in found[1:] if other.verdict is best.verdict]
    same = [other for other in alike if other.subject == best.subject or not other.names]
    confirming = sum(other.subject == best.subject for other in same)
    best = replace(best, confirmations=best.confirmations + confirming)
    for other in found[1:]:
        if other in same or other.verdict is SlowKind.CHANGE:
            best = replace(
                best,
                since_step=other.since_step if best.since_step is None else best.since_step,
                since=other.since if best.since is None else best.since,
            )
    rivals = tuple(
        SlowRival(str(other.verdict), other.claim, str(other.certainty), tuple(doubt.assumes for doubt in other.doubts))
        for other in found[1:]
        if other not in same
    )
    per_day = best.step_share * best.gpus * HOURS_OF_DAY if best.step_share is not None and best.gpus else None
    return SlowAnswer(
        verdict=best.verdict,
        certainty=str(best.certainty),
        claim=best.claim,
        details=best.details,
        ranks=tuple(sorted(best.ranks)),
        hosts=best.hosts,
        group=best.group,
        link=best.link,
        since_step=best.since_step,
        since=best.since,
        step_seconds=best.step_seconds,
        step_share=best.step_share,
        uneven_share=best.uneven_share,
        gpu_hours_per_day=per_day,
        cause=best.cause,
        missing=tuple(sorted({rank for suggested in found for rank in suggested.missing})),
        collect=tuple(
            dict.fromkeys(
                request.text
                for suggested in (best, *same)
                for request in suggested.collect
                if request.kind not in present
            )
        ),
        assumes=tuple(doubt.assumes for doubt in best.doubts),
        evidence=tuple(Place(*place) for place in best.evidence[:MOST_EVIDENCE]),
        considered=rivals,
    )


def _order(explanation: SlowExplanation) -> tuple[bool, int, bool, int, float]:
    certainties = list(Certainty)
    return (
        not (explanation.names or explanation.missing),
        list(SlowKind).index(explanation.verdict),
        not explanation.names,
        certainties.index(explanation.certainty),
        -(explanation.step_share or 0.0),
    )
