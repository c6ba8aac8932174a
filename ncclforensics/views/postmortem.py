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
from ncclforensics.analyses.fabric.counters import PORT
from ncclforensics.data.names import operation_text, printable, ranks_text, sentence, waiting_text
from ncclforensics.report.build import Report, Row
from ncclforensics.rules.finding import Severity
from ncclforensics.rules.shared.port_text import port_name
from ncclforensics.views import charts, json_report, markdown, text_counters
from ncclforensics.views.author_note import Cover
from ncclforensics.views.text_benchmarks import expected
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_layout import place_of

TEMPLATES = Path(__file__).parent / "templates"
MOST_JOBS = 4  # jobs shown in full
MOST_CURVES = 6
MOST_COUNTERS, MOST_BARS, MOST_PORTS = 64, 16, 64
SIDES = 2  # ranks per side in the comparison of calls


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
    environment.filters["ranks"] = ranks_text
    environment.filters["sentence"] = sentence
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
    jobs = markdown.shown_verdicts(report)
    return {
        **json_report.as_object(report),
        "tool_version": __version__,
        "summary": summary(report),
        "coverage": coverage(report).plain,
        "worst": _worst(report),
        "jobs": [_job(report, row) for row in jobs[:MOST_JOBS]],
        "jobs_left": jobs[MOST_JOBS:],
        "findings_shown": [_finding(report, number) for number in range(len(report.findings))],
        "curves": list(_curves(report)),
        "increased": [
            {**row, "port_name": port_name(row)} for row in text_counters.increased_counters(report)[:MOST_COUNTERS]
        ],
        "increases": Markup(_increases(report)),
        "ports": [{**row, "port_name": port_name(row)} for row in _ports(report)],
        "settings": _settings(report),
        "hashes": report.hashes,
        "problems": report.input_problems(),
        "defects": report.defects_beside_inputs,
    }


def summary(report: Report) -> list[str]:
    """Return three sentences: what happened, what it means, and how sure that is."""
    jobs = markdown.shown_verdicts(report)
    others = [finding for finding in report.findings if finding.job is None and finding.severity is not Severity.INFO]
    besides = f"{len(others)} more finding{'s' * (len(others) != 1)}" if others else "nothing else was found"
    if jobs:
        row, finding = jobs[0], report.finding_of(jobs[0])
        title, detail = (finding.title, finding.detail) if finding else (row["reason"], "")
        waiting = f"{len(row['victims'])} rank{'s' * (len(row['victims']) != 1)} waited, " if row["victims"] else ""
        more = f"this is the worst of {len(jobs)} jobs, " if len(jobs) > 1 else ""
        last = f"The verdict is {row['verdict']} ({row['certainty']}): {more}{waiting}{besides}"
        steps = report.collect_next(row)
        means = detail or (others[0].title if others else f"To decide it: {steps[0]}" if steps else row["reason"])
        return [sentence(title), sentence(means), sentence(last)]
    if not others:
        return [
            "Nothing wrong was found in what was read.",
            "There is no verdict on a job.",
            "What these logs cannot show is listed below.",
        ]
    last = f"This is {others[0].certainty}, and {len(others) - 1} more like it are listed below"
    return [sentence(others[0].title), sentence(others[0].detail), sentence(last)]


def _worst(report: Report) -> str:
    """Return the worst severity of the findings."""
    severities = [str(finding.severity) for finding in report.findings]
    return next((severity for severity in ("error", "warning") if severity in severities), "info")


def _job(report: Report, row: Row) -> dict[str, Any]:
    finding = report.finding_of(row)
    matrix, unit = charts.connections(report, row["job"])
    return {
        "row": row,
        "title": finding.title if finding else row["reason"],
        "severity": str(finding.severity) if finding else "info",
        "steps": report.collect_next(row),
        "grid": _grid(report, row),
        "culprits": _culprits(report, row),
        "beside": _beside(report, row),
        "waiting": Markup(charts.waiting(report, row)),
        "waits": _waits(report, row),
        "times": Markup(charts.times(report, row)),
        "matrix": Markup(matrix),
        "unit": unit,
        "last": [
            {**call, "what": operation_text(call), "at": place_of(report, report.cited(call["source"], call["line"]))}
            for call in report.last_calls(row["job"])
        ],
    }


def _grid(report: Report, row: Row) -> list[tuple[str, list[tuple[int | None, str]]]]:
    """Return each host with its ranks and their roles: culprit, waits or neither."""
    role = {**dict.fromkeys(row["victims"], charts.WAITS), **dict.fromkeys(row["culprits"], charts.CULPRIT)}
    ranks = report.run["rank"].filter(pl.col("job") == row["job"]).sort("rank", nulls_last=True)
    lacking = [(rank, charts.CULPRIT if rank in row["missing"] else charts.NEITHER) for rank in row["absent"]]
    unseen = [("no log", lacking)] if lacking else []
    return [
        (
            str(host or "?"),
            [(rank, role.get(rank_id, charts.NEITHER)) for rank, rank_id in rows.select("rank", "rank_id").rows()],
        )
        for (host,), rows in ranks.group_by("host", maintain_order=True)
    ] + unseen


def _culprits(report: Report, row: Row) -> list[Row]:
    last = {call["rank_id"]: call for call in report.last_calls(row["job"])}
    ranks = report.run["rank"].filter(pl.col("rank_id").is_in(row["culprits"])).sort("rank").to_dicts()
    seen = [
        {
            **rank,
            "what": f"{operation_text(call)} on {call['key']}" if call else "none seen",
            "at": place_of(report, report.cited(call["source"], call["line"])) if call else "",
        }
        for rank in ranks
        for call in [last.get(rank["rank_id"])]
    ]
    unseen = {"host": None, "cudadev": None, "pid": None, "what": "no log", "at": ""}
    return seen + [{**unseen, "rank": number} for number in row["missing"]]


def _beside(report: Report, row: Row) -> dict[str, Any] | None:
    """Return the calls of culprits and other ranks around the difference, by ordinal."""
    run = report.run
    calls = run["shown_call"].filter((pl.col("job") == row["job"]) & pl.col("is_beside"))
    if calls.is_empty():  # no call, or its place is not known
        return None
    shown = (
        run["verdict_evidence"].filter(pl.col("job") == row["job"])["rank_id"].drop_nulls().unique(maintain_order=True)
    )
    members = set(run["member"].filter(pl.col("key").cast(pl.String) == row["key"])["rank_id"])
    rank_ids = [rank_id for rank_id in shown if rank_id in members]
    culprits = [rank_id for rank_id in rank_ids if rank_id in row["culprits"]][:SIDES]
    others = [rank_id for rank_id in rank_ids if rank_id not in row["culprits"]][:SIDES]
    if not culprits or not others:
        return None
    call_at = {(call["rank_id"], call["ordinal"]): call for call in calls.to_dicts()}
    number = dict(run["rank"].select("rank_id", "rank").iter_rows())
    rows = []
    first, last = calls.select(first=pl.col("ordinal").min(), last=pl.col("ordinal").max()).row(0)
    for ordinal in range(first, last + 1):
        model = call_at.get((others[0], ordinal))
        cells = []
        for rank_id in culprits + others:
            call = call_at.get((rank_id, ordinal))
            is_other = rank_id in culprits and (call or {}).get("signature") != (model or {}).get("signature")
            cells.append(
                {
                    "what": operation_text({**call, "ordinal": None}) if call else "",
                    "at": place_of(report, report.cited(call["source"], call["line"])) if call else "",
                    "differs": is_other,
                }
            )
        rows.append((ordinal, ordinal == row["ordinal"], cells))
    heads = [
        f"rank {number[rank_id]} ({'culprit' if rank_id in culprits else 'other'})" for rank_id in culprits + others
    ]
    return {"key": row["key"], "heads": heads, "rows": rows}


def _waits(report: Report, row: Row) -> list[tuple[str, str, str]]:
    """Return (waiting ranks, call, ranks they wait for), one row per group."""
    groups: dict[tuple[str, str], list[int]] = {}
    texts: dict[int, str] = {}  # of the lists of ranks, which waits share
    for wait in report.waits(row["job"]):
        what = waiting_text(wait, report.groups.text(wait["key"]))
        targets = wait["for_ranks"]
        if id(targets) not in texts:
            texts[id(targets)] = ranks_text(targets)
        groups.setdefault((what, texts[id(targets)]), []).append(wait["waiter"])
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(ranks_text(report.numbers(waiters)), what, targets) for (what, targets), waiters in ordered]


def _finding(report: Report, number: int) -> dict[str, Any]:
    finding = report.findings[number]
    lines = [{**line, "at": place_of(report, line)} for line in report.evidence(finding)]
    return {"finding": finding, "severity": str(finding.severity), "role": str(finding.role), "lines": lines}


def _curves(report: Report) -> Iterator[tuple[str, Markup, bool]]:
    measured = report.run["measurement"]
    for row in report.run["benchmark"].head(MOST_CURVES).to_dicts():
        limits = expected(row)
        drawing = charts.curve(row, measured.filter(pl.col("benchmark") == row["benchmark"]), limits)
        if drawing:
            yield f"{row['collective'] or '?'}, {row['nranks'] or '?'} ranks", Markup(drawing), bool(limits)


def _increases(report: Report) -> str:
    rows = [
        (f"{port_name(row)}, {row['name']}", row["increase"])
        for row in text_counters.increased_counters(report)[:MOST_BARS]
    ]
    return charts.increases([(printable(name), increase) for name, increase in rows]) if rows else ""


def _ports(report: Report) -> list[Row]:
    """Return the last states of the ports: of all if they are few, otherwise of those that are not active."""
    last = report.run["port_state"].unique(list(PORT), keep="last", maintain_order=True)
    return (last if last.height <= MOST_PORTS else last.filter(pl.col("state") != "active")).head(MOST_PORTS).to_dicts()


def _settings(report: Report) -> list[tuple[str, str, int]]:
    """Return NCCL's variables in the logs with their values and numbers of hosts."""
    settings = report.run["setting"].filter(pl.col("variable").is_not_null() & pl.col("value").is_not_null())
    text = settings.select(pl.col("variable", "value").cast(pl.String), "host")
    return text.group_by("variable", "value").agg(pl.col("host").n_unique()).sort("variable", "value").rows()
