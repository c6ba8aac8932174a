"""The report as Markdown, for issues, merge requests and postmortems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ncclforensics import __version__
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import certainty_text, count_of, known, printable, ranks_text, sentence, short_ranks
from ncclforensics.frames.columns import Row, printed_pid
from ncclforensics.report.build import Report
from ncclforensics.report.next_steps import split_step
from ncclforensics.report.summary import not_shown, summary
from ncclforensics.report.without_job import reason_without_job, steps_without_job, verdict_without_job
from ncclforensics.rules.finding import Finding
from ncclforensics.views import json_report, markdown_slow, postmortem_parts
from ncclforensics.views.author_note import Cover
from ncclforensics.views.headline import cause, headline, shown_verdicts
from ncclforensics.views.markdown_syntax import code, details, fenced, inline, table
from ncclforensics.views.rank_map import HostRanks, Part, RankMap
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_layout import render_text
from ncclforensics.views.text_measured import measurements
from ncclforensics.views.text_times import hang_text

LONGEST = 65_536  # characters that GitHub takes; GitLab takes more
MOST_ROWS = (1 << 31, 64, 16, 4)  # of a folded table or list, less where the whole would be too long
MARKS = {Part.CULPRIT: "✗", Part.WAITS: "·", Part.NEITHER: ""}


def markdown(report: Report, *, everything: bool = False) -> str:
    """Return the verdict, or with `everything` the run and all findings, as Markdown."""

    def render(most: int) -> Iterator[str]:
        yield f"## ncclforensics: {inline(headline(report))}\n"
        yield from _body(report, headline(report), most, everything=everything)

    return _fitting(render)


def _fitting(render: Callable[[int], Iterable[str]]) -> str:
    """Join the parts, with as many rows of folded tables as GitHub takes."""
    text = ""
    for most in MOST_ROWS:
        text = "\n".join(render(most))
        if len(text) <= LONGEST:
            break
    return text


def postmortem(report: Report, cover: Cover) -> str:
    """Return the postmortem: the author's note, the verdict, all findings, and how the report was made."""
    hashes = [f"{digest}  {printable(report.path_of(source))}\n" for source, digest in report.hashes.items()]

    def render(most: int) -> Iterator[str]:
        yield f"## ncclforensics: {inline(cover.title)}\n"
        if cover.note:
            yield cover.note.strip() + "\n"
        yield from _body(report, cover.title, most, everything=True)
        yield "### How this report was made\n"
        yield f"ncclforensics {__version__}, run with this command:\n"
        yield fenced(f"{printable(cover.command)}\n")
        if hashes:
            shown = fenced("".join(hashes[:most])) + _left_out(len(hashes) - most)
            yield details(f"SHA-256 of {count_of(len(hashes), 'file')}", shown)

    return _fitting(render)


def _left_out(count: int) -> str:
    return f"\n{count:,} more are in the HTML page and in the JSON report.\n" if count > 0 else ""


def _body(report: Report, title: str, most: int, *, everything: bool) -> Iterator[str]:
    """Return what follows a title, which the first verdict does not repeat; at most so many rows of folded tables."""
    jobs = shown_verdicts(report)
    shown = jobs[: postmortem_parts.MOST_JOBS]
    for number, row in enumerate(shown, 1):
        if len(jobs) > 1:
            yield f"### Job {number} of {len(jobs)}\n"
        yield from _job(report, row, title, most, is_worst=number == 1, everything=everything)
    if not report.verdicts:
        yield f"**{verdict_without_job(report.run)}**: {inline(reason_without_job(report.run, report.findings))}\n"
        yield _steps(steps_without_job(report.run, report.findings))
    if slow := list(markdown_slow.section(report)):
        yield "### The speed of the job\n"
        yield from slow
    yield f"{inline(coverage(report).plain)}\n"
    if jobs[len(shown) :]:
        rest = [f"**{row.verdict}** ({row.certainty}): {inline(row.reason)}" for row in jobs[len(shown) :]]
        yield details(count_of(len(rest), "more job"), _items(rest[:most]) + _left_out(len(rest) - most))
    problems, notes = postmortem_parts.other_findings(report)
    if problems:
        yield f"### {'Other findings' if jobs else 'Findings'}\n"
        yield from (_finding(report, finding) for finding in problems[: postmortem_parts.OPEN_ROWS])
        if rest := [_finding(report, finding) for finding in problems[postmortem_parts.OPEN_ROWS :]]:
            body = "\n".join(rest[:most]) + _left_out(len(rest) - most)
            yield details(count_of(len(rest), "more finding"), body)
    if report.elsewhere:
        yield "### Elsewhere: other hosts or times, no cause of the above\n"
        titles = [f"{found.severity} ({found.certainty}): {inline(found.title)}" for found in report.elsewhere]
        yield _items(titles[:most]) + _left_out(len(titles) - most)
    if notes:
        body = "\n".join(_finding(report, note) for note in notes[:most]) + _left_out(len(notes) - most)
        yield details(count_of(len(notes), "note"), body)
    if everything:
        yield from _run(report, most)
    if unread := report.input_problems():
        body = _items([f"{code(path)} {inline(text)}" for path, text in unread[:most]])
        yield details(count_of(len(unread), "problem of reading"), body + _left_out(len(unread) - most))
    if defects := report.defects_beside_inputs:
        yield _items([inline(str(defect)) for defect in defects])


def _job(report: Report, answer: Answer, title: str, most: int, *, is_worst: bool, everything: bool) -> Iterator[str]:
    """Return one verdict: what happened, what to run now, the ranks, the calls, the evidence."""
    job = postmortem_parts.job_parts(report, answer)
    finding = job["finding"]
    texts = [job["title"]] if job["title"] not in title else []
    texts += [job["detail"]] if job["detail"] else []
    texts += [stopped] if (stopped := hang_text(report, answer)) else []
    sure = certainty_text(answer.verdict, answer.certainty)
    yield f"**{answer.verdict}**{sure}. {inline(' '.join(sentence(text) for text in texts))}\n"
    if is_worst and (first := cause(report)):
        yield f"**{first.label(answer)}**: {inline(sentence(first.text))}\n"
    if job["chain"]:
        rows = [(word, inline(text), code(at)) for word, text, at in job["chain"]]
        yield _long_table("What began it, and what followed", ("", "what happened", "at"), rows, most)
    if job["culprits"]:
        heads = ("rank", "host", "GPU", "pid", job["call_title"], "at")
        yield _long_table("Culprits", heads, _culprits(job["culprits"]), most)
    for where, lines in job["commands"].items():
        yield f"Run now on {inline(where)}:\n"
        yield fenced("".join(f"{printable(line)}\n" for line in lines))
    if job["steps"]:
        yield f"{'Then' if job['commands'] else 'What to do'}:\n"
        yield _steps(report.other_steps(answer))
    if answer.culprits or answer.missing:
        yield _ranks(job["map"], most)
    if job["beside"]:
        yield _beside(job["beside"])
    if job["waits"]:
        rows = [(short_ranks(waiters), inline(what), short_ranks(targets)) for waiters, what, targets in job["waits"]]
        yield _long_table("Waiting ranks", ("ranks", "wait in", "for"), rows, most)
    if finding:
        yield _evidence(job["lines"])
    if job["unexplained"]:
        failed = [(inline(text), code(at)) for text, at in job["unexplained"]]
        yield _long_table("Also failed, not explained by this", ("what", "at"), failed, most)
    if job["considered"]:
        rivals = [(inline(text), code(at) if at else "") for text, at in job["considered"]]
        yield _long_table("Also considered", ("explanation, and what speaks against it", "at"), rivals, most)
    if everything and job["last"]:
        last = [
            (known(call.rank), code(known(call.host)), inline(last["what"]), code(str(call.key)), code(last["at"]))
            for last in job["last"][:most]
            for call in [last["call"]]
        ]
        shown = table(("rank", "host", "call", "communicator", "at"), last) + _left_out(len(job["last"]) - most)
        yield details("The last call of every rank", shown)


def _culprits(ranks: list[Row]) -> list[tuple[str, ...]]:
    return [
        (
            known(rank["rank"]), code(known(rank["host"])), known(rank["cudadev"]), known(printed_pid(rank["pid"])),
            inline(rank["what"]), code(rank["at"]),
        )
        for rank in ranks
    ]  # fmt: skip


def _ranks(ranks: RankMap, most: int) -> str:
    """Return the ranks of each host with their marks; of many hosts, those with a culprit."""
    rows = [(code(host.name), _marked(host)) for host in ranks.rows]
    shown = table(("host", "ranks"), rows[:most]) + _left_out(len(rows) - most)
    return details(f"Ranks ({ranks.text()}; ✗ culprit, · waits)", shown)


def _marked(host: HostRanks) -> str:
    if host.is_wide:
        return short_ranks([number for number, _ in host.ranks if number is not None])
    texts = [(f"{MARKS[part]}{known(number)}", part) for number, part in host.ranks]
    return " ".join(f"**{text}**" if part is Part.CULPRIT else text for text, part in texts)


def _beside(beside: Row) -> str:
    rows = []
    for ordinal, is_difference, cells in beside["rows"]:
        calls = [inline(cell["what"] or "not called") for cell in cells]
        calls = [f"**≠ {call}**" if cell["differs"] else call for call, cell in zip(calls, cells, strict=True)]
        rows.append((f"**{ordinal}**" if is_difference else str(ordinal), *calls))
    heads = ("call", *(inline(head) for head in beside["heads"]))
    return _long_table(f"The calls side by side, on {beside['group']}", heads, rows, len(rows))


def _finding(report: Report, finding: Finding) -> str:
    """Return a finding with its detail, remedy and lines."""
    parts = [f"#### {finding.severity} ({finding.certainty}): {inline(finding.title)}\n"]
    if finding.detail:
        parts.append(f"{inline(sentence(finding.detail))}\n")
    if finding.remedy:
        parts.append(f"**Do:** {inline(sentence(finding.remedy))}\n")
    ranks = f" · {short_ranks(finding.ranks)}" if finding.ranks else ""
    parts.append(f"{finding.role} · rule `{finding.rule}`{ranks}\n")
    return "\n".join([*parts, _evidence(postmortem_parts.lines_of(report, finding))])


def _evidence(lines: list[Row]) -> str:
    """Return cited lines as they stand in the files, each with its place; those beyond the first few are folded."""
    texts = [f"{printable(' '.join(filter(None, (line['what'], line['at']))))}: {line['text']}\n" for line in lines]
    if not texts:
        return ""
    shown = fenced("".join(texts[: postmortem_parts.OPEN_LINES]))
    rest = texts[postmortem_parts.OPEN_LINES :]
    return "\n".join([shown, details(count_of(len(rest), "more line"), fenced("".join(rest)))]) if rest else shown


def _run(report: Report, most: int) -> Iterator[str]:
    """Return what was measured, what these logs cannot show, the run and the files."""
    if measured := measurements(report):
        yield "### Measured\n"
        yield fenced(render_text(measured, width=120, color=False).lstrip("\n"))
    if questions := not_shown(report.run):
        rows = [(inline(row["question"]), inline(row["needs"])) for row in questions]
        yield details("What these logs cannot show", table(("question", "needs"), rows))
    run = summary(report.run, report.findings)
    properties = {
        "NCCL": ", ".join(run["nccl_versions"]),
        "ranks": f"{ranks_text(run['ranks_seen'])} of {known(run['world_size'])}" if run["ranks_seen"] else "",
        "missing": ranks_text(run["ranks_missing"]),
        "hosts": ", ".join(run["hosts"]),
        "networks": ", ".join(run["networks"]) + f"; GPUDirect RDMA: {run['gdr']}" * bool(run["networks"]),
        "transports": ", ".join(f"{count} {name}" for name, count in (run["transports"] or {}).items()),
        "subsystems": ", ".join(run["debug"]["subsystems_seen"]),
    }
    rows = [(name, inline(value)) for name, value in properties.items() if value]
    rows += [(code(name), code(value)) for name, value, _ in postmortem_parts.settings(report)]
    yield details("The run, and NCCL's variables in the logs", table(("property", "value"), rows))
    counts = ("lines", "recognised", "application", "unrecognised", "damaged")
    files = [
        (code(file["path"]), file["kind"], *(str(file[name]) for name in counts)) for file in json_report.inputs(report)
    ]
    shown = table(("file", "kind", *counts), files[:most]) + _left_out(len(files) - most)
    yield details(count_of(len(files), "input file"), shown)


def _long_table(summary: str, heads: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> str:
    """Return a table below its summary, folded if it is long."""
    shown = table(heads, rows[:most]) + _left_out(len(rows) - most)
    if len(rows) > postmortem_parts.OPEN_ROWS:
        return details(f"{summary} ({len(rows)} rows)", shown)
    return f"{inline(summary)}:\n\n{shown}"


def _steps(steps: list[str]) -> str:
    """Return steps as a list, with their commands as code."""
    parts = [split_step(step) for step in steps]
    return _items([f"{inline(text)}: {code(command)}" if command else inline(text) for text, command in parts])


def _items(items: list[str]) -> str:
    return "".join(f"- {item}\n" for item in items)
