"""What a report says on a slow job."""

from __future__ import annotations

from ncclforensics.analyses.slow.answer import SlowAnswer
from ncclforensics.analyses.slow.verdict import INPUTS
from ncclforensics.report.build import Report


def slow_answer(report: Report) -> SlowAnswer | None:
    """Return what makes the job slow; None where that was not asked, and nothing was read that shows it."""
    is_shown = not report.is_about_hang and any(report.run.has(frame) for frame in INPUTS)
    return SlowAnswer.of(report.run["slow_answer"]) if report.is_about_slow or is_shown else None
