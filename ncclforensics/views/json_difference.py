"""The comparison of two runs as JSON, described in docs/comparing-runs.md."""

from __future__ import annotations

from typing import Any

from ncclforensics import __version__
from ncclforensics.diff import Comparison, Difference, Side
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.report.summary import summary
from ncclforensics.views.json_report import SCHEMA_VERSION, dump_json, inputs


def json(comparison: Comparison) -> bytes:
    """Return the comparison as JSON."""
    return dump_json(as_object(comparison))


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison with all differences, including those that the text report omits."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ncclforensics", "version": __version__},
        "good": _run(comparison.good),
        "bad": _run(comparison.bad),
        "differs": comparison.matters if comparison.is_enough else None,
        "differences": [_difference(comparison, difference) for difference in comparison.differences],
        "compared": comparison.compared,
        "not_compared": [
            {"topic": topic.topic, "absent": topic.absent, "other_tells": topic.other_values, "needs": topic.needs}
            for topic in comparison.not_compared
        ],
        "curves": [
            {
                "title": curve.title,
                "unit": curve.unit,
                "points": [{"bytes": size, "good": good, "bad": bad} for size, good, bad in curve.points],
            }
            for curve in comparison.curves
        ],
    }


def _run(report: Report) -> Row:
    return {"inputs": inputs(report), "run": summary(report.run, report.findings)}


def _difference(comparison: Comparison, difference: Difference) -> Row:
    good, bad = comparison.evidence(difference)
    return {
        "topic": difference.topic,
        "kind": difference.kind,
        "what": difference.what,
        "certainty": difference.certainty,
        "unit": difference.unit or None,
        "good": _side(difference.good, good),
        "bad": _side(difference.bad, bad),
        "means": difference.means,
        "follows_from": difference.follows,
    }


def _side(side: Side, evidence: list[Row]) -> Row:
    return {"values": [{"value": value, "count": many} for value, many in side.values], "evidence": evidence}
