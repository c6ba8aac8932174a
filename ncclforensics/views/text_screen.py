"""The short report: verdict, cause, evidence and what to run now; `check` prints other findings and tables below it.

On a terminal it is shortened to one screen; elsewhere, as in a pipe or a file, nothing is left out for lack of height.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import count_of, ranks_text, sentence
from ncclforensics.data.variables import NO_CALLS_IN_TEXT
from ncclforensics.report.build import Report
from ncclforensics.report.causes import Cause
from ncclforensics.report.next_steps import split_step
from ncclforensics.report.slow import slow_answer
from ncclforensics.report.without_job import (
    ends_well,
    holds_machines,
    reason_without_job,
    steps_without_job,
    verdict_without_job,
)
from ncclforensics.rules.finding import Finding, Role, Severity
from ncclforensics.views.screen_evidence import evidence, last_words, legend
from ncclforensics.views.screen_ranks import culprits_by_host, waiting
from ncclforensics.views.text_chain import chain_text
from ncclforensics.views.text_considered import considered_table, unexplained_table
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_findings import first_problem, one_liners, other_jobs, verdict_text
from ncclforensics.views.text_layout import GAP, STYLE, UNSEEN, heading, indented, render_text, wrapped_items
from ncclforensics.views.text_main import (
    BEGUN_AGAIN,
    OPEN,
    main_finding,
    measures_alone,
    other_findings,
    repeats,
    rests_on_nothing,
)
from ncclforensics.views.text_origin import origin_text
from ncclforensics.views.text_reasons import beyond_title, remarks, says_the_same
from ncclforensics.views.text_report import (
    ELSEWHERE,
    MOST_CULPRITS,
    culprits,
    mismatch,
)
from ncclforensics.views.text_steps import other_steps, run_now
from ncclforensics.views.text_times import hang_text, host_versions, is_suspected, open_question, steps_text
from ncclforensics.views.text_unread import STATED_BY_PROGRAM, UNKNOWN_FORMATS, last_lines, unread_failures

BEYOND_HANG = "Only what stops a job was looked for. Settings, network and speed: ncclforensics check"
MARGIN = 2  # lines for the prompt below the report
MOST_COMMANDS = 4
MOST_OTHERS = 5
MOST_LINES = 3
MEANING = "\nmeaning and false alarms: ncclforensics explain "
MOST_JOBS, FEWEST_JOBS = 20, 4  # listed below the worst one, before the others are only counted


@dataclass(slots=True)
class _Section:
    """A part of the screen, from its longest version to the shortest, which is always shown.

    Sections of a low `rank` are the first to be lengthened where there is room. The last line says of those with a
    `name` that the option -v shows them, where they are left out.
    """

    rank: int
    versions: list[list[RenderableType]]
    name: str = ""


def screen(
    report: Report, *, width: int, height: float = math.inf, color: bool = False, everything: bool = False
) -> str:
    """Return the report of `hang`, or with `everything` of `check`, in at most `height` lines if that is possible."""
    shown = main_finding(report, everything=everything)
    sections = [section for section in _sections(report, shown, width, everything=everything) if section.versions[0]]
    tables = [section for section in sections if section.name]
    added = _behind_option(report, everything=everything)

    def render(parts: list[RenderableType], names: list[str] | None) -> str:
        is_below_meaning = isinstance(parts[-1], Text) and parts[-1].plain.startswith(MEANING)
        options = f"-v: {', '.join([*added, *(names or [])])}"
        footer = Text(options if is_below_meaning else f"\n{options}", style="dim")
        shown_parts = parts if names is None else [*parts, footer]
        return render_text(shown_parts, width=width, color=color).replace("\n\n\n", "\n\n")

    longest = [section.versions[0] for section in sections]
    room = height - MARGIN
    if _rows(uncut := render(list(chain.from_iterable(longest)), []), width) <= room:
        return uncut
    all_names = [section.name for section in tables] if everything else None  # `hang` lists no tables
    shown_parts = _fitting(sections, room, width, lambda parts: render(parts, all_names))
    left_out = [
        section.name for section, parts in zip(sections, shown_parts, strict=True) if section.name and not parts
    ]
    chosen = list(chain.from_iterable(shown_parts))
    with_footer = render(chosen, left_out)
    return with_footer if everything or _rows(with_footer, width) <= room else render(chosen, None)


def _fitting(
    sections: list[_Section], lines: float, width: int, render: Callable[[list[RenderableType]], str]
) -> list[list[RenderableType]]:
    """Choose a version of every section: the longest that fits, in the order of their ranks."""

    def text(versions: list[list[RenderableType]]) -> str:
        return render(list(chain.from_iterable(versions)))

    shown = [section.versions[-1] for section in sections]
    for place, section in sorted(enumerate(sections), key=lambda item: item[1].rank):
        candidates = ([*shown[:place], version, *shown[place + 1 :]] for version in section.versions)
        shown = next((candidate for candidate in candidates if _rows(text(candidate), width) <= lines), shown)
    return shown


def _rows(text: str, width: int) -> int:
    """Count the rows of a terminal that a text takes, with those of commands that are longer than a row."""
    return sum(max(Text.from_ansi(line).cell_len - 1, 0) // width + 1 for line in text.splitlines())


def _sections(report: Report, shown: Finding | None, width: int, *, everything: bool) -> list[_Section]:
    jobs = report.verdicts
    sections = [_Section(0, [[wrapped_items(coverage(report), width)]])]
    problem = _Section(0, [first_problem(report)])
    if (slow := slow_answer(report)) is not None:
        from ncclforensics.views.text_slow import verdict as slow_verdict

        on_speed = _Section(0, [slow_verdict(slow)])
        sections += [on_speed] if slow.is_actionable else []
    is_open = bool(jobs) and jobs[0].verdict == "undecidable"  # then steps follow, the first of which is that advice
    is_advised_below = (is_open or not everything) and shown is not None and shown.role is not Role.CONSEQUENCE
    sections += _of_finding(report, shown, width, is_advised_below=is_advised_below) if shown is not None else []
    others = [finding for finding in other_findings(report) if finding is not shown]
    sections += [_Section(0, [_reached(report)])] if everything and shown is None else []
    explained = report.cause_of(jobs[0]) if jobs and shown is None else None
    cause = explained.finding if explained else None
    is_measured = everything and bool(jobs) and measures_alone(report, jobs[0])
    is_nothing = is_measured or (bool(jobs) and rests_on_nothing(report, jobs[0]))
    is_unjudged = everything and is_nothing and not (shown or others)
    if jobs and not is_unjudged:
        verdict, *details = _of_job(report, jobs[0], explained, shown, width)
        sections += [verdict, _of_other_jobs(report, jobs, width)]
        sections += details
    elif not everything:
        reason = reason_without_job(report.run, report.findings)
        verdict_text = verdict_without_job(report.run).upper().replace("-", " ")
        is_clean = holds_machines(report.run, report.findings) and not report.elsewhere
        without_fault = "; nothing that stops a job was found in them" * is_clean
        unknown: list[RenderableType] = [Text(f"\n{verdict_text}  {reason}{without_fault}", style="bold")]
        unknown += last_lines(report) if shown is None and reason == NO_CALLS_IN_TEXT else []
        if shown is not None:
            known = "No hang: " if ends_well(report.run) else "Not known: whether a job hangs. "
            unknown = [Text(""), indented(Text(known + sentence(reason)))]
            unknown += last_lines(report) if shown.rule == UNKNOWN_FORMATS else []
        trained = [indented(Text(text))] if (text := steps_text(report, shown)) else []
        sections += [_Section(0, [[*unknown, *trained]])]
    elif is_unjudged or (shown is None and slow is None):
        from ncclforensics.views.text_judged import without_findings  # the screen of a hang does without

        hang = f"Not known: whether the job hangs. {sentence(jobs[0].reason)}" if jobs and not is_measured else ""
        question = [indented(Text(hang))] if hang else []
        sections += [_Section(0, [[*without_findings(report), *question]]), problem]
    unread = unread_failures(report, [shown, cause])
    sections += [_Section(1, [unread])] if unread else []
    sections += [on_speed] if slow is not None and not slow.is_actionable else []
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO and finding.job is None]
    advised = cause or (report.finding_of(jobs[0]) if jobs and shown is None else None)
    advised = shown if is_advised_below else advised
    is_first = is_advised_below or (cause is not None and report.has_own_advice(cause))
    has_steps = (jobs and not is_unjudged) or not everything
    steps = _steps(report, jobs, advised, is_first=is_first) if has_steps else []
    main = shown or cause or (report.finding_of(jobs[0]) if jobs and not is_measured else None)
    explained_by = Text(f"{MEANING}{main.rule}" if main else "", style="dim")
    meaning = _Section(3 if everything else 5, [[explained_by], []] if main else [[]])
    if everything:
        rest = [finding for finding in others if finding is not cause]
        lists = [_listed(report, "FINDINGS", rest, most) for most in (None, MOST_OTHERS, 1)]
        found = [_Section(1, [*lists, []], count_of(len(rest), "finding"))]
        found += [_Section(5, [_elsewhere(report, None), []], "findings elsewhere")]
        notes = [note for note in notes if note.rule not in ((GAP,) if jobs or shown else UNSEEN)]
        found += [
            _Section(6, [_listed(report, "NOTES", notes, None), []], count_of(len(notes), "note")),
            *_tables(report),
        ]
        sections += [*steps, meaning, *found]
    else:
        if not others and (not jobs or jobs[0].verdict in OPEN) and shown is None:
            # Nothing worse is known; that nothing was read, and what a program states, stand above already.
            above = reason_without_job(report.run, report.findings)
            others = [n for n in notes if n.title != above and not (unread and n.rule == STATED_BY_PROGRAM)]
        elif not others and shown is not None and shown.severity is Severity.INFO:
            others = [note for note in notes if note.rule == BEGUN_AGAIN and note is not shown]
        rest = [finding for finding in others if finding is not cause and not repeats(report, finding, cause)]
        sections += [_Section(5, [_listed(report, "ALSO FOUND", rest, MOST_OTHERS), []])]
        if jobs and jobs[0].verdict == "no-hang":
            sections += [_Section(5, [[Text(f"\n{BEYOND_HANG}", style="dim")], []])]
        sections += [_Section(5, [_elsewhere(report, MOST_OTHERS), []]), *steps, meaning]
    return sections if any(section is problem for section in sections) else [*sections, problem]


def _reached(report: Report) -> list[RenderableType]:
    """Say what benchmarks without a finding reached, and what hosts of their kind reach."""
    from ncclforensics.views.text_benchmarks import by_first_column, decisive_runs, file_of, reached  # not of a hang

    rows = decisive_runs(report.run["benchmark_sweep"])[:MOST_LINES]
    sentences = [(row, by_first_column(row, report.run["measurement"]) or reached(row)) for row in rows]
    files = [f"{file}: " if (file := file_of(report, row)) else "" for row, _ in sentences]
    texts = [Text(f"{file}{text}.", "bold") for file, (_, text) in zip(files, sentences, strict=True) if text]
    return [Text(""), *texts] if texts else []


def _listed(report: Report, title: str, findings: list[Finding], most: int | None) -> list[RenderableType]:
    """List findings below a heading, which names the command that explains a rule; nothing without any."""
    left = len(findings) - len(findings[:most])
    more = [indented(Text(f"and {left} more (-v)", style="dim"))] if left else []
    title = f"{title} (ncclforensics explain RULE)"
    return [heading(title), *one_liners(report, findings[:most]), *more] if findings else []


def _elsewhere(report: Report, most: int | None) -> list[RenderableType]:
    found = report.elsewhere[:most]
    return [heading(ELSEWHERE), *one_liners(report, found)] if found else []


def _behind_option(report: Report, *, everything: bool) -> list[str]:
    """Say what the option -v adds, beside tables."""
    count = sum(finding.severity is Severity.INFO and finding.rule != GAP for finding in report.findings)
    notes = [count_of(count, "note")] if count and not everything else []
    return ["all lines of evidence", *(["ranks and their last calls"] if report.verdicts else []), *notes]


def _of_finding(report: Report, finding: Finding, width: int, *, is_advised_below: bool) -> list[_Section]:
    severity = str(finding.severity)
    head = Text.assemble(("\n", ""), (severity.upper(), STYLE[severity]), (f"  ({finding.certainty})  ", "dim"))
    row = report.verdicts[0] if report.verdicts else None
    suspect = f"; suspect {ranks_text(row.suspects)}" if row and is_suspected(report, row) else ""
    parts: list[RenderableType] = [head.append(finding.title + suspect, "bold")]
    parts += [indented(Text(sentence(line))) for line in (finding.detail, origin_text(report, finding)) if line]
    # What to collect says it, too, below what follows from a failure.
    is_advice = not is_advised_below and (finding.role is not Role.CONSEQUENCE or not report.verdicts)
    remedy: list[RenderableType] = [indented(Text(sentence(finding.remedy)))] if finding.remedy and is_advice else []
    return [_Section(0, [parts]), _Section(7, evidence(report, width, finding)), _Section(1, [remedy, []])]


def _of_job(report: Report, answer: Answer, cause: Cause | None, shown: Finding | None, width: int) -> list[_Section]:
    """Return the parts on a job: first its verdict, or below a finding `shown` above it what is not decided."""
    finding, began = report.finding_of(answer), cause.finding if cause else None
    state = [indented(Text(text))] if (text := hang_text(report, answer, shown)) else []
    if shown is not None and answer.verdict == "undecidable":
        question = [Text(""), indented(Text(open_question(report, answer, shown))), *last_words(report, width, finding)]
        return [_Section(0, [[*question, *state], question])]
    head = Text.assemble(("\n", ""), *verdict_text(report, answer), ("  ", ""), (report.title_of(answer), "bold"))
    reason: list[RenderableType] = []
    is_repeated = finding is not None and says_the_same(finding, began)
    if detail := remarks(answer) if is_repeated else beyond_title(finding) if finding else "":
        reason = [indented(Text(sentence(detail)))]
    if shown is not None:
        return [_Section(3, [[head, *reason, *state], [head]])]
    causes: list[RenderableType] = []
    if cause is not None:
        causes = [indented(Text(sentence(f"{cause.label(answer)}: {cause.text}"), "bold"))]
    why = [*causes, *reason] if is_repeated else [*reason, *causes]
    verdict = _Section(0, [[head, *why, *state], [head, *causes]])
    waits = waiting(report, answer)
    tables = [table for most in (MOST_CULPRITS, MOST_LINES, 1) if (table := culprits(report, answer, most))]
    has_several = len(answer.culprits) > 1
    by_host = [*culprits_by_host(report, answer), *waits] if has_several else waits  # the title names a single one
    first = "failure" if answer.verdict == Kind.RANK_DIED else ""  # the calls of others do not show an end
    lines = evidence(report, width, finding, began, report.numbers(answer.culprits), first)
    incident = [chained] if (chained := chain_text(report, answer)) else []
    return [
        verdict,
        _Section(2, [*([*table, *waits] for table in tables), by_host, []]),
        _Section(4, [*incident, *lines]),
        _Section(6, [legend(report, finding), []]),
        _Section(6, [mismatch(report, answer), []]),
        _Section(5, [host_versions(report, answer), []]),
        _Section(3, [unexplained_table(report, answer), []]),
        _Section(6, [considered_table(report, answer), []]),
    ]


def _of_other_jobs(report: Report, jobs: list[Answer], width: int) -> _Section:
    """Return the verdicts of the jobs below the worst one; of a few, each with a line that shows it."""
    briefly = [other_jobs(report, jobs, most) for most in (MOST_JOBS, FEWEST_JOBS)]
    if len(jobs) - 1 > FEWEST_JOBS:
        return _Section(5, briefly)
    return _Section(1, [other_jobs(report, jobs, FEWEST_JOBS, width), *briefly])


def _steps(report: Report, jobs: list[Answer], advised: Finding | None, *, is_first: bool) -> list[_Section]:
    """List the commands to run now, then what else would help; without any, what the rule of a finding advises.

    `is_first`: what it advises comes before all that would help to decide a verdict.
    """
    now = report.run_now(jobs[0]) if jobs else []
    then = report.other_steps(jobs[0]) if jobs else steps_without_job(report.run, report.findings)
    is_first &= advised is not None and advised.rule != UNKNOWN_FORMATS
    if advised is not None and advised.remedy and (is_first or not (now or then)):
        remedy, command = split_step(advised.remedy)
        then = [step for step in then if not split_step(step)[1] or split_step(step)[1] not in advised.remedy]
        if report.has_own_advice(advised) or not (advised.place and then):  # a traceback says more
            then = [advised.remedy if command else sentence(remedy), *then]
    if now:
        return [
            _Section(0, [run_now(now, MOST_COMMANDS)]),
            _Section(1, [other_steps("THEN", then[:most]) for most in ((2, 1) if is_first else (2, 1, 0))]),
        ]
    return [_Section(0, [other_steps("WHAT TO DO", then[:most]) for most in (2, 1)])]


def _tables(report: Report) -> list[_Section]:
    """Return what `check` prints below the findings: measurements, the run, and what these logs cannot show."""
    from ncclforensics.report.summary import not_shown  # the screen of a hang does without these
    from ncclforensics.views.text_measured import measured
    from ncclforensics.views.text_run import run_table

    sections = [
        _Section(8 if name == "benchmarks" else 9, versions, name) for name, versions in measured(report).items()
    ]
    if (run := run_table(report)).row_count:
        sections.append(_Section(10, [[heading("RUN"), indented(run)], []], "the run"))
    if rows := not_shown(report.run):
        questions = "; ".join(row["question"] for row in rows[:MOST_LINES])
        more = f"; and {len(rows) - MOST_LINES} more" if len(rows) > MOST_LINES else ""
        title = heading("NOT IN THESE LOGS (-v: how to log it)")
        sections.append(_Section(11, [[title, indented(Text(questions + more))], []], "what is not in these logs"))
    return sections
