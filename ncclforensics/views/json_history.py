"""A history as JSON, described in docs/history.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ncclforensics import __version__
from ncclforensics.history.bands import Measured, Series
from ncclforensics.history.changes import Change
from ncclforensics.history.overview import Overview
from ncclforensics.history.returning import ReturningPart
from ncclforensics.views.json_report import SCHEMA_VERSION, dump_json


def json(overview: Overview) -> bytes:
    """Return the history as JSON, with all runs."""
    return dump_json(as_object(overview))


def as_object(overview: Overview) -> dict[str, Any]:
    """Return the history; the numbers of runs refer to `runs`."""
    history, starts = overview.history, overview.starts
    verdicts: dict[int, list[str]] = {}
    for run, verdict in history["start"].select("run", "verdict").iter_rows():
        verdicts.setdefault(run, []).append(verdict)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ncclforensics", "version": __version__},
        "runs": [
            {**row, "verdicts": verdicts.get(row["run"], [])} for row in history["run"].sort("moment", "run").to_dicts()
        ],
        "returning": [_returning(part) for part in overview.returning],
        "starts": {
            "failed": starts.failed,
            "decided": starts.decided,
            "undecided": starts.undecided,
            "share": list(starts.share) if starts.decided else None,
        },
        "busbw": [_series(test) for test in overview.series],
        "first_seen": [
            {"rule": first.rule, "found": first.found, **_change(first.change)} for first in overview.first_seen
        ],
        "shifts": [
            {"test": shift.test, "before_GBps": shift.before, "after_GBps": shift.after, **_change(shift.change)}
            for shift in overview.shifts
        ],
    }


def _returning(part: ReturningPart) -> dict[str, Any]:
    return {**asdict(part), "share": list(part.share)}


def _series(test: Series) -> dict[str, Any]:
    return {
        "test": test.test,
        "median_GBps": test.median,
        "band_GBps": None if test.band is None else list(test.band),
        "further_tests": test.missing or None,
        "figures": [_figure(figure) for figure in test.figures],
        "below": [_figure(figure) for figure in test.below],
        "above": [_figure(figure) for figure in test.above],
    }


def _figure(figure: Measured) -> dict[str, Any]:
    return {"run": figure.run, "moment": figure.moment, "hosts": figure.hosts, "busbw_GBps": figure.busbw}


def _change(change: Change) -> dict[str, Any]:
    return {
        "changes": [{"fact": fact, "before": before, "after": after} for fact, before, after in change.facts],
        "first_run": change.first_run,
        "runs": sorted(change.runs),
        "other_runs": sorted(change.others),
        "certainty": "possible",
    }
