"""Parts of a report, cut to a size that an agent can read: what is left out is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl

from ncclforensics.data.names import printable
from ncclforensics.diff import Comparison
from ncclforensics.inputs.logfile import LogFile
from ncclforensics.report.build import Report
from ncclforensics.report.tables import Tables
from ncclforensics.rules.finding import Category, Severity
from ncclforensics.views import json_difference, json_report

Answer = dict[str, Any]
MOST_ENTRIES = 200  # of a folder
MOST_ITEMS = 32  # of any list in an answer
MOST_NESTED = 8  # objects of a list inside an object of a list, such as the evidence of findings
MOST_CHARACTERS = 500  # of any text
MOST_LINES = 100  # around a place
CALL_COLUMNS = ("ordinal", "communicator", "name", "count", "datatype", "op", "root", "path", "line")


def bounded(value: Any, *, is_nested: bool = False) -> Any:
    """Return a JSON value with long lists and texts cut; the last item then says how much is left out."""
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return f"{value[:MOST_CHARACTERS]}… ({len(value) - MOST_CHARACTERS} more characters)"
    if isinstance(value, dict):
        return {key: bounded(item, is_nested=is_nested) for key, item in value.items()}
    if isinstance(value, list):
        most = MOST_NESTED if is_nested and value and isinstance(value[0], dict) else MOST_ITEMS
        cut = [bounded(item, is_nested=True) for item in value[:most]]
        return [*cut, f"({len(value) - most} more)"] if len(value) > most else cut
    return value


def readable(value: Any) -> Any:
    """Return a JSON value whose texts hold nothing that a terminal would interpret but ends of lines."""
    if isinstance(value, str):
        return value if value.isprintable() else "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    return [readable(item) for item in value] if isinstance(value, list) else value


def verdict(report: Report) -> Answer:
    """Return the verdict, the findings that explain a hang, and what was read."""
    entire = json_report.as_object(report)
    problems = [f"{row['path']} {problem}" for row in entire["inputs"] for problem in row["problems"]]
    problems += [str(defect) for defect in report.defects]
    run = {name: entire["run"][name] for name in ("nccl_versions", "world_size", "ranks_seen", "hosts")}
    answer: Answer = bounded(
        {"hang": entire["hang"], "findings": entire["findings"], "run": run, "problems": problems}
        | {"files": len(entire["inputs"]), "jobs": len(report.verdicts), "configuration": entire["configuration"]}
    )
    return answer


def folder(entries: list[tuple[str, int | None]]) -> Answer:
    """Return the folders and the files of a folder, at most MOST_ENTRIES."""
    shown = entries[:MOST_ENTRIES]
    return {
        "folders": [bounded(name) for name, size in shown if size is None],
        "files": [{"name": bounded(name), "bytes": size} for name, size in shown if size is not None],
        "left_out": len(entries) - len(shown),
    }


def slow(report: Report) -> Answer:
    """Return what makes a job slow, with the times of each rank in a usual step, in microseconds."""
    entire = json_report.as_object(replace(report, is_about_slow=True))
    problems = [f"{row['path']} {problem}" for row in entire["inputs"] for problem in row["problems"]]
    times = report.run["rank_time"].sort("own_us", descending=True).to_dicts()
    answer: Answer = bounded({"slow": entire["slow"], "ranks": times, "problems": problems})
    return answer


def findings(report: Report, category: Category | None, severity: Severity, offset: int) -> Answer:
    """Return the findings of a category (None: all) at or above a severity, from `offset` on."""
    severities = list(Severity)
    wanted = severities[: severities.index(severity) + 1]
    entire = json_report.as_object(report)
    chosen = [row for row in entire["findings"] if row["severity"] in wanted and category in (None, row["category"])]
    page = chosen[offset : offset + MOST_ITEMS]
    following = offset + len(page)
    return {
        "total": len(chosen),
        "findings": bounded(page),
        "next_offset": following if following < len(chosen) else None,
        "configuration": bounded(entire["configuration"]),
    }


def lines(log: LogFile, line: int, around: int) -> Answer:
    """Return the lines of a file around a place, numbered from 1."""
    log.grow()
    reach = max(0, min(around, MOST_LINES // 2))
    numbers = range(max(1, line - reach), min(log.lines, line + reach) + 1)
    return {
        "path": log.source.path,
        "lines_in_file": log.lines,
        "lines": [{"line": number, "text": bounded(log.text(number))} for number in numbers],
        "problem": log.note or None,
    }


def calls(report: Report, rank: int, communicator: str | None, before: int | None) -> Answer:
    """Return the last calls of a rank, or those before a position, in the order in which they were made."""
    made = Tables(report.run)["call"].filter(pl.col("rank") == rank)
    if communicator is not None:
        made = made.filter(pl.col("communicator").cast(pl.String) == communicator)
    if before is not None:
        made = made.filter(pl.col("ordinal") < before)
    shown = made.select(CALL_COLUMNS).tail(MOST_ITEMS)
    return {"rank": rank, "total": made.height, "calls": bounded(shown.to_dicts())}


def difference(comparison: Comparison) -> Answer:
    """Return what differs between two runs and may explain their results."""
    entire = json_difference.as_object(comparison)
    kept = ("differs", "differences", "compared", "not_compared")
    answer: Answer = bounded({name: entire[name] for name in kept})
    return answer
