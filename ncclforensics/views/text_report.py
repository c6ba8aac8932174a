"""The report as text: the verdict, the culprits and the evidence on one screen."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.hang.rank_stacks import stacks_in
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.sources.stacks import place_text
from ncclforensics.analyses.verdict.vocabulary import Detail
from ncclforensics.data.names import (
    argument_text,
    certainty_text,
    known,
    printable,
    ranks_text,
    sentence,
    short_ranks,
)  # fmt: skip
from ncclforensics.frames.columns import Row, printed_hosts, printed_pid
from ncclforensics.report.build import Report
from ncclforensics.report.causes import Cause
from ncclforensics.report.summary import not_shown
from ncclforensics.report.without_job import reason_without_job, steps_without_job
from ncclforensics.rules.finding import Finding, Role, Severity, places_of
from ncclforensics.views.text_chain import chain_text
from ncclforensics.views.text_considered import FEW, considered_table, unexplained_table
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_layout import (
    GAP,
    STYLE,
    heading,
    indented,
    place_of,
    quoted,
    render_text,
    table_with_header,
    table_without_header,
)
from ncclforensics.views.text_steps import other_steps, run_now

MOST_JOBS = 200
MOST_CULPRITS = 8
MOST_GROUPS = 6
MOST_LINES = 6
MOST_HOSTS = 6
MIN_WIDTH, DEFAULT_WIDTH = 40, 100  # columns
HEIGHT = 24  # lines of the smallest terminal that is in use


def text(
    report: Report, *, width: int = 100, color: bool = False, verbose: bool = False, everything: bool = False
) -> str:
    """Return the verdict, or with `everything` the run and all findings, as lines of text."""
    parts = _all(report, verbose) if everything else _parts(report, verbose)
    return render_text(parts, width=width, color=color)


def _parts(report: Report, verbose: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [coverage(report)]
    jobs = report.verdicts
    verdict_findings = [id(report.finding_of(row)) for row in jobs]
    others = [finding for finding in report.findings if id(finding) not in verdict_findings]
    first = leading_findings(jobs, others)[:1]
    parts += [part for finding in first for part in _finding(report, finding)]
    for index, row in enumerate(jobs[:MOST_JOBS]):
        if index and row.verdict == "no-hang" and not verbose and len(jobs) > 3:
            continue
        if len(jobs) > 1:
            size = report.of_job("rank", row.job).height
            earlier = ", an earlier run on the same GPUs" if row.job in report.earlier_runs else ""
            parts.append(Text(f"\nJob {index + 1} of {len(jobs)}: {size} ranks{earlier}", style="bold underline"))
        parts += _job(report, row, verbose, None if first else report.cause_of(row))
    if len(jobs) > MOST_JOBS:
        parts.append(Text(f"\nand {len(jobs) - MOST_JOBS} more jobs: --format json shows all", style="dim"))
    if not jobs:
        parts.append(Text(f"\nUNDECIDABLE  {reason_without_job(report.run, report.findings)}", style="bold"))
        parts += other_steps("WHAT TO DO", steps_without_job(report.run, report.findings))
    for finding in others:
        if finding not in first and finding.severity is not Severity.INFO and not finding.is_elsewhere:
            parts += _finding(report, finding)
    parts += _elsewhere(report)
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO and finding.rule != GAP]
    parts += [Text.assemble(("\nnote  ", STYLE["info"]), f"{note.title}: {note.detail}") for note in notes]
    return parts + _problems(report) + _configuration(report) * verbose


ELSEWHERE = "ELSEWHERE (other hosts or times; no cause of the above)"


def _elsewhere(report: Report) -> list[RenderableType]:
    """Show what concerns no job."""
    found = [part for finding in report.elsewhere for part in _finding(report, finding)]
    return [heading(ELSEWHERE), *found] if found else []


def leading_findings(jobs: list[Answer], findings: list[Finding]) -> list[Finding]:
    """Return the findings that stand above a verdict that decides nothing, the surest cause first.

    Below the causes stand errors that are certain, such as a time-out: they happened, whatever began them.
    """
    if jobs and jobs[0].verdict not in ("undecidable", "no-hang"):
        return []
    errors = [finding for finding in findings if finding.severity is Severity.ERROR and not finding.is_elsewhere]
    causes = [error for error in errors if error.role is Role.CAUSE and error.certainty != "possible"]
    if jobs and jobs[0].verdict == "no-hang":
        own = places_of(jobs[0].evidence_lines)  # such as what ended an earlier attempt
        return [cause for cause in causes if not places_of(cause.evidence) <= own]
    return [*causes, *(error for error in errors if error.certainty == "certain" and error not in causes)]


def _all(report: Report, verbose: bool) -> list[RenderableType]:
    from ncclforensics.views.text_judged import without_findings  # the answer on a hang does without these
    from ncclforensics.views.text_measured import measurements
    from ncclforensics.views.text_run import run_table

    parts: list[RenderableType] = [coverage(report)]
    for finding in report.findings:
        parts += [] if finding.is_elsewhere else _finding(report, finding)
    parts += _elsewhere(report)
    if not report.findings:
        parts += without_findings(report)
    parts += measurements(report, verbose=verbose)
    if (run := run_table(report, verbose=verbose)).row_count:
        parts += [heading("RUN"), indented(run)]
    return parts + _problems(report) + _not_shown(report) + _configuration(report) * verbose


def _finding(report: Report, finding: Finding) -> list[RenderableType]:
    """Show a finding with its detail, remedy and evidence."""
    severity = str(finding.severity)
    head = Text.assemble(("\n", ""), (severity.upper(), STYLE[severity]), (f"  ({finding.certainty})  ", "dim"))
    texts = [report.detail(finding), finding.remedy]
    return [
        head.append(finding.title, "bold"),
        *(indented(Text(sentence(line))) for line in texts if line),
        indented(Text(f"{finding.role} · ncclforensics explain {finding.rule}", style="dim")),
        *_lines_of(report, finding),
    ]


def _not_shown(report: Report) -> list[RenderableType]:
    """List what these logs cannot show, and what to set before the next run."""
    rows = not_shown(report.run)
    if not rows:
        return []
    table = table_without_header()
    table.add_column(overflow="fold", ratio=1)
    table.add_column(style="dim", overflow="fold", ratio=1)
    for row in rows:
        table.add_row(row["question"], row["needs"])
    return [heading("WHAT THESE LOGS CANNOT SHOW"), indented(table)]


def _job(report: Report, answer: Answer, verbose: bool, cause: Cause | None) -> list[RenderableType]:
    """Show one verdict: what happened, why, and what to run now; then the ranks and the evidence."""
    finding = report.finding_of(answer)
    head = Text.assemble(
        ("\n", ""),
        (answer.verdict.upper(), STYLE[report.severity_of(answer)]),
        (f"{certainty_text(answer.verdict, answer.certainty).replace(' ', '  ')}  ", "dim"),
    )
    parts: list[RenderableType] = [head.append(report.title_of(answer), "bold")]
    if finding and finding.detail:
        parts.append(indented(Text(sentence(finding.detail))))
    if cause is not None:
        parts.append(indented(Text(sentence(f"{cause.label(answer)}: {cause.text}"), "bold")))
    parts += chain_text(report, answer) + culprits(report, answer)
    now, steps = report.run_now(answer), report.other_steps(answer)
    parts += run_now(now, len(now) if verbose else MOST_LINES)
    parts += other_steps("THEN" if now else "WHAT TO DO", steps if verbose else steps[:MOST_LINES])
    parts += _grid(report, answer)
    parts += mismatch(report, answer)
    parts += _waits(report, answer, verbose)
    if finding:
        parts += _evidence(report, finding)
    parts += unexplained_table(report, answer) + considered_table(report, answer, None if verbose else FEW)
    if verbose:
        parts += _all_last(report, answer)
    return parts


def culprits(report: Report, answer: Answer, most: int = MOST_CULPRITS) -> list[RenderableType]:
    """Show the culprits of a verdict with their last or differing call, at most this many."""
    call_title, last = report.job(answer.job).calls_of_culprits
    of_verdict = report.run["rank"].filter(pl.col("rank_id").is_in(answer.culprits)).sort("rank")
    ranks = [_as_printed(rank) for rank in of_verdict.to_dicts()]
    stacks = {stack.rank_id: stack for stack in stacks_in(report.run["rank_stack"])}
    columns = ("host", "cudadev", "pid")
    known_columns = [name for name in columns if any(rank[name] is not None for rank in ranks[:most])]
    has_place = answer.missing or any({rank["rank_id"]} & {*last, *stacks} for rank in ranks[:most])
    has_numbers = answer.missing or any(rank["rank"] is not None for rank in ranks)
    headers = ["rank"] * bool(has_numbers) + ["GPU" if name == "cudadev" else name for name in known_columns]
    headers += [call_title, "at"] * bool(has_place)
    table = table_with_header(*headers)
    for rank in ranks[:most]:
        call, stack = last.get(rank["rank_id"]), stacks.get(rank["rank_id"])
        place = (call.source, call.line) if call else (stack.source, stack.line) if stack else None
        stands = f"stands in {place_text(stack)}" if stack else "none seen"
        cells = [
            *([known(rank["rank"])] if has_numbers else []), *(known(rank[name]) for name in known_columns),
            f"{call.operation.text} on {report.groups.text(call.key)}" if call else stands,
            place_of(report, report.cited(*place)) if place else "",
        ]  # fmt: skip
        table.add_row(*cells[: len(headers)])
    unseen = "no process has it" if answer.detail == Detail.SAME_NUMBER else "no log"
    for number in answer.missing[:most]:
        table.add_row(str(number), *("?" for _ in known_columns), unseen, "")
    if not (known_columns or (has_place and (last or stacks))):
        return []  # the verdict has said their numbers
    left = [rank["rank"] for rank in ranks[most:]]
    others = ranks_text([*left, *answer.missing[most:]]) if None not in left else f"{len(left)} more"
    rest = [indented(Text(f"and {others}", style="dim"))] if others else []
    title = "CULPRIT" if len(ranks) + len(answer.missing) == 1 else "CULPRITS"
    cause = report.cause_of(answer)
    if not has_numbers and cause and cause.finding.hosts and not cause.finding.ranks:
        title = "REPORTED BY"  # the fault is one of the host
    return [heading(title), indented(table), *rest]


def _as_printed(rank: Row) -> Row:
    """Return a rank without the host and pid that stand for a process whose lines name neither."""
    is_named = rank["host"] is None or bool(printed_hosts([rank["host"]]))
    return {**rank, "pid": printed_pid(rank["pid"])} if is_named else {**rank, "host": None, "pid": None}


def _grid(report: Report, answer: Answer) -> list[RenderableType]:
    """Show the ranks of each host in a line, with a symbol for each rank."""
    ranks = report.of_job("rank", answer.job)
    if not answer.culprits or ranks.height < 2:
        return []
    ranks = ranks.sort("rank")
    symbols = {
        **dict.fromkeys(answer.victims, ("·", "yellow")),
        **dict.fromkeys(answer.culprits, ("X", STYLE["error"])),
    }
    table = table_without_header()
    hosts = [(known(name[0]), rows) for name, rows in ranks.group_by("host", maintain_order=True)]
    culprit_hosts = {known(ranks.filter(pl.col("rank_id") == rank_id)["host"][0]) for rank_id in answer.culprits}
    hosts = sorted(hosts, key=lambda item: item[0] not in culprit_hosts)
    for host, rows in hosts[:MOST_HOSTS]:
        line = Text()
        for rank_id in rows["rank_id"]:
            line.append(*symbols.get(rank_id, ("-", "dim")))
        table.add_row(ranks_text(rows["rank"].drop_nulls()), host, line)
    more = [indented(Text(f"and {len(hosts) - MOST_HOSTS} more hosts", style="dim"))] if len(hosts) > MOST_HOSTS else []
    return [heading("RANKS (X culprit, · waits, - neither)"), indented(table), *more]


def mismatch(report: Report, answer: Answer) -> list[RenderableType]:
    """Show both calls side by side, with the differing fields marked."""
    if not answer.how:
        return []
    sides = report.run["verdict_evidence"].filter(
        (pl.col("job") == answer.job) & pl.col("what").is_in(["minority", "majority"])
    )
    calls = sides.join(report.run["shown_call"], on=["source", "line"], how="inner").unique(
        "what", keep="first", maintain_order=True
    )
    shown = {call["what"]: call for call in calls.to_dicts()}
    if len(shown) < 2:
        return []
    rank = {row["rank_id"]: row for row in report.run["rank"].select("rank_id", "rank", "pid").to_dicts()}
    callers = {side: rank[call["rank_id"]] for side, call in shown.items()}
    names = {
        side: f"rank {row['rank']}" if row["rank"] is not None else f"pid {row['pid']}" for side, row in callers.items()
    }
    table = table_with_header("", *(f"{names[side]} ({side})" for side in ("minority", "majority")))
    for name, show in _FIELDS.items():
        minority, majority = (show(shown[side], report) for side in ("minority", "majority"))
        differs = minority != majority
        if differs or minority != "-":  # neither call has such an argument
            table.add_row(f"{'≠' if differs else ' '} {name}", minority, majority, style="bold red" if differs else "")
    how = {"arguments": "same call, other arguments", "another": "another call"}.get(answer.how, f"{answer.how} call")
    return [heading(f"THE CALL ({how})"), indented(table)]


_FIELDS: dict[str, Callable[[Row, Report], str]] = {
    "call": lambda call, _: str(call["name"]),
    "count": lambda call, _: argument_text(call, "count"),
    "datatype": lambda call, _: argument_text(call, "datatype"),
    "op": lambda call, _: argument_text(call, "op"),
    "root": lambda call, _: argument_text(call, "root"),
    "place": lambda call, report: f"#{known(call['ordinal'])} on {report.groups.text(call['key'])}",
}


def _waits(report: Report, answer: Answer, verbose: bool) -> list[RenderableType]:
    groups, ranks = report.job(answer.job).waiting_groups, ranks_text if verbose else short_ranks
    table = table_with_header("ranks", "waits in", "for")
    for waiters, what, targets in groups if verbose else groups[:MOST_GROUPS]:
        table.add_row(ranks(waiters), what, ranks(targets))
    return [heading("WAITING RANKS"), indented(table)] if groups else []


def _evidence(report: Report, finding: Finding) -> list[RenderableType]:
    lines = _lines_of(report, finding)
    return [heading("EVIDENCE"), *lines] if lines else []


def _lines_of(report: Report, finding: Finding) -> list[RenderableType]:
    """List the lines that a finding cites, with label and location."""
    lines = report.evidence(finding)[:MOST_LINES]
    table = table_without_header()
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="cyan", overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for line in lines:
        table.add_row(line["what"], place_of(report, line), Text(quoted(line)))
    return [indented(table)] if lines else []


def _all_last(report: Report, answer: Answer) -> list[RenderableType]:
    table = table_with_header("rank", "host", "last call", "at")
    for call in report.job(answer.job).last_calls:
        where = place_of(report, report.cited(call.source, call.line))
        operation = f"{call.operation.text} on {report.groups.text(call.key)}"
        table.add_row(known(call.rank), known(call.host), operation, where)
    return [heading("LAST CALL OF EVERY RANK"), indented(table)] if table.row_count else []


def _problems(report: Report) -> list[RenderableType]:
    problems = [f"{path} {problem}" for path, problem in report.input_problems()]
    problems = [*map(str, report.defects_beside_inputs), *problems]
    return [Text.assemble(("\nproblem  ", STYLE["warning"]), printable(line)) for line in problems[:MOST_LINES]]


def _configuration(report: Report) -> list[RenderableType]:
    """Name the configuration files and the folders of rules that acted."""
    settings = report.run.settings
    named = {"configuration": settings.files, "own rules": settings.rule_folders}
    return [
        Text.assemble((f"\n{name}  ", "dim"), printable(", ".join(paths))) for name, paths in named.items() if paths
    ]


def height_of_terminal() -> float:
    """Return the height of the terminal, at least HEIGHT; without one, or one that tells none, there is no limit."""
    try:
        lines = os.get_terminal_size().lines
    except OSError:
        lines = 0
    return max(lines, HEIGHT) if lines else math.inf


def width_of_terminal() -> int:
    """Return the width of the terminal; without one, that of the variable COLUMNS, else 100.

    The terminals that Open MPI gives to its processes have 0 columns. Below 40, text is cut rather than wrapped.
    """
    try:
        width = os.get_terminal_size().columns
    except OSError:
        width = 0
    columns = os.environ.get("COLUMNS", "")
    width = width or (int(columns) if columns.isascii() and columns.isdecimal() and len(columns) < 6 else 0)
    return max(width, MIN_WIDTH) if width else DEFAULT_WIDTH
