"""The content of the incident screen: verdicts and findings as a tree, by role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import polars as pl

from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import known, printable, ranks_text, sentence
from ncclforensics.report.build import Report
from ncclforensics.report.chain import chain
from ncclforensics.report.next_steps import Command
from ncclforensics.report.slow import slow_answer
from ncclforensics.report.without_job import reason_without_job, steps_without_job, verdict_without_job
from ncclforensics.rules.finding import Finding, Role, Severity
from ncclforensics.tui.content.evidence import CitedLine, Citer
from ncclforensics.views.text_benchmarks import decisive_runs, reached
from ncclforensics.views.text_considered import considered, unexplained
from ncclforensics.views.text_slow import sentences

MOST_BENCHMARKS = 3
OPEN = "these logs do not show whether the job hangs"
ENDED = "nothing hangs"
MOST_CULPRITS = 8  # the ranks screen lists all of them


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its lines."""

    title: str
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Node:
    """A verdict, a finding, a command, or a group of these."""

    title: str
    label: str  # ERROR, WARNING, NOTE or the verdict; empty for a group
    certainty: str = ""
    sections: list[Section] = field(default_factory=list)
    evidence: list[CitedLine] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    severity: str = ""  # error, warning, info; empty if nothing is wrong
    finding: Finding | None = None
    rank_ids: list[int] = field(default_factory=list)
    is_command: bool = False  # the title is a command line


@dataclass(frozen=True, slots=True)
class Incident:
    """The tree of the incident screen, and the problems of the inputs."""

    nodes: list[Node]
    problems: list[str]


LABELS = {"error": "ERROR", "warning": "WARNING", "info": "NOTE"}
GROUPS = {Role.CONSEQUENCE: "consequences", Role.CONTEXT: "context"}


def change_of_verdict(before: Report, now: Report) -> str:
    """Say how the verdict changed when more was read, and why it is so now; empty if it is the same."""
    first, then = (_verdict_text(report) for report in (before, now))
    if first == then:
        return ""
    reason = next((now.finding_of(answer) for answer in now.verdicts), None)
    return printable(f"the verdict was {first}, and is {then}: {reason.detail if reason else 'by all lines'}")


def _verdict_text(report: Report) -> str:
    texts = [f"{answer.verdict} ({answer.certainty}), {report.title_of(answer)}" for answer in report.verdicts[:1]]
    return "".join(texts) or "that no line of NCCL was found"


def build_incident(report: Report, citer: Citer) -> Incident:
    """Build the tree: verdicts first, then causes, then context; consequences are below the first verdict."""
    verdicts = report.verdicts
    verdict_findings = {id(report.finding_of(row)) for row in verdicts}
    rules = {rule.name: rule for rule in report.rules}

    def node(finding: Finding) -> Node:
        rule = rules.get(finding.rule)
        texts = [("Means", rule.section("Means")), ("Not when", rule.section("Not when"))] if rule else []
        texts = [("", report.detail(finding)), *texts]
        return Node(
            printable(finding.title), LABELS[str(finding.severity)], finding.certainty,
            _sections([*texts, ("Do", finding.remedy)], f"{finding.role} · rule {finding.rule}"),
            [citer.cite(line.source, line.line, line.what) for line in finding.evidence],
            severity=str(finding.severity), finding=finding,
        )  # fmt: skip

    others = [finding for finding in report.findings if id(finding) not in verdict_findings]
    by_role = {
        role: [node(finding) for finding in others if finding.role is role and not finding.is_elsewhere]
        for role in Role
    }
    consequences, context = by_role[Role.CONSEQUENCE], by_role[Role.CONTEXT]
    nodes = [
        _verdict(report, citer, row, node, consequences if not index else []) for index, row in enumerate(verdicts)
    ]
    if not verdicts:
        verdict = verdict_without_job(report.run)
        steps = steps_without_job(report.run, report.findings)
        sections = _sections([("", reason_without_job(report.run, report.findings))])
        sections += [Section("What to do", steps)] if steps else []
        nodes.append(
            Node(OPEN if verdict == "undecidable" else ENDED, verdict.upper(), "", sections, children=consequences)
        )
    measured = [*_slow(report, citer), *_measured(report, citer)]
    is_decided = any(row.verdict != "undecidable" for row in verdicts)
    nodes = [*nodes, *measured] if is_decided else [*measured, *nodes]
    nodes += by_role[Role.CAUSE]
    if context:
        nodes.append(Node(f"{GROUPS[Role.CONTEXT]} ({len(context)})", "", children=context))
    if elsewhere := [node(finding) for finding in report.elsewhere]:
        nodes.append(Node(f"elsewhere: other hosts or times ({len(elsewhere)})", "", children=elsewhere))
    if report.run.settings.files or report.run.settings.rule_folders:
        nodes.append(_configuration(report))
    problems = [printable(str(defect)) for defect in report.defects_beside_inputs] + [
        printable(f"{reading.source.path} {problem}")
        for reading in report.run.inputs
        for problem in report.problems(reading.number)
    ]
    return Incident(nodes, problems)


def _verdict(
    report: Report, citer: Citer, answer: Answer, node: Callable[[Finding], Node], consequences: list[Node]
) -> Node:
    finding = report.finding_of(answer)
    base = node(finding) if finding else None
    sections = base.sections if base else _sections([("", answer.reason)])
    culprits = _culprits(report, citer, answer)
    steps = [printable(step) for step in report.other_steps(answer)]
    before = [Section("Culprits", culprits)] if culprits else []
    links = [
        printable(f"{sentence(link.text)} {citer.cite(link.line.source, link.line.line).location}")
        for link in chain(report, answer)
    ]
    before = [Section("What happened", links), *before] if links else before
    if cause := report.cause_of(answer):
        before = [Section(cause.label(answer), [printable(sentence(cause.text))]), *before]
    rivals = [printable(f"{sentence(text)} {at}".strip()) for text, at in considered(report, answer)]
    children = [
        Node(printable(f"run now on {where}"), "", children=[_command(command) for command in group])
        for where, group in groupby(report.run_now(answer), key=lambda command: command.where)
    ]
    after = [Section("Then" if children else "What to do", steps)] if steps else []
    failed = [printable(f"{sentence(text)} {at}".strip()) for text, at in unexplained(report, answer)]
    after += [Section("Also failed, not explained by this", failed)] if failed else []
    after += [Section("Also considered", rivals)] if rivals else []
    children += [Node(GROUPS[Role.CONSEQUENCE], "", children=consequences)] if consequences else []
    return Node(
        printable(report.title_of(answer)),
        answer.verdict.upper(),
        "" if answer.verdict == "undecidable" else answer.certainty,
        [*before, *sections, *after],
        base.evidence if base else [],
        children,
        "" if answer.verdict == "no-hang" else base.severity if base else "info",
        finding,
        list(answer.culprits),
    )


def _slow(report: Report, citer: Citer) -> list[Node]:
    """Return what makes the job slow, or that nothing does, where the files show steps."""
    answer = slow_answer(report)
    if answer is None or answer.verdict is SlowKind.UNDECIDABLE:
        return []
    named = {"": sentences(answer), "What to do": answer.collect}
    sections = [Section(title, [*map(printable, texts)]) for title, texts in named.items() if texts]
    return [
        Node(
            printable(answer.claim), answer.verdict.upper(), answer.certainty,
            [*sections, Section("", ["9 shows the steps"])], [citer.cite(*place) for place in answer.evidence],
            severity="warning" if answer.is_actionable else "",
        )
    ]  # fmt: skip


def _measured(report: Report, citer: Citer) -> list[Node]:
    """Return what benchmarks reached, unless a finding says that something is wrong."""
    if any(finding.severity is not Severity.INFO for finding in report.findings):
        return []
    rows = decisive_runs(report.run["benchmark_sweep"])[:MOST_BENCHMARKS]
    note = [Section("", ["6 shows all sizes"])]
    return [
        Node(printable(reached(row)), "MEASURED", "", note, [citer.cite(row["source"], row["line"])]) for row in rows
    ]


def _configuration(report: Report) -> Node:
    """Name the configuration files and the folders of rules that acted."""
    settings = report.run.settings
    named = {"Files": settings.files, "Own rules": settings.rule_folders}
    sections = [Section(title, [*map(printable, paths)]) for title, paths in named.items() if paths]
    return Node(printable(f"configuration {', '.join(settings.files or settings.rule_folders)}"), "", "", sections)


def _command(command: Command) -> Node:
    where = Section("", [f"Run it on {printable(command.where)}. y copies the command."])
    return Node(printable(command.line), "", sections=[where], is_command=True)


def _culprits(report: Report, citer: Citer, answer: Answer) -> list[str]:
    """Describe each culprit in a line: where it runs, and its last or differing call."""
    call_title, last = report.job(answer.job).calls_of_culprits
    ranks = report.run["rank"].filter(pl.col("rank_id").is_in(answer.culprits)).sort("rank").to_dicts()
    lines = []
    for rank in ranks[:MOST_CULPRITS]:
        call = last.get(rank["rank_id"])
        parts = ((" on ", rank["host"]), (", GPU ", rank["cudadev"]), (", pid ", rank["pid"]))
        where = f"rank {known(rank['rank'])}" + "".join(f"{text}{part}" for text, part in parts if part is not None)
        call_text = f"{call_title} {call.operation.text} on {report.groups.text(call.key)}" if call else "no call seen"
        location = f", {citer.cite(call.source, call.line).location}" if call else ""
        lines.append(printable(f"{where}: {call_text}{location}"))
    if len(ranks) > MOST_CULPRITS:
        lines.append(f"and {len(ranks) - MOST_CULPRITS} more")
    return lines + ([f"no log: {ranks_text(answer.missing)}"] if answer.missing else [])


def _sections(parts: list[tuple[str, str]], footer: str = "") -> list[Section]:
    sections = [Section(title, [printable(sentence(text))]) for title, text in parts if text]
    return [*sections, Section("", [footer])] if footer else sections
