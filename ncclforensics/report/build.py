"""The report on a run: the inputs, the findings of the rules, and the verdict of each job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from ncclforensics.analyses.hang.wait_graph import RECORDED, rows_of
from ncclforensics.data.names import VERDICTS, datatype, ranks_text, reduction
from ncclforensics.errors import Defect
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.time_range import TimeRange
from ncclforensics.grammar.values import parse_value
from ncclforensics.report.causes import Cause, Relations
from ncclforensics.report.earlier_look import Comparison, EarlierLook, with_looks
from ncclforensics.report.groups import Groups
from ncclforensics.report.next_steps import Command, commands, other_steps
from ncclforensics.report.selection import Selection
from ncclforensics.report.site_names import add_site_names
from ncclforensics.rules.finding import QUOTED_WARNING, Finding, Line, Role, Severity
from ncclforensics.rules.registry import Rule, run_rules, select_rules
from ncclforensics.rules.shared.verdict_finding import WITHOUT_SUBJECT

Row = dict[str, Any]
TAKEN = "that the job stands still is taken from you, for no line shows it"


@dataclass
class Report:
    """Everything that views show. `quotes` holds the text of cited lines: (source, line) -> (true line, text)."""

    run: Frames
    findings: list[Finding]
    quotes: dict[tuple[int, int], tuple[int, str]]
    selection: Selection
    rules: list[Rule]  # the rules that were run
    looks: Mapping[int, Comparison] = field(default_factory=dict)  # job -> what an earlier look shows as well
    not_selected: list[Finding] = field(default_factory=list)  # count for the exit code, and are not shown
    hashes: dict[int, str] = field(default_factory=dict)  # source -> SHA-256, after `hash_inputs`
    time_range: TimeRange | None = None  # of the lines that were used
    is_about_slow: bool = False  # the question was what makes a job slow, as of the command `slow`

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

    def of_job(self, name: str, job: int) -> pl.DataFrame:
        """Return the rows of a frame that concern one job. A frame is divided once: there may be thousands of jobs."""
        if name not in self._divided:
            self._divided[name] = self.run[name].partition_by("job", as_dict=True)
        rows = self._divided[name].get((job,))
        return self.run[name].clear() if rows is None else rows

    @cached_property
    def _divided(self) -> dict[str, dict[tuple[object, ...], pl.DataFrame]]:
        return {}

    @property
    def is_about_hang(self) -> bool:
        """Whether the question was why a job hangs, as of the command `hang`: then it stands still."""
        return all(rule.hang for rule in self.rules)

    @cached_property
    def verdicts(self) -> list[Row]:
        """Return a row of `verdict` per job, whatever is selected: worst first, then by number of ranks.

        A run that was followed by another one on the same GPUs comes behind all others, unless nothing can be said of
        the later one.
        """
        sizes = dict(self.run["rank"].group_by("job").len().iter_rows())
        rows = with_looks(self.run["verdict"], self.looks).to_dicts()
        earlier = self.earlier_runs
        return sorted(
            rows,
            key=lambda row: (
                row["job"] in earlier, VERDICTS.index(row["verdict"]), -sizes.get(row["job"], 0), row["job"],
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

    def cited(self, source: int, line: int) -> Row:
        """Return path, line and text of one line; the text is empty unless the line was cited."""
        reader = self.run.inputs[source]
        known = line if line > 0 else line + reader.lines_read + 1 if reader.is_read_through else None
        true_line, text = self.quotes.get((source, line), (known, ""))
        return {"path": self.run.inputs[source].source.path, "line": true_line, "text": text}

    def cite(self, lines: Iterable[Line]) -> None:
        """Read the text of further lines."""
        self.quotes |= self.run.quote({(line.source, line.line) for line in lines} - set(self.quotes))

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
        rests = any(row["job"] == finding.job and row["rests_on_stall"] for row in self.verdicts)
        return "; ".join([finding.detail, *[TAKEN] * (rests and finding.job is not None)])

    def finding_of(self, row: Row) -> Finding | None:
        """Return the finding that describes the verdict of a job."""
        return self._finding_of_job.get(row["job"])

    @cached_property
    def _finding_of_job(self) -> dict[int, Finding]:
        return {finding.job: finding for finding in reversed(self.findings) if finding.job is not None}

    def causes_of(self, row: Row) -> list[Cause]:
        """Return what explains the failure of a job, the cause that views show first."""
        return self._relations.causes(self.findings, row)

    def cause_of(self, row: Row) -> Cause | None:
        """Return what is likely or certain to have caused the failure of a job."""
        return next(iter(self.causes_of(row)), None)

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

    def title_of(self, row: Row) -> str:
        """Return the verdict of a job in one line; by its reason where the rule that states it was not selected."""
        if finding := self.finding_of(row):
            return finding.title
        named = row["verdict"] not in WITHOUT_SUBJECT
        return (
            f"{ranks_text([*self.numbers(row['culprits']), *row['missing']]) if named else ''} {row['reason']}".strip()
        )

    def severity_of(self, row: Row) -> str:
        """Return the severity of the finding that describes a verdict; `no-hang` is one of its own, if likely."""
        if row["verdict"] == "no-hang" and row["certainty"] != "possible":
            return "no-hang"
        finding = self.finding_of(row)
        return str(finding.severity) if finding else "info"

    def numbers(self, rank_ids: Iterable[int]) -> list[int]:
        """Return the sorted rank numbers of these rank_ids, without unknown ones."""
        found = map(self.number_of_rank.get, rank_ids)
        return sorted({number for number in found if number is not None})

    @cached_property
    def number_of_rank(self) -> dict[int, int | None]:
        """Rank id -> the rank's number."""
        return dict(self.run["rank"].select("rank_id", "rank").iter_rows())

    def count_reporting(self, job: int) -> Row:
        """Return how many ranks of a job have evidence, and of how many.

        The second is None where no line states the size of the job, and where more ranks show than its largest known
        communicator has: then that is not the world's.
        """
        ranks = self.of_job("rank", job).height
        size = max(self.of_job("member", job)["nranks"].drop_nulls(), default=None)
        return {"ranks": ranks, "of": None if size is None or size < ranks else size}

    def explanations(self, job: int) -> list[Row]:
        """Return what was considered for a job, the answer first: rows of `explanation`, `numbers`, `hosts`, `quoted`.

        `numbers`: of all ranks that it would be on; `quoted`: path, line and text of the lines that contradict it.
        """
        rows = self.of_job("explanation", job).to_dicts()
        self.cite(Line(line["source"], line["line"]) for row in rows for line in row["lines"])
        ranks = self.of_job("rank", job).select("rank_id", pl.col("host").cast(pl.String))
        host_of = dict(ranks.iter_rows())
        return [
            {
                **row,
                "numbers": sorted({*self.numbers(row["culprits"]), *row["missing"]}),
                "hosts": sorted({host_of.get(rank_id) for rank_id in row["culprits"]} - {None}),
                "quoted": [self.cited(line["source"], line["line"]) for line in row["lines"]],
            }
            for row in rows
        ]

    def unexplained(self, job: int) -> list[Row]:
        """Return the failures of a job that its verdict does not explain: `number`, `text`, `path`, `line`."""
        rows = self.of_job("unexplained_failure", job).to_dicts()
        self.cite(Line(row["source"], row["line"]) for row in rows)
        return [
            {
                **self.cited(row["source"], row["line"]),
                "number": self.number_of_rank.get(row["rank_id"]),
                "text": row["text"],
            }
            for row in rows
        ]

    def last_calls(self, job: int) -> list[Row]:
        """Return the last call of every selected rank of a job, in the order of ranks."""
        last = self.of_job("shown_call", job)
        if last.is_empty():
            return []
        last = last.filter("is_last")
        ranks = self.of_job("rank", job).select("rank_id", "rank", "host", "pid", "cudadev")
        return self._selected(last.join(ranks, on="rank_id", how="left").sort("rank", nulls_last=True))

    def _selected(self, rows: pl.DataFrame) -> list[Row]:
        """Return the rows (with `rank`, `host` and `key`) that the selection shows."""
        shows = self.selection.shows
        return [
            row
            for row in rows.to_dicts()
            if shows([] if row["rank"] is None else [row["rank"]], [row["host"]], row["key"])
        ]

    def waits(self, job: int) -> list[Row]:
        """Return the first wait of every selected rank of a job: columns of `wait`, numbers `for_ranks`, and `call`.

        NCCL's lines come before Flight Recorder dumps. `call` is empty where a rank waits in an init. Ranks that wait
        in the same call share the tuple `waits_for` and the list `for_ranks`.
        """
        edges, recorded = self.of_job("wait", job), self.of_job("recorded_wait", job)
        if edges.is_empty() and recorded.is_empty():
            return []
        edges = edges.sort("pos")
        is_message = pl.col("kind").is_in(["send", "recv"])
        first_place = [name for name in edges.columns if name in ("source", "line", "pos")]
        messages = (
            edges.filter(is_message)
            .explode("waits_for")
            .group_by([name for name in edges.columns if name not in ("waits_for", *first_place)], maintain_order=True)
            .agg(pl.col("waits_for"), pl.col(first_place).first())
        )
        waits = pl.concat([edges.filter(~is_message), messages.select(edges.columns)]).sort("pos")
        of_rank = self.of_job("rank", job).select("rank_id", "rank", "host").to_dicts()
        locations = {row["rank_id"]: row for row in of_rank}
        numbers: dict[int, list[int]] = {}
        selected = []
        calls = {(call["source"], call["line"]): call for call in self._shown_calls(waits)}
        recorded = recorded.join(waits, on="waiter", how="anti")
        rows = rows_of(waits.unique("waiter", keep="first", maintain_order=True))
        for row in [*rows, *rows_of(recorded)]:
            location = locations[row["waiter"]]
            ranks = [] if location["rank"] is None else [location["rank"]]
            if self.selection.shows(ranks, [location["host"]], row["key"]):
                if id(row["waits_for"]) not in numbers:
                    numbers[id(row["waits_for"])] = self.numbers(row["waits_for"])
                call = {**row, "op": None} if row["kind"] == RECORDED else calls.get((row["source"], row["line"]), {})
                awaited = numbers[id(row["waits_for"])]
                if location["rank"] in awaited:  # two processes that took themselves for the same rank
                    awaited = [number for number in awaited if number != location["rank"]]
                selected.append({**row, **location, "for_ranks": awaited, "call": call})
        return selected

    def _shown_calls(self, waits: pl.DataFrame) -> list[Row]:
        places = waits.select("source", "line").unique()
        return self.run["shown_call"].join(places, on=["source", "line"], how="semi").to_dicts()

    @cached_property
    def groups(self) -> Groups:
        """Names of the communicators by their ranks."""
        return Groups(self.run)

    def run_now(self, row: Row) -> list[Command]:
        """Return the commands to run now, each with its host."""
        return commands(self.run, row, {host: kind for cause in self.causes_of(row) for host, kind in cause.parts})

    def other_steps(self, row: Row) -> list[str]:
        """Return what else would help: logs and files to collect, and a second look."""
        return [*row["collect"], *other_steps(self.run, row)]

    def collect_next(self, row: Row) -> list[str]:
        """Return what to run now on the hosts of the culprits, and what to collect."""
        return [*row["collect"], *map(str, self.run_now(row)), *other_steps(self.run, row)]


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
    verdicts = {row["job"]: row for row in with_looks(run["verdict"], looks).to_dicts()}
    for finding in findings:
        if finding.job is not None:
            row = verdicts[finding.job]
            finding.certainty = row["certainty"]
            if look := looks.get(finding.job):
                finding.detail += f"; {look.text}"
            if row["rests_on_stall"] and finding.certainty == "possible" and finding.severity is Severity.ERROR:
                finding.severity = Severity.WARNING
    findings = _with_relations(findings, run)
    add_site_names(findings, run)
    shown: list[Finding] = []
    not_selected: list[Finding] = []
    for finding in findings:
        is_shown = finding.job is not None or selection.shows(finding.ranks, finding.hosts, finding.communicator)
        (shown if is_shown else not_selected).append(finding)
    cited = {(line.source, line.line) for finding in shown for line in finding.evidence}
    quotes = run.quote(cited)
    _quote_warnings(shown, quotes)
    return Report(run, shown, quotes, selection, rules, looks, not_selected)


def _with_relations(findings: list[Finding], run: Frames) -> list[Finding]:
    """Mark what concerns no job of the run as context that was found elsewhere; the order of findings is by role."""
    relations = Relations(run)
    for finding in findings:
        if finding.role is not Role.CONSEQUENCE and finding.severity is not Severity.INFO:
            finding.is_elsewhere = relations.is_elsewhere(finding)
        if finding.is_elsewhere:
            finding.role = Role.CONTEXT
    return sorted(findings, key=lambda finding: list(Role).index(finding.role))


def _quote_warnings(findings: list[Finding], quotes: dict[tuple[int, int], tuple[int, str]]) -> None:
    """Put the sentence of the first line of evidence into titles that ask for it."""
    for finding in findings:
        if QUOTED_WARNING in finding.title:
            quoted = [quotes.get((line.source, line.line), (0, ""))[1] for line in finding.evidence[:1]]
            warning = parse_value("".join(quoted), "warning_line")
            sentence = str(warning["sentence"]) if warning else "its text was not kept"
            finding.title = finding.title.replace(QUOTED_WARNING, sentence)


def operation(row: Row) -> Row:
    """Return a call as the JSON contract describes it."""
    return {
        "name": row["name"],
        "ordinal": row["ordinal"],
        "count": row["count"],
        "datatype": datatype(row["datatype"]),
        "op": reduction(row["name"], row["op"]),
        "root": row["root"],
    }
