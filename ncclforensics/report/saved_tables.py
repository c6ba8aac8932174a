"""The tables of a saved run for people who query it: names instead of codes, ranks of the job, paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import polars as pl

from ncclforensics.report.build import Report
from ncclforensics.report.tables import Tables

# Frames that answer questions without knowledge of how the program works inside.
FRAMES = (
    "rank", "member", "call", "wait", "verdict", "failure", "warning", "setting", "version", "transport", "timeline",
    "benchmark", "measurement", "port_state",
)  # fmt: skip
FINDING = "finding"
FINDING_COLUMNS = {
    "rule": pl.String(),
    "category": pl.String(),
    "severity": pl.String(),
    "certainty": pl.String(),
    "role": pl.String(),
    "title": pl.String(),
    "detail": pl.String(),
    "remedy": pl.String(),
    "ranks": pl.List(pl.Int64()),
    "hosts": pl.List(pl.String()),
    "communicator": pl.String(),
    "evidence": pl.List(pl.Struct({"path": pl.String(), "line": pl.Int64(), "text": pl.String()})),
}


def saved_tables(report: Report) -> Mapping[str, Callable[[], pl.DataFrame]]:
    """Return the tables that hold rows, by name; each is computed when it is asked for."""
    tables = Tables(report.run)
    shown = [name for name in FRAMES if name not in report.run.broken and report.run[name].height]
    found = {FINDING: partial(_findings, report)} if report.findings else {}
    return {name: partial(tables.__getitem__, name) for name in shown} | found


def _findings(report: Report) -> pl.DataFrame:
    rows = [
        {
            **{name: getattr(finding, name) for name in FINDING_COLUMNS if name != "evidence"},
            "category": str(finding.category),
            "severity": str(finding.severity),
            "role": str(finding.role),
            "evidence": [{name: line[name] for name in ("path", "line", "text")} for line in report.evidence(finding)],
        }
        for finding in report.findings
    ]
    return pl.DataFrame(rows, schema=FINDING_COLUMNS)
