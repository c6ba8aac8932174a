"""The report for an issue or a chat: Markdown."""

from __future__ import annotations

from ncclforensics.report import Report
from ncclforensics.views import terminal


def markdown(report: Report, *, everything: bool = False) -> str:
    """The terminal's report as Markdown; text from logs stands in fences that it cannot end."""
    body = terminal.text(report, width=120, everything=everything)
    title = " and ".join(dict.fromkeys(row["verdict"] for row in report.verdicts)) or "no NCCL log"
    return fenced(f"ncclforensics: {title}", body)


def fenced(title: str, body: str) -> str:
    """A section with text that is shown as it is."""
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"## {title}\n\n{fence}text\n{body}{fence}\n"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
