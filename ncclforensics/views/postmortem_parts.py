"""What a postmortem shows of a report, as plain values: the page and Markdown lay out the same content."""

from __future__ import annotations

from typing import Any

import polars as pl

from ncclforensics.analyses.fabric.counters import PORT
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import operation_text
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.report.chain import chain
from ncclforensics.report.next_steps import by_place, split_step
from ncclforensics.rules.finding import Finding, Severity
from ncclforensics.rules.shared.port_text import port_name
from ncclforensics.views import text_counters
from ncclforensics.views.headline import shown_verdicts
from ncclforensics.views.rank_map import rank_map
from ncclforensics.views.text_chain import WORDS
from ncclforensics.views.text_considered import considered, unexplained
from ncclforensics.views.text_fabric import fabrics
from ncclforensics.views.text_layout import place_of, render_text

MOST_JOBS = 4  # shown in full
MOST_COUNTERS, MOST_PORTS = 64, 64
DRAWING_WIDTH = 140  # characters
OPEN_ROWS, OPEN_LINES = 12, 6  # longer tables and lists of evidence are folded
BULK_ROWS = 200  # longer tables stay folded on paper
SIDES = 2  # ranks per side in the comparison of calls


def job_parts(report: Report, answer: Answer) -> dict[str, Any]:
    """Return what is shown of one job: verdict, culprits, commands, ranks, calls side by side, waits, evidence."""
    finding = report.finding_of(answer)
    return {
        "answer": answer,
        "finding": finding,
        "title": report.title_of(answer),
        "detail": finding.detail if finding else "",
        "severity": report.severity_of(answer),
        "chain": _chain(report, answer),
        "considered": considered(report, answer),
        "unexplained": unexplained(report, answer),
        "culprits": culprits(report, answer),
        "call_title": report.job(answer.job).calls_of_culprits[0],
        "commands": by_place(report.run_now(answer)),
        "steps": [split_step(step) for step in report.other_steps(answer)],
        "map": rank_map(report, answer),
        "beside": _beside(report, answer),
        "waits": report.job(answer.job).waiting_groups,
        "lines": lines_of(report, finding) if finding else [],
        "last": [
            {"call": call, "what": call.operation.text, "at": _at(report, call.source, call.line)}
            for call in report.job(answer.job).last_calls
        ],
    }


def other_findings(report: Report) -> tuple[list[Finding], list[Finding]]:
    """Return errors and warnings, and notes, without those found elsewhere and the verdicts of jobs shown in full."""
    shown = [id(report.finding_of(row)) for row in shown_verdicts(report)[:MOST_JOBS]]
    others = [finding for finding in report.findings if id(finding) not in shown and not finding.is_elsewhere]
    problems = [finding for finding in others if finding.severity is not Severity.INFO]
    return problems, [finding for finding in others if finding.severity is Severity.INFO]


def lines_of(report: Report, finding: Finding) -> list[Row]:
    """Return the lines that a finding cites, each with its file and line as `at`."""
    return [{**line, "at": place_of(report, line)} for line in report.evidence(finding)]


def _at(report: Report, source: int, line: int) -> str:
    return place_of(report, report.cited(source, line))


def _chain(report: Report, answer: Answer) -> list[tuple[str, str, str]]:
    """Return (first, then or besides; what happened; file and line) for each link of the chain of events."""
    links = [(link, report.cited(link.line.source, link.line.line)) for link in chain(report, answer)]
    return [(WORDS[link.role], link.text, place_of(report, line)) for link, line in links]


def culprits(report: Report, answer: Answer) -> list[Row]:
    """Return the ranks at fault with host, GPU, pid and call; those without a log have none of these."""
    _, last = report.job(answer.job).calls_of_culprits
    ranks = report.run["rank"].filter(pl.col("rank_id").is_in(answer.culprits)).sort("rank").to_dicts()
    seen = [
        {
            **rank,
            "what": f"{call.operation.text} on {group_text(report, call.key)}" if call else "none seen",
            "at": _at(report, call.source, call.line) if call else "",
        }
        for rank in ranks
        for call in [last.get(rank["rank_id"])]
    ]
    unseen = {"host": None, "cudadev": None, "pid": None, "what": "no log", "at": ""}
    return seen + [{**unseen, "rank": number} for number in answer.missing]


def group_text(report: Report, key: str | None) -> str:
    """Return the ranks of a communicator with its id."""
    text = report.groups.text(key)
    return text if str(key) in text else f"{text} ({key})"


def _beside(report: Report, answer: Answer) -> dict[str, Any] | None:
    """Return the calls of culprits and other ranks around the difference, by ordinal."""
    run = report.run
    calls = run["shown_call"].filter((pl.col("job") == answer.job) & pl.col("is_beside"))
    if calls.is_empty():  # no call, or its place is not known
        return None
    shown = (
        run["verdict_evidence"].filter(pl.col("job") == answer.job)["rank_id"].drop_nulls().unique(maintain_order=True)
    )
    members = set(run["member"].filter(pl.col("key").cast(pl.String) == answer.key)["rank_id"])
    rank_ids = [rank_id for rank_id in shown if rank_id in members]
    at_fault = [rank_id for rank_id in rank_ids if rank_id in answer.culprits][:SIDES]
    others = [rank_id for rank_id in rank_ids if rank_id not in answer.culprits][:SIDES]
    if not at_fault or not others:
        return None
    call_at = {(call["rank_id"], call["ordinal"]): call for call in calls.to_dicts()}
    number = dict(run["rank"].select("rank_id", "rank").iter_rows())
    rows = []
    first, last = calls.select(first=pl.col("ordinal").min(), last=pl.col("ordinal").max()).row(0)
    for ordinal in range(first, last + 1):
        model = call_at.get((others[0], ordinal))
        cells = []
        for rank_id in at_fault + others:
            call = call_at.get((rank_id, ordinal))
            is_other = rank_id in at_fault and (call or {}).get("signature") != (model or {}).get("signature")
            what = operation_text({**call, "ordinal": None}) if call else ""
            cells.append(
                {"what": what, "at": _at(report, call["source"], call["line"]) if call else "", "differs": is_other}
            )
        rows.append((ordinal, ordinal == answer.operation.ordinal, cells))
    heads = [
        f"rank {number[rank_id]} ({'culprit' if rank_id in at_fault else 'other'})" for rank_id in at_fault + others
    ]
    return {"group": group_text(report, answer.key), "heads": heads, "rows": rows}


def increased(report: Report) -> list[Row]:
    """Return the counters that grew between dumps, the worst first, each with the name of its port."""
    rows = text_counters.increased_counters(report)[:MOST_COUNTERS]
    return [{**row, "port_name": port_name(row)} for row in rows]


def ports(report: Report) -> list[Row]:
    """Return the last states of the ports: of all if they are few, otherwise of those that are not active."""
    last = report.run["port_state"].unique(list(PORT), keep="last", maintain_order=True)
    shown = (last if last.height <= MOST_PORTS else last.filter(pl.col("state") != "active")).head(MOST_PORTS)
    return [{**row, "port_name": port_name(row)} for row in shown.to_dicts()]


def fabric_drawings(report: Report) -> list[str]:
    """Draw the levels of each fabric of which there is a map, as lines of text; none without a map."""
    drawings = fabrics(report)
    return render_text(drawings, width=DRAWING_WIDTH, color=False).strip().splitlines()[1:] if drawings else []


def settings(report: Report) -> list[tuple[str, str, int]]:
    """Return NCCL's variables in the logs with their values and numbers of hosts."""
    rows = report.run["setting"].filter(pl.col("variable").is_not_null() & pl.col("value").is_not_null())
    text = rows.select(pl.col("variable", "value").cast(pl.String), "host")
    return text.group_by("variable", "value").agg(pl.col("host").n_unique()).sort("variable", "value").rows()
