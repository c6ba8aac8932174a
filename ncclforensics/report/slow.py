"""What a report says on a slow job."""

from __future__ import annotations

from ncclforensics.analyses.slow.answer import SlowAnswer
from ncclforensics.report.build import Report


def slow_answer(report: Report) -> SlowAnswer | None:
    """Return what makes the job slow; None where that was not asked."""
    return SlowAnswer.of(report.run["slow_answer"]) if report.is_about_slow else None
