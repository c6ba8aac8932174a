"""What `e` writes: the incident or one finding, with or without pseudonyms, in the format of the file's suffix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclforensics.report.build import Report
    from ncclforensics.rules.finding import Finding

MOST_PATHS = 4  # in the command line that an export shows


@dataclass(frozen=True, slots=True)
class Export:
    """What can be written to a file."""

    subject: str
    name: str  # suggested file name
    finding: Finding | None = None  # None: all
    redact: bool = False

    def render(self, report: Report, path: Path) -> bytes:
        """Render a report in the format of the suffix, as `report -o` does. Raises UsageError if it is unknown."""
        from ncclforensics.report.redacted_run import redact_report
        from ncclforensics.views.attachment import attachment

        place = None if self.finding is None else _place(report, self.finding)
        shown = redact_report(report, None)[0] if self.redact else report
        if place is not None:
            shown = replace(shown, findings=[shown.findings[place]])
        paths = " ".join(reading.source.path for reading in shown.run.inputs[:MOST_PATHS])
        return attachment(shown, path, f"ncclforensics tui {paths}")


def possible_exports(finding: Finding | None, *, is_redacted: bool) -> list[Export]:
    """List what can be written: the incident, the finding under the cursor, and both with pseudonyms."""
    exports = [Export("the whole incident", "incident.md")]
    if finding is not None:
        exports.append(Export("this finding", f"{finding.rule}.md", finding))
    if is_redacted:
        return exports
    return exports + [replace(export, subject=f"{export.subject}, with pseudonyms", redact=True) for export in exports]


def _place(report: Report, finding: Finding) -> int:
    return next(place for place, other in enumerate(report.findings) if other is finding)
