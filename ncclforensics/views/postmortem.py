"""The report as one HTML file, for a postmortem."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from ncclforensics import __version__
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import printable, ranks_text, sentence, short_ranks
from ncclforensics.report.build import Report
from ncclforensics.report.slow import slow_answer
from ncclforensics.rules.finding import Finding
from ncclforensics.views import charts, charts_slow, charts_timeline, json_report, postmortem_parts
from ncclforensics.views.author_note import Cover
from ncclforensics.views.headline import shown_verdicts, story
from ncclforensics.views.text_benchmarks import expected
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_slow import sentences
from ncclforensics.views.text_times import hang_text

TEMPLATES = Path(__file__).parent / "templates"
MOST_CURVES = 6
MOST_BARS = 16


def html(report: Report, cover: Cover) -> bytes:
    """Return one HTML page without scripts or requests; its security policy allows only the style sheet."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible_text,
    )
    environment.filters |= {"ranks": ranks_text, "short_ranks": short_ranks, "sentence": sentence}
    environment.globals |= {
        "open_rows": postmortem_parts.OPEN_ROWS,
        "open_lines": postmortem_parts.OPEN_LINES,
        "bulk_rows": postmortem_parts.BULK_ROWS,
    }
    style = (TEMPLATES / "postmortem.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment.get_template("postmortem.html.j2").render(
        **_content(report), cover=cover, note=_rendered(cover.note), style=Markup(style), digest=digest
    )
    return page.encode()


def _visible_text(value: Any) -> Any:
    """Make control characters visible, including those that change the direction of text."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value.replace("\t", " "))


def _rendered(note: str) -> Markup:
    """Render the author's Markdown; HTML is shown as text, and images are links, so that nothing is fetched."""
    return Markup(MarkdownIt("commonmark", {"html": False}).disable("image").enable("table").render(note))


def _content(report: Report) -> dict[str, Any]:
    jobs = shown_verdicts(report)
    problems, notes = postmortem_parts.other_findings(report)
    return {
        **json_report.as_object(report),
        "tool_version": __version__,
        "story": story(report),
        "coverage": coverage(report).plain,
        "worst": _worst(report),
        "jobs": [_job(report, row) for row in jobs[: postmortem_parts.MOST_JOBS]],
        "jobs_left": jobs[postmortem_parts.MOST_JOBS :],
        "found": [_finding(report, finding) for finding in problems],
        "elsewhere": [_finding(report, finding) for finding in report.elsewhere],
        "notes": [_finding(report, finding) for finding in notes],
        **_speed(report),
        "curves": list(_curves(report)),
        "increased": postmortem_parts.increased(report),
        "increases": Markup(_increases(report)),
        "ports": postmortem_parts.ports(report),
        "fabrics": postmortem_parts.fabric_drawings(report),
        "settings": postmortem_parts.settings(report),
        "hashes": report.hashes,
        "problems": report.input_problems(),
        "defects": report.defects_beside_inputs,
    }


def _speed(report: Report) -> dict[str, Any]:
    """Return what makes the job slow, and its picture; `speed` is None where nothing was read that shows it."""
    answer = slow_answer(report)
    if answer is None:
        return {"speed": None}
    times = report.run["own_time"]
    return {"speed": answer, "speed_facts": sentences(answer), "late_steps": Markup(charts_slow.late_steps(times))}


def _worst(report: Report) -> str:
    """Return the worst severity of the findings."""
    severities = [str(finding.severity) for finding in report.findings]
    return next((severity for severity in ("error", "warning") if severity in severities), "info")


def _job(report: Report, answer: Answer) -> dict[str, Any]:
    matrix, unit = charts.connections(report, answer.job)
    return {
        **postmortem_parts.job_parts(report, answer),
        "stopped": hang_text(report, answer),
        "waiting": Markup(charts.waiting(report, answer)),
        "times": Markup(charts_timeline.timeline(report, answer)),
        "matrix": Markup(matrix),
        "unit": unit,
    }


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    lines = postmortem_parts.lines_of(report, finding)
    return {"finding": finding, "severity": str(finding.severity), "role": str(finding.role), "lines": lines}


def _curves(report: Report) -> Iterator[tuple[str, Markup, bool]]:
    measured = report.run["measurement"]
    for row in report.run["benchmark"].head(MOST_CURVES).to_dicts():
        limits = expected(row)
        drawing = charts.curve(row, measured.filter(pl.col("benchmark") == row["benchmark"]), limits)
        if drawing:
            yield f"{row['collective'] or '?'}, {row['nranks'] or '?'} ranks", Markup(drawing), bool(limits)


def _increases(report: Report) -> str:
    shown = postmortem_parts.increased(report)[:MOST_BARS]
    rows = [(printable(f"{row['port_name']}, {row['name']}"), row["increase"]) for row in shown]
    return charts.increases(rows) if rows else ""
