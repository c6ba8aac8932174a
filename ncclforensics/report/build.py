"""The report on a run: the inputs, the findings of the rules, and the verdict of each job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ncclforensics.analyses.verdict.answer import Answer, answers
from ncclforensics.analyses.verdict.vocabulary import Sign
from ncclforensics.data.names import VERDICTS, ranks_text
from ncclforensics.data.variables import COLLECT_CALLS
from ncclforensics.errors import Defect
from ncclforensics.frames.columns import Row
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.time_range import TimeRange
from ncclforensics.grammar.values import parse_value
from ncclforensics.report.causes import Cause, Relations
from ncclforensics.report.job_parts import JobParts
from ncclforensics.report.next_steps import Command, commands, other_steps, split_step
from ncclforensics.report.run_view import RunView
from ncclforensics.report.selection import Selection
from ncclforensics.report.site_names import add_site_names
from ncclforensics.rules.finding import QUOTED_WARNING, Finding, Role, Severity, places_of
from ncclforensics.rules.registry import Rule, select_rules
from ncclforensics.rules.running import run_rules
from ncclforensics.rules.shared.verdict_finding import WITHOUT_SUBJECT

if TYPE_CHECKING:
    from ncclforensics.report.earlier_look import Comparison, EarlierLook

TAKEN = "that the job stands still is assumed"


@dataclass
class Report(RunView):
    """Everything that views show."""

    findings: list[Finding]
    rules: list[Rule]  # the rules that were run
    looks: Mapping[int, Comparison] = field(default_factory=dict)  # job -> what an earlier look shows as well
    not_selected: list[Finding] = field(default_factory=list)  # count for the exit code, and are not shown
    hashes: dict[int, str] = field(default_factory=dict)  # source -> SHA-256, after `hash_inputs`
    time_range: TimeRange | None = None  # of the lines that were used
    is_about_slow: bool = False  # the question was what makes a job slow, as of the command `slow`
    is_about_hang: bool = False  # the question was why a job hangs, as of the command `hang`: then it stands still

    def hash_inputs(self) -> None:
        """Compute the SHA-256 of every input file."""
        self.hashes |= self.run.hashes
        for reading in self.run.inputs:
            if not reading.source.problem and reading.number not in self.hashes:
                try:
                    with reading.source.open_stored() as stream:
                        self.hashes[reading.number] = hashlib.file_digest(stream, "sha256").hexdigest()
                except OSError as error:
                    reading.problems.append(f"its SHA-256 is unknown: {error.strerror or error}")

    @cached_property
    def verdicts(self) -> list[Answer]:
        """Return the answer on each job, whatever is selected: worst first, then by number of ranks.

        A run that was followed by another one on the same GPUs comes behind all others, unless nothing can be said of
        the later one.
        """
        sizes = dict(self.run["rank"].group_by("job").len().iter_rows())
        earlier = self.earlier_runs
        return sorted(
            _answers(self.run, self.looks),
            key=lambda answer: (
                answer.job in earlier, VERDICTS.index(answer.verdict), -sizes.get(answer.job, 0), answer.job,
            ),
        )  # fmt: skip

    @cached_property
    def earlier_runs(self) -> set[int]:
        """Return the jobs that were followed by another one on the same GPUs, of which there is a verdict."""
        verdicts = dict(self.run["verdict"].select("job", "verdict").iter_rows())
        return {job for job, later in self.run["earlier_run"].iter_rows() if verdicts.get(later) != "undecidable"}

    def evidence(self, finding: Finding) -> list[Row]:
        """Return path, line, text and label of the lines that a finding cites."""
        return [self.cited(line.source, line.line) | {"what": line.what} for line in finding.evidence]

    def path_of(self, source: int) -> str:
        """Return the path of a source, as the user gave it."""
        return self.run.inputs[source].source.path

    def problems(self, source: int) -> list[str]:
        """Return the problems of one source: of reading it, and of the dumps in it."""
        return [*self.run.inputs[source].problems, *self._dump_problems.get(source, ())]

    @cached_property
    def _dump_problems(self) -> dict[int, list[str]]:
        if not self.run.has("dump_damage"):
            return {}
        damages = self.run["dump_damage"]
        return dict(damages.group_by("source", maintain_order=True).agg("problem").iter_rows())

    @property
    def defects(self) -> list[Defect]:
        """Parts of the program that failed; what depends on them is missing in this report."""
        return self.run.defects

    @property
    def defects_beside_inputs(self) -> list[Defect]:
        """The defects that do not stand among the problems of an input."""
        return [defect for defect in self.defects if not defect.is_of_input]

    def input_problems(self) -> list[tuple[str, str]]:
        """Return (path, problem) for each distinct problem: the first path that has it, with the number of others."""
        paths_of: dict[str, list[str]] = {}
        for reading in self.run.inputs:
            for problem in self.problems(reading.number):
                paths_of.setdefault(problem, []).append(reading.source.path)
        return [
            (paths[0], f"{problem} (and {len(paths) - 1} more files)" if len(paths) > 1 else problem)
            for problem, paths in paths_of.items()
        ]

    def detail(self, finding: Finding) -> str:
        """Return the detail of a finding where it stands alone: with what a verdict takes from whoever asked."""
        rests = any(answer.job == finding.job and answer.rests_on_stall for answer in self.verdicts)
        return "; ".join([finding.detail, *[TAKEN] * (rests and finding.job is not None)])

    def finding_of(self, answer: Answer) -> Finding | None:
        """Return the finding that describes the verdict of a job."""
        return self._finding_of_job.get(answer.job)

    @cached_property
    def _finding_of_job(self) -> dict[int, Finding]:
        return {finding.job: finding for finding in reversed(self.findings) if finding.job is not None}

    def causes_of(self, answer: Answer) -> list[Cause]:
        """Return what explains the failure of a job, the cause that views show first."""
        return self._relations.causes(self.findings, answer)

    def has_own_advice(self, finding: Finding) -> bool:
        """Whether a finding advises on its case, and not only as its rule does on all."""
        general = next((rule.section("Do") for rule in self.rules if rule.name == finding.rule), "")
        return finding.remedy not in ("", general)

    def cause_of(self, answer: Answer) -> Cause | None:
        """Return what is likely or certain to have caused the failure of a job."""
        return next(iter(self.causes_of(answer)), None)

    def is_of_job(self, finding: Finding, job: int) -> bool:
        """Whether the lines of a finding are of a job, or of no process where there is no other job."""
        return self._relations.is_of_job(finding, job)

    @cached_property
    def _relations(self) -> Relations:
        return Relations(self.run)

    @property
    def elsewhere(self) -> list[Finding]:
        """Return the errors and warnings that concern no job: of other hosts, or of another time."""
        return [finding for finding in self.findings if finding.is_elsewhere]

    def title_of(self, answer: Answer) -> str:
        """Return the verdict of a job in one line; by its reason where the rule that states it was not selected."""
        if finding := self.finding_of(answer):
            return finding.title
        named = answer.verdict not in WITHOUT_SUBJECT
        return (
            f"{ranks_text([*self.numbers(answer.culprits), *answer.missing]) if named else ''} {answer.reason}".strip()
        )

    def severity_of(self, answer: Answer) -> str:
        """Return the severity of the finding that describes a verdict; `no-hang` is one of its own, if likely."""
        if answer.verdict == "no-hang" and answer.certainty != "possible":
            return "no-hang"
        finding = self.finding_of(answer)
        return str(finding.severity) if finding else "info"

    def job(self, number: int) -> JobParts:
        """Return what is shown of a job beside its answer; the same object each time."""
        if number not in self._jobs:
            answer = next(answer for answer in self.verdicts if answer.job == number)
            self._jobs[number] = JobParts(self, answer)
        return self._jobs[number]

    @cached_property
    def _jobs(self) -> dict[int, JobParts]:
        return {}

    def run_now(self, answer: Answer) -> list[Command]:
        """Return the commands to run now, each with its host."""
        parts = {host: kind for cause in self.causes_of(answer) for host, kind in cause.parts}
        return commands(self.run, answer, parts)

    def other_steps(self, answer: Answer) -> list[str]:
        """Return what else would help: logs and files to collect, and a second look; no command that is run now."""
        now = {step.line for step in self.run_now(answer)}
        steps = [*self._collected(answer), *other_steps(self.run, answer)]
        return [step for step in steps if split_step(step)[1] not in now]

    def collect_next(self, answer: Answer) -> list[str]:
        """Return what to run now on the hosts of the culprits, and what to collect."""
        return [*self._collected(answer), *map(str, self.run_now(answer)), *other_steps(self.run, answer)]

    def _collected(self, answer: Answer) -> list[str]:
        """Return what the verdict asks for; not for the calls of a job of which a finding says what ended it."""
        has_failed = Sign.FAILURE in answer.stall_evidence
        errors = (f for f in self.findings if f.severity is Severity.ERROR and f.role is Role.CAUSE)
        ends = (f for f in errors if f.certainty != "possible" and not f.is_elsewhere and (has_failed or f.place))
        if answer.verdict == "undecidable" and any(ends):
            return [step for step in answer.collect if step not in COLLECT_CALLS]
        return list(answer.collect)


def build_report(
    run: Frames,
    selection: Selection | None = None,
    rules: list[Rule] | None = None,
    earlier_look: EarlierLook | None = None,
) -> Report:
    """Run the rules (by default those about hangs) and read the lines that they cite.

    `earlier_look`: what was seen of the same logs before.
    """
    selection = selection or Selection()
    rules = select_rules(everything=False) if rules is None else rules
    findings = run_rules(run, rules)
    looks = earlier_look.compare_all(run) if earlier_look else {}
    verdicts = {answer.job: answer for answer in _answers(run, looks)}
    for finding in findings:
        if finding.job is not None:
            answer = verdicts[finding.job]
            finding.certainty = answer.certainty
            if look := looks.get(finding.job):
                finding.detail += f"; {look.text}"
            if answer.rests_on_stall and finding.certainty == "possible" and finding.severity is Severity.ERROR:
                finding.severity = Severity.WARNING
    findings = _with_relations(findings, run)
    add_site_names(findings, run)
    shown: list[Finding] = []
    not_selected: list[Finding] = []
    for finding in findings:
        is_shown = finding.job is not None or selection.shows(finding.ranks, finding.hosts, finding.communicator)
        (shown if is_shown else not_selected).append(finding)
    cited = places_of(line for finding in shown for line in finding.evidence)
    quotes = run.quote(cited)
    _quote_warnings(shown, quotes)
    is_about_hang = all(rule.hang for rule in rules)
    return Report(run, quotes, selection, shown, rules, looks, not_selected, is_about_hang=is_about_hang)


def _answers(run: Frames, looks: Mapping[int, Comparison]) -> list[Answer]:
    found = answers(run["job_diagnosis"])
    if not looks:
        return list(found)
    from ncclforensics.report.earlier_look import with_looks  # of most runs there is none

    return with_looks(found, looks)


def _with_relations(findings: list[Finding], run: Frames) -> list[Finding]:
    """Mark what concerns no job of the run as context that was found elsewhere; the order of findings is by role."""
    relations = Relations(run)
    for finding in findings:
        if finding.role is not Role.CONSEQUENCE and finding.severity is not Severity.INFO:
            finding.is_elsewhere = relations.is_elsewhere(finding)
        if finding.is_elsewhere:
            finding.role = Role.CONTEXT
        if relations.is_outlived(finding):
            finding.role, finding.severity, finding.certainty = Role.CONTEXT, Severity.INFO, "possible"
            finding.detail += "; work goes on below, so that it was caught, or ended an earlier run"
    return sorted(findings, key=lambda finding: list(Role).index(finding.role))


def _quote_warnings(findings: list[Finding], quotes: dict[tuple[int, int], tuple[int, str]]) -> None:
    """Put the sentence of the first line of evidence into titles that ask for it."""
    for finding in findings:
        if QUOTED_WARNING in finding.title:
            quoted = [quotes.get((line.source, line.line), (0, ""))[1] for line in finding.evidence[:1]]
            warning = parse_value("".join(quoted), "warning_line")
            texts = [warning.get("sentence"), warning.get("quoted_sentence")] if warning else []
            # Behind PyTorch's `Last error:`, the sentence stands alone.
            sentence = next((str(text) for text in (*texts, *quoted) if text), "its text was not kept")
            finding.title = finding.title.replace(QUOTED_WARNING, sentence)
