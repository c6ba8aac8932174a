"""The short report: verdict, cause and what to run now on one screen; `check` prints an overview above it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.data.names import certainty_text, printable, ranks_text, sentence, waiting_text
from ncclforensics.report.build import Report
from ncclforensics.report.condensed_lines import condensed
from ncclforensics.report.summary import not_shown
from ncclforensics.report.without_job import reason_without_job, steps_without_job
from ncclforensics.rules.finding import Finding, Line, Role, Severity
from ncclforensics.views.text_chain import chain_text
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_layout import (
    STYLE,
    heading,
    indented,
    place_of,
    quoted,
    render_text,
    table_without_header,
)
from ncclforensics.views.text_report import (
    GAP,
    culprits,
    is_sure_cause,
    leading_findings,
    measurements,
    mismatch,
    run_table,
)
from ncclforensics.views.text_steps import run_now
from ncclforensics.views.text_times import host_versions, stop_text

Row = dict[str, Any]
HEIGHT = 24  # lines of the smallest terminal that is in use
MARGIN = 2  # lines for the prompt below the report
MOST_COMMANDS = 4
MOST_OTHERS = 5
MOST_LINES = 3
WITHOUT_LOG = "read-missing-log-is-evidence"
LONGEST_LINE = 54  # characters of a line that is shown with its prefix
WIDEST = 24  # characters to which places in files are filled up


@dataclass(slots=True)
class _Section:
    """A part of the screen. Those of rank 0 are always shown, the others as long as they fit, from rank 1 on."""

    rank: int
    parts: list[RenderableType] = field(default_factory=list)
    shorter: list[list[RenderableType]] = field(default_factory=list)  # in its place where it does not fit


def screen(report: Report, *, width: int, height: int = HEIGHT, color: bool = False, everything: bool = False) -> str:
    """Return the report of `hang`, or with `everything` of `check`; its last `height` lines say what matters most."""
    shown = _main_finding(report, everything=everything)
    overview = _overview(report, shown) if everything else []
    sections = [section for section in _sections(report, shown, everything=everything) if section.parts]
    text = _fitting(sections, height - MARGIN, width, lambda parts: render_text(parts, width=width, color=color))
    return (render_text(overview, width=width, color=color) if overview else "") + text


def _fitting(sections: list[_Section], lines: int, width: int, render: Callable[[list[RenderableType]], str]) -> str:
    """Render the sections of rank 0, and of the others, in the order of their ranks, those that still fit."""
    shown = [section.parts if section.rank == 0 else [] for section in sections]
    text = render(list(chain.from_iterable(shown)))
    for place in sorted(range(len(sections)), key=lambda place: sections[place].rank):
        for parts in [sections[place].parts, *sections[place].shorter] if not shown[place] else []:
            longer = render([*chain.from_iterable(shown[:place]), *parts, *chain.from_iterable(shown[place + 1 :])])
            if _rows(longer, width) <= lines:
                shown[place], text = parts, longer
                break
    return text


def _rows(text: str, width: int) -> int:
    """Count the rows of a terminal that a text takes, with those of commands that are longer than a row."""
    return sum(max(Text.from_ansi(line).cell_len - 1, 0) // width + 1 for line in text.splitlines())


def height_of_terminal() -> int:
    """Return the height of the terminal, at least HEIGHT; HEIGHT without one."""
    try:
        return max(os.get_terminal_size().lines, HEIGHT)
    except OSError:
        return HEIGHT


def _main_finding(report: Report, *, everything: bool) -> Finding | None:
    """Return the finding that stands above the verdict: what is sure where the verdict decides nothing.

    Where no line of NCCL was read, there is no verdict, and whatever was found says more.
    """
    jobs = report.verdicts
    if jobs and jobs[0]["verdict"] not in ("undecidable", "no-hang"):
        return None
    findings = _others(report)
    return next(iter(leading_findings(jobs, findings) or (findings if everything or not jobs else [])), None)


def _others(report: Report) -> list[Finding]:
    """Return the errors and warnings that are no verdict of a job."""
    verdicts = [id(report.finding_of(row)) for row in report.verdicts]
    return [f for f in report.findings if id(f) not in verdicts and f.severity is not Severity.INFO]


def _sections(report: Report, shown: Finding | None, *, everything: bool) -> list[_Section]:
    jobs = report.verdicts
    sections = [] if everything else [_Section(0, [_one_line(coverage(report))])]
    if shown is not None:
        sections += _of_finding(report, shown)
    others = [finding for finding in _others(report) if finding is not shown]
    cause = next((finding for finding in others if is_sure_cause(finding)), None) if shown is None else None
    if jobs:
        sections += _of_job(report, jobs[0], cause, is_first=shown is None)
        sections += [_Section(4, _other_jobs(report, jobs))]
    elif not everything:
        sections += [_Section(0, [Text(f"\nUNDECIDABLE  {reason_without_job(report.run)}", style="bold")])]
    elif shown is None:
        sections += [_Section(0, [Text("\nno findings", style=STYLE["no-hang"])])]
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO and finding.job is None]
    if not others and (not jobs or jobs[0]["verdict"] == "undecidable") and shown is None:
        # Nothing worse is known; that nothing was read stands in the verdict already.
        others = [note for note in notes if note.title != reason_without_job(report.run)]
    rest = [finding for finding in others if finding is not cause and not _repeats(report, finding, cause)]
    if rest and not everything:
        sections += [_Section(4, [heading("ALSO FOUND"), *_one_liners(report, rest[:MOST_OTHERS])])]
    if jobs or not everything:
        advised = cause or (report.finding_of(jobs[0]) if jobs and shown is None else None)
        sections += [_Section(0, _steps(report, jobs, advised))]
    problems = [f"{path} {problem}" for path, problem in report.input_problems()]
    problems = [*map(str, report.defects_beside_inputs), *problems]
    if problems:
        more = f" (and {len(problems) - 1} more; -v lists them)" if len(problems) > 1 else ""
        problem = Text.assemble(("\nproblem  ", STYLE["warning"]), printable(problems[0]) + more)
        sections += [_Section(0, [problem])]
    return [*sections, _Section(2, [Text(f"\n-v: {_behind_option(report, jobs)}", style="dim")])]


def _repeats(report: Report, finding: Finding, cause: Finding | None) -> bool:
    """Whether a finding says less of the same.

    It says of ranks that they ended, which the cause or the verdict names; or no cause, and only by lines that the
    verdict cites.
    """
    jobs = report.verdicts
    if cause is not None and finding.rule == cause.rule:
        return not finding.ranks or set(finding.ranks) <= set(cause.ranks)
    stated = report.finding_of(jobs[0]) if jobs else None
    if stated is not None and finding.role is not Role.CAUSE and finding.evidence:
        return {(line.source, line.line) for line in finding.evidence} <= {
            (line.source, line.line) for line in stated.evidence
        }
    has_died = bool(jobs) and jobs[0]["verdict"] == "rank-died" and finding.role is Role.CAUSE
    verdict = report.finding_of(jobs[0]) if has_died else None
    return verdict is not None and bool(finding.ranks) and set(finding.ranks) <= set(verdict.ranks)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _behind_option(report: Report, jobs: list[Row]) -> str:
    """Say what the option -v adds."""
    count = sum(finding.severity is Severity.INFO and finding.rule != GAP for finding in report.findings)
    notes = [f"{count} note{'s' * (count != 1)}"] if count else []
    return ", ".join(["all lines of evidence", *(["ranks and their last calls"] if jobs else []), *notes])


def _of_finding(report: Report, finding: Finding) -> list[_Section]:
    severity = str(finding.severity)
    head = Text.assemble(("\n", ""), (severity.upper(), STYLE[severity]), (f"  ({finding.certainty})  ", "dim"))
    parts: list[RenderableType] = [head.append(finding.title, "bold")]
    parts += [indented(Text(sentence(line))) for line in (finding.detail,) if line]
    is_advice = finding.role is not Role.CONSEQUENCE or not report.verdicts  # else what to collect says it
    remedy: list[RenderableType] = [indented(Text(sentence(finding.remedy)))] if finding.remedy and is_advice else []
    return [_Section(0, parts), _Section(6, _evidence(report, finding)), _Section(1, remedy)]


def _evidence(report: Report, *findings: Finding | None) -> list[RenderableType]:
    """Cite lines that show a finding, each on one line of the screen: first one of each kind."""
    ranks = _rank_by_line(report)
    shown: dict[str, str] = {}
    for finding in filter(None, findings):
        for line in _of_each_kind(finding.evidence)[:MOST_LINES]:
            cited, rank = report.cited(line.source, line.line), ranks.get((line.source, line.line))
            if (place := place_of(report, cited)) not in shown and (text := quoted(cited).strip()):
                shown[place] = ("" if rank is None else f"rank {rank}: ") + condensed(text, LONGEST_LINE)
    width = min(max(map(len, shown), default=0), WIDEST)
    texts = [Text.assemble((place.ljust(width), "cyan"), "  ", text) for place, text in shown.items()]
    return [indented(_one_line(text)) for text in texts[:MOST_LINES]]


def _rank_by_line(report: Report) -> dict[tuple[int, int], int]:
    """Return the rank that printed a line, of lines that show calls or a verdict."""
    numbers = report.run["rank"].select("rank_id", "rank").drop_nulls()
    rows = [report.run[name].select("source", "line", "rank_id") for name in ("shown_call", "verdict_evidence")]
    known = pl.concat(rows).drop_nulls().join(numbers, on="rank_id")
    return {(source, line): rank for source, line, rank in known.select("source", "line", "rank").iter_rows()}


def _of_each_kind(lines: list[Line]) -> list[Line]:
    """Order lines so that one of each label comes first."""
    seen: Counter[str] = Counter()
    turns = []
    for line in lines:
        turns.append(seen[line.what])
        seen[line.what] += 1
    return [line for _, _, line in sorted(zip(turns, range(len(lines)), lines, strict=True))]


def _letters(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _of_job(report: Report, row: Row, cause: Finding | None, *, is_first: bool) -> list[_Section]:
    finding = report.finding_of(row)
    head = Text.assemble(
        ("\n", ""),
        (row["verdict"].upper(), STYLE[report.severity_of(row)]),
        (f"{certainty_text(row['verdict'], row['certainty']).replace(' ', '  ')}  ", "dim"),
    )
    parts: list[RenderableType] = [head.append(finding.title if finding else row["reason"], "bold")]
    if finding and finding.detail and _letters(finding.detail) not in _letters(finding.title):
        parts.append(indented(Text(sentence(finding.detail))))
    if not is_first:
        return [_Section(2, parts)]
    if cause is not None:
        parts.append(indented(Text(f"Cause ({cause.certainty}): {cause.title.removesuffix('.')}.", "bold")))
    if stopped := stop_text(report, row):
        parts.append(indented(Text(stopped)))
    incident, evidence = chain_text(report, row), _evidence(report, cause, finding)
    waiting = _waiting(report, row)
    tables = [table for most in (MOST_LINES, 1) if (table := culprits(report, row, most))]
    shorter = [[*tables[-1], *waiting], tables[-1], [*_culprits_by_host(report, row), *waiting]] if tables else []
    sections = [_Section(0, parts), _Section(1, [*tables[0], *waiting], shorter) if tables else _Section(5, waiting)]
    sections += [_Section(3, incident or evidence, [evidence] if incident else [])]
    sections += [_Section(5, mismatch(report, row)), _Section(4, host_versions(report, row))]
    return sections


def _culprits_by_host(report: Report, row: Row) -> list[RenderableType]:
    """Name the culprits of each host in one line."""
    ranks = (
        report.run["rank"].filter(pl.col("rank_id").is_in(row["culprits"])).drop_nulls(["rank", "host"]).sort("rank")
    )
    hosts = ranks.group_by(pl.col("host").cast(pl.String), maintain_order=True).agg("rank")
    named = [f"{ranks_text(numbers)} on {host}" for host, numbers in hosts.iter_rows()]
    more = [f"{len(named) - MOST_LINES} more hosts"] if len(named) > MOST_LINES else []
    return [indented(_one_line(Text(f"culprits: {'; '.join([*named[:MOST_LINES], *more])}")))] if named else []


def _waiting(report: Report, row: Row) -> list[RenderableType]:
    """Say in one line which ranks wait, then which are behind, too, and which have no log."""
    if not row["victims"] or not row["culprits"]:
        return []
    lagging = _other_lagging_ranks(report, row)
    victims = report.numbers(row["victims"])
    total = report.run["rank"].filter(pl.col("job") == row["job"]).height
    count = len(row["victims"])
    lines = [f"waiting: {ranks_text(victims)} ({count} of {total})" if victims else f"waiting: {count} of {total}"]
    places = [f"{ranks_text(report.numbers(rank_ids))} at {where}" for rank_ids, where in lagging[:MOST_LINES]]
    places += [f"{len(lagging) - MOST_LINES} more places"] if len(lagging) > MOST_LINES else []
    also = [f"also behind: {'; '.join(places)}"] if places else []
    also += [finding.title for finding in report.findings if finding.rule == WITHOUT_LOG]
    return [indented(Text(lines[0])), *(indented(_one_line(Text(line))) for line in also)]


def _other_lagging_ranks(report: Report, row: Row) -> list[tuple[list[int], str]]:
    """Rank ids that wait for nothing, for which others wait, and where: as far as the verdict is not about them.

    A job may have a second fault, which the first one does not explain.
    """
    waits = report.waits(row["job"])
    concerned = set(report.run["member"].filter(pl.col("key") == pl.lit(row["key"], pl.String))["rank_id"])
    concerned |= {wait["waiter"] for wait in waits} | set(row["culprits"])
    lagging: list[tuple[list[int], str]] = []
    distinct = {id(wait["waits_for"]): wait for wait in waits}  # ranks that wait in one call share the tuple
    for wait in sorted(distinct.values(), key=lambda wait: len(wait["waits_for"])):
        if lacking := set(wait["waits_for"]) - concerned:
            concerned |= lacking
            lagging.append((sorted(lacking), waiting_text(wait, report.groups.text(wait["key"]))))
    return lagging


def _other_jobs(report: Report, jobs: list[Row]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for number, row in enumerate(jobs[1:], 2):
        finding = report.finding_of(row)
        earlier = ", an earlier run on the same GPUs" if row["job"] in report.earlier_runs else ""
        verdict = row["verdict"].upper() + certainty_text(row["verdict"], row["certainty"])
        title = finding.title if finding else row["reason"]
        lines.append(_one_line(Text(f"job {number} of {len(jobs)}{earlier}: {verdict}  {title}")))
    more = [Text(f"and {len(lines) - MOST_LINES} more jobs", style="dim")] if len(lines) > MOST_LINES else []
    return [Text(""), *lines[:MOST_LINES], *more] if lines else []


def _one_liners(report: Report, findings: list[Finding]) -> list[RenderableType]:
    """List findings: severity, title, rule, and the first line that shows it."""
    table = table_without_header()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for finding in findings:
        severity = str(finding.severity)
        table.add_row(
            Text.assemble((severity, STYLE[severity]), (f" ({finding.certainty})", "dim")),
            Text.assemble(finding.title, (f"  {finding.rule}", "dim"), *_place_shown(report, finding)),
        )
    return [indented(table)]


def _place_shown(report: Report, finding: Finding) -> list[tuple[str, str]]:
    """Name the file and line of the first line of evidence, if there is one."""
    cited = [report.cited(line.source, line.line) for line in finding.evidence[:1]]
    return [(f"  {place_of(report, line)}", "cyan") for line in cited]


def _steps(report: Report, jobs: list[Row], advised: Finding | None) -> list[RenderableType]:
    """List the commands to run now, then what else would help; without any, what the rule of a finding advises."""
    now, then = (report.run_now(jobs[0]), report.other_steps(jobs[0])) if jobs else ([], steps_without_job(report.run))
    parts: list[RenderableType] = []
    parts += run_now(now, MOST_COMMANDS)
    if then:
        parts += [heading("THEN" if now else "COLLECT"), *(indented(Text(step)) for step in then[:2])]
    if not parts and advised is not None and advised.remedy:
        parts += [heading("WHAT TO DO"), indented(Text(sentence(advised.remedy)))]
    return parts


def _overview(report: Report, shown: Finding | None) -> list[RenderableType]:
    """Return what `check` prints above: the run, measurements, other findings, and what these logs cannot show."""
    parts: list[RenderableType] = [coverage(report)]
    if (run := run_table(report)).row_count:
        parts += [heading("RUN"), indented(run)]
    parts += measurements(report)
    if rows := not_shown(report.run):
        questions = "; ".join(row["question"] for row in rows[:MOST_LINES])
        more = f"; and {len(rows) - MOST_LINES} more" if len(rows) > MOST_LINES else ""
        parts += [heading("NOT IN THESE LOGS (-v: how to log it)"), indented(Text(questions + more))]
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO and finding.rule != GAP]
    verdicts = [id(report.finding_of(row)) for row in report.verdicts]
    if notes := [note for note in notes if id(note) not in verdicts]:
        parts += [heading("NOTES"), *_one_liners(report, notes)]
    if others := [finding for finding in _others(report) if finding is not shown]:
        parts += [heading("FINDINGS (-v: why, and what to do)"), *_one_liners(report, others)]
    return parts
