"""The chain of one incident: what began it, what followed, and the input that shows each link.

A chain is worth showing where inputs of several kinds, such as stacks and a watchdog's lines, speak of one job: then it
says what each of them adds. The findings have their roles already; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.hang.rank_stacks import stacks_in
from ncclforensics.analyses.verdict.answer import LAST_WORDS, Answer
from ncclforensics.analyses.verdict.sources.stacks import describe_stacks
from ncclforensics.analyses.verdict.vocabulary import Basis
from ncclforensics.data.names import NO_KIND
from ncclforensics.report.build import Report
from ncclforensics.report.condensed_lines import condensed, cut
from ncclforensics.rules.finding import Finding, Line, Role

_OF_CAUSE = ("culprit", "minority")  # labels of lines that show what the culprits did
_OF_OTHERS = ("waiting", "majority")
MOST_QUOTES = 2
LONGEST_QUOTE = 160  # characters


class Link(NamedTuple):
    """One link of a chain: what happened, whether it began the incident or followed, and the line that shows it."""

    text: str
    role: Role
    kind: str  # of the input, as in `inputs[].kind`
    line: Line


def chain(report: Report, answer: Answer) -> list[Link]:
    """Return the links of a job's verdict in causal order; none where one kind of input says everything."""
    verdict = report.finding_of(answer)
    if verdict is None or not verdict.evidence or answer.verdict in ("undecidable", "no-hang"):
        return []
    others = [finding for finding in report.findings if finding is not verdict and finding.evidence]
    causes = report.causes_of(answer)
    conditions = [cause for cause in causes if cause.is_condition] or causes  # errors of NCCL follow from these
    links = [
        *(
            _link(report, cause.title, Role.CAUSE if cause in conditions else Role.CONSEQUENCE, cause.finding)
            for cause in causes
        ),
        *_of_verdict(report, answer, verdict),
        *(
            _link(report, finding.title, finding.role, finding)
            for finding in others
            if finding.role is Role.CONSEQUENCE and report.is_of_job(finding, answer.job)
        ),
    ]
    by_place: dict[tuple[Role, int, int], Link] = {}
    for link in links:
        by_place.setdefault((link.role, link.line.source, link.line.line), link)
    links = list(by_place.values())
    if len({link.kind for link in links}) < 2:
        return []
    report.cite(link.line for link in links)
    return links


def _of_verdict(report: Report, answer: Answer, verdict: Finding) -> Iterator[Link]:
    """Yield where culprits and victims stand by their stacks, and what other lines show of the culprits."""
    stacks = report.of_job("rank_stack", answer.job)
    is_culprit = stacks["rank_id"].is_in(answer.culprits)
    of_culprits, others = stacks.filter(is_culprit), stacks.filter(~is_culprit)
    if stacks.is_empty() and len(report.verdicts) == 1:  # which process is which rank is not known
        stacks = report.run["unranked_stack"]
        of_culprits, others = stacks.filter(~pl.col("is_waiting")), stacks.filter("is_waiting")
    in_stacks = {(place["source"], place["line"]) for place in stacks.to_dicts()}
    in_logs = [line for line in verdict.evidence if (line.source, line.line) not in in_stacks]
    of_cause = [line for line in in_logs if line.what in _OF_CAUSE and answer.basis != Basis.STACKS]
    if of_cause:
        yield Link(verdict.title, Role.CAUSE, _kind(report, of_cause[0]), of_cause[0])
    for role, rows in ((Role.CAUSE, of_culprits), (Role.CONSEQUENCE, others)):
        for text, place in describe_stacks(stacks_in(rows), report.number_of_rank):
            yield Link(text, role, "stacks", Line(place.source, place.line))
    waiting = [line for line in in_logs if line.what in _OF_OTHERS]
    if waiting and answer.operation.name:
        yield Link(f"others are in {answer.operation.text}", Role.CONSEQUENCE, _kind(report, waiting[0]), waiting[0])
    report.cite(in_logs)
    besides = [line for line in in_logs if line.what not in (*_OF_CAUSE, *_OF_OTHERS, LAST_WORDS)]
    # The first line of a document, such as a dump, says nothing by itself.
    for line in [line for line in besides if not report.run.inputs[line.source].is_document][:MOST_QUOTES]:
        text = condensed(report.cited(line.source, line.line)["text"], LONGEST_QUOTE // 2)
        yield Link(cut(text, LONGEST_QUOTE), Role.CONSEQUENCE, _kind(report, line), line)


def _link(report: Report, text: str, role: Role, finding: Finding) -> Link:
    return Link(text, role, _kind(report, finding.evidence[0]), finding.evidence[0])


def _kind(report: Report, line: Line) -> str:
    return report.run.kinds.get(line.source, NO_KIND)
