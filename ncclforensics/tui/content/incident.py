"""The verdict of each job, and the findings as a tree: what caused it, what followed, what else is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.data.names import known, operation_text, printable, ranks_text, sentence
from ncclforensics.data.variables import COLLECT_CALLS, NOTHING_SAID
from ncclforensics.report.build import Report, Row
from ncclforensics.rules.finding import Finding, Role
from ncclforensics.tui.content.evidence import Cited, Citer

MOST_CULPRITS = 8  # a line for each; the grid of ranks shows them all


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Node:
    """A verdict, a finding, or a group of findings."""

    title: str
    mark: str  # ERROR, WARNING, NOTE, the verdict; empty for a group
    certainty: str = ""
    sections: list[Section] = field(default_factory=list)
    evidence: list[Cited] = field(default_factory=list)
    below: list[Node] = field(default_factory=list)
    severity: str = ""  # error, warning, info; empty where nothing is wrong
    finding: Finding | None = None
    rank_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Incident:
    """What the first screen shows."""

    nodes: list[Node]
    problems: list[str]


MARKS = {"error": "ERROR", "warning": "WARNING", "info": "NOTE"}
GROUPS = {Role.CONSEQUENCE: "what followed", Role.CONTEXT: "what else is known"}


def incident(report: Report, citer: Citer) -> Incident:
    """The verdicts, then the findings of each role."""
    verdicts = report.verdicts
    told = {id(report.finding_of(row)) for row in verdicts}
    pages = {one.name: one for one in report.asked}

    def node(finding: Finding) -> Node:
        rule = pages.get(finding.rule)
        page = [("Means", rule.section("Means")), ("Not when", rule.section("Not when"))] if rule else []
        return Node(
            printable(finding.title), MARKS[str(finding.severity)], finding.certainty,
            _sections([("", finding.detail), *page, ("Do", finding.remedy)], f"{finding.role} · rule {finding.rule}"),
            [citer.cite(line.source, line.line, line.what) for line in finding.evidence],
            severity=str(finding.severity), finding=finding,
        )  # fmt: skip

    others = [finding for finding in report.findings if id(finding) not in told]
    by_role = {role: [node(one) for one in others if one.role is role] for role in Role}
    followed, context = by_role[Role.CONSEQUENCE], by_role[Role.CONTEXT]
    nodes = [_verdict(report, citer, row, node, followed if not place else []) for place, row in enumerate(verdicts)]
    if not verdicts:
        sections = [*_sections([("", NOTHING_SAID)]), Section("Collect", list(COLLECT_CALLS))]
        nodes.append(Node("these logs do not tell whether the job hangs", "UNDECIDABLE", "", sections, below=followed))
    nodes += by_role[Role.CAUSE]
    if context:
        nodes.append(Node(f"{GROUPS[Role.CONTEXT]} ({len(context)})", "", below=context))
    problems = [
        printable(f"{reading.source.path} {problem}")
        for reading in report.run.readings
        for problem in report.problems(reading.number)
    ]
    return Incident(nodes, problems)


def _verdict(report: Report, citer: Citer, row: Row, node: Callable[[Finding], Node], followed: list[Node]) -> Node:
    finding = report.finding_of(row)
    base = node(finding) if finding else None
    sections = base.sections if base else _sections([("", row["reason"])])
    culprits = _culprits(report, citer, row)
    steps = [printable(step) for step in report.collect_next(row)]
    front = [Section("Culprits", culprits)] if culprits else []
    behind = [Section("Run now" if row["culprits"] else "Collect", steps)] if steps else []
    below = [Node(GROUPS[Role.CONSEQUENCE], "", below=followed)] if followed else []
    return Node(
        base.title if base else printable(row["reason"]),
        row["verdict"].upper(),
        row["certainty"],
        [*front, *sections, *behind],
        base.evidence if base else [],
        below,
        "" if row["verdict"] == "no-hang" else base.severity if base else "info",
        finding,
        list(row["culprits"]),
    )


def _culprits(report: Report, citer: Citer, row: Row) -> list[str]:
    """A line for each culprit: where it runs, and its last call."""
    last = {call["rank_id"]: call for call in report.last_calls(row["job"])}
    ranks = report.run["rank"].filter(pl.col("rank_id").is_in(row["culprits"])).sort("rank").to_dicts()
    told = []
    for rank in ranks[:MOST_CULPRITS]:
        call = last.get(rank["rank_id"])
        where = f"rank {known(rank['rank'])} on {known(rank['host'])}, GPU {known(rank['cudadev'])}"
        did = f"last call {operation_text(call)} of {call['key']}" if call else "no call seen"
        at = f", {citer.cite(call['source'], call['line']).place}" if call else ""
        told.append(printable(f"{where}, pid {known(rank['pid'])}: {did}{at}"))
    if len(ranks) > MOST_CULPRITS:
        told.append(f"and {len(ranks) - MOST_CULPRITS} more")
    return told + ([f"no log: {ranks_text(row['missing'])}"] if row["missing"] else [])


def _sections(parts: list[tuple[str, str]], last: str = "") -> list[Section]:
    told = [Section(title, [printable(sentence(text))]) for title, text in parts if text]
    return [*told, Section("", [last])] if last else told
