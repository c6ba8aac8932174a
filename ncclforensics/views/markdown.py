"""The report as Markdown, for issues and chats."""

from __future__ import annotations

from ncclforensics import __version__
from ncclforensics.data.names import printable
from ncclforensics.report.build import Report, Row
from ncclforensics.rules.finding import Severity
from ncclforensics.views import text_report
from ncclforensics.views.author_note import Cover


def markdown(report: Report, *, everything: bool = False) -> str:
    """Return the text report as Markdown; text from logs is fenced so that it cannot break out."""
    return section(f"ncclforensics: {_title(report)}", text_report.text(report, width=120, everything=everything))


def section(title: str, body: str) -> str:
    """Return a title with a fenced text."""
    return f"## {title}\n\n{_fenced(body)}"


def postmortem(report: Report, cover: Cover) -> str:
    """Return the postmortem: the author's note, the verdict and all findings."""
    parts = [f"## ncclforensics: {printable(cover.title)}\n"]
    if cover.note:
        parts.append(cover.note.strip() + "\n")
    if shown_verdicts(report):
        parts += ["### Verdict\n", _fenced(text_report.text(report, width=120))]
    parts += ["### All findings\n", _fenced(text_report.text(report, width=120, everything=True))]
    parts += [
        "### How this report was made\n",
        f"ncclforensics {__version__}\n",
        _fenced(f"{printable(cover.command)}\n"),
    ]
    hashes = [f"{digest}  {printable(report.path_of(source))}\n" for source, digest in report.hashes.items()]
    return "\n".join([*parts, "SHA-256 of the input files:\n", _fenced("".join(hashes))])


def shown_verdicts(report: Report) -> list[Row]:
    """Return the verdicts, without undecidable ones if the run is a benchmark."""
    is_measured = report.run["benchmark"].height > 0
    return [row for row in report.verdicts if not (is_measured and row["verdict"] == "undecidable")]


def headline(report: Report) -> str:
    """Return the default title: the verdicts, or the first finding."""
    verdicts = list(dict.fromkeys(row["verdict"] for row in shown_verdicts(report)))
    titles = [finding.title for finding in report.findings if finding.severity is not Severity.INFO]
    if titles and set(verdicts) <= {"no-hang", "undecidable"}:
        return titles[0]
    return " and ".join(verdicts) or "no findings"


def _title(report: Report) -> str:
    """Return the verdicts, joined by "and"."""
    return " and ".join(dict.fromkeys(row["verdict"] for row in report.verdicts)) or "no NCCL log"


def _fenced(body: str) -> str:
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"{fence}text\n{body}{fence}\n"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
