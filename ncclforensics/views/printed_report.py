"""A report for Python and notebooks: it prints as the command does, and gives its frames with names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.report.build import Report
from ncclforensics.report.tables import Tables


class PrintedReport(Report):
    """A report that `print` and notebooks show: the verdict, or all findings if all rules were run."""

    @classmethod
    def of(cls, report: Report) -> PrintedReport:
        """Return the same report."""
        return cls(**{field.name: getattr(report, field.name) for field in fields(report)})

    @property
    def frames(self) -> Mapping[str, pl.DataFrame]:
        """The frames of the run by name, with rank numbers, paths and NCCL's names (`report/tables.py`)."""
        return Tables(self.run)

    def __repr__(self) -> str:
        answers = "; ".join(f"{answer.verdict} ({answer.certainty})" for answer in self.verdicts) or "no job"
        return (
            f"<Report: {count_of(len(self.run.inputs), 'input')}, {answers}, {count_of(len(self.findings), 'finding')}>"
        )

    def __str__(self) -> str:
        from ncclforensics.views.text_report import text  # a JSON report does without Rich

        return text(self, everything=not self.is_about_hang)

    def _repr_html_(self) -> str:
        from ncclforensics.views.text_layout import as_html
        from ncclforensics.views.text_report import text

        return as_html(text(self, color=True, everything=not self.is_about_hang))
